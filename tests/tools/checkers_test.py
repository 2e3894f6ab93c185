"""Every checker under tools/ accepts a sound tree and refuses each kind of breach, in a fixture made here."""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SOUND = {
    "strait/base/text.h": "#pragma once\n#include <string>\n",
    "strait/comm/communicator.h": "#pragma once\n",
    "strait/comm/threads/ring.h": '#pragma once\n#include "strait/comm/communicator.h"\n',
    "strait/data/loader.h": '#pragma once\n#include "strait/base/text.h"\nstd::string load();\n',
    "strait/strategy/compose.cpp": '#include "strait/strategy/sync/rounds.h"\n#include "strait/data/loader.h"\n',
    "strait/strategy/sync/rounds.h": "#pragma once\n",
    "strait/strategy/tensor/grid.h": "#pragma once\n",
    "strait/tensor/flat.h": "#pragma once\n#include <ATen/Missing.h>\n",
}


class Fixture(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        for name, text in SOUND.items():
            self.write(name, text)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run_tool(self, tool):
        command = [sys.executable, ROOT / "tools" / tool, self.root]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(result.stderr, "")
        return result.returncode, result.stdout


class Layers(Fixture):
    def refuse(self, name, text, *expected):
        self.write(name, text)
        status, output = self.run_tool("check_layers")
        self.assertEqual(status, 1, output)
        self.assertIn("1 breaches", output)
        for part in (name, *expected):
            self.assertIn(part, output)

    def test_sound_tree(self):
        self.assertEqual(self.run_tool("check_layers"), (0, "layers: 8 files, 0 breaches\n"))

    def test_empty_tree(self):
        shutil.rmtree(self.root / "strait")
        self.assertEqual(self.run_tool("check_layers")[0], 1)

    def test_upward(self):
        self.refuse("strait/base/clock.h", '#include "strait/data/loader.h"\n', "base is at level 0", "level 3")

    def test_same_level(self):
        self.refuse("strait/shape/gpt.h", '  #  include "strait/data/loader.h"\n', ":1:", "level 3")

    def test_without_torch_reaches_torch_folder(self):
        self.refuse("strait/program/values.h", '\n#include "strait/tensor/flat.h"\n', ":2:", "without LibTorch")

    def test_without_torch_reaches_torch_header(self):
        for header in ("torch/torch.h", "ATen/Tensor.h", "c10/util/Half.h"):
            with self.subTest(header):
                self.refuse("strait/data/bad.h", f"#include <{header}>\n", header)

    def test_sub_folder_reaches_sibling(self):
        self.refuse("strait/strategy/sync/bad.cpp", '#include "strait/strategy/tensor/grid.h"\n', "sibling")

    def test_sub_folder_reaches_parent(self):
        self.write("strait/strategy/options.h", "#pragma once\n")
        self.refuse("strait/strategy/sync/bad.cpp", '#include "strait/strategy/options.h"\n', "parent")

    def test_compose_joins_siblings_but_not_the_parent(self):
        self.write("strait/strategy/compose/all.cpp", '#include "strait/strategy/sync/rounds.h"\n')
        self.assertEqual(self.run_tool("check_layers")[0], 0)
        self.write("strait/strategy/options.h", "#pragma once\n")
        self.refuse("strait/strategy/compose/all.cpp", '#include "strait/strategy/options.h"\n', "parent")

    def test_third_party_in_quotes(self):
        self.write("strait/data/simd.cpp", '#include "hwy/highway.h"\n')
        self.assertEqual(self.run_tool("check_layers")[0], 0)

    def test_unknown_folder(self):
        self.refuse("strait/stuff/thing.h", "#pragma once\n", "'stuff' is no folder")
        shutil.rmtree(self.root / "strait/stuff")
        self.refuse("strait/data/bad.h", '#include "strait/stuff/thing.h"\n', "'stuff' is no folder")

    def test_missing_header(self):
        self.refuse("strait/data/bad.h", '#include "strait/base/gone.h"\n', "does not exist")

    def test_include_not_from_root(self):
        self.refuse("strait/data/bad.h", '#include "loader.h"\n', "start at the root")

    def test_heavy_header_in_three_files(self):
        for library, header in (("toml++", "toml++/toml.h"), ("CLI11", "CLI/CLI.hpp"),
                                ("nlohmann json", "nlohmann/json.hpp"), ("spdlog", "spdlog/spdlog.h")):
            with self.subTest(library):
                self.write("strait/data/one.cpp", f"#include <{header}>\n")
                self.write("strait/data/two.cpp", f"#include <{header}>\n")
                (self.root / "strait/data/three.cpp").unlink(missing_ok=True)
                self.assertEqual(self.run_tool("check_layers")[0], 0)
                self.refuse("strait/data/three.cpp", f"#include <{header}>\n", library)

    def test_empty_name(self):
        for name in ("utils", "helpers", "common", "misc", "manager"):
            with self.subTest(name):
                self.refuse(f"tests/data/{name}.h", "", f"'{name}' says nothing")
                (self.root / f"tests/data/{name}.h").unlink()


class Names(Fixture):
    def setUp(self):
        super().setUp()
        self.write("strait/draft/kernels.cpp", 'const Kernel kForward = block_kernel(\n    "forward", operands());\n'
                   'const program::Kernel kUpdate{"update", {}};\n')
        self.write("strait/shape/preset.cpp", 'Preset{"gpt2-124m", 12}, LlamaPreset{"llama-10m", 6},\n')
        self.write("strait/config/keys.cpp", 'row("placement.preset",\n one_of({"ddp", "zero3", "zero++"}))\n')
        self.write("strait/program/kernel.h", "// For example forward, \"zero3\".\nenum class Access { kUpdate };\n")
        self.write("strait/sim/lanes.cpp", 'return access == Access::kUpdate ? "update" : "zero order forward";\n')

    def refuse(self, text, *expected):
        self.write("strait/cost/bad.cpp", text)
        status, output = self.run_tool("check_names")
        self.assertEqual(status, 1, output)
        self.assertIn("1 breaches", output)
        for part in ("strait/cost/bad.cpp", *expected):
            self.assertIn(part, output)

    def test_sound_tree(self):
        self.assertEqual(self.run_tool("check_names"), (0, "names: 2 files, 0 breaches\n"))

    def test_kernels(self):
        self.refuse('\nif (name == "forward") {}\n', ":2:", "the kernel forward in a text")
        self.refuse("if (op.kernel == &kForward) {}\n", "the kernel kForward")

    def test_models(self):
        self.refuse("int layers_of_gpt3() { return 96; }\n", "the model gpt: layers_of_gpt3")
        self.refuse('fmt::format("like Llama")\n', "the model llama in a text")

    def test_placements(self):
        self.refuse("bool isZero3 = false;\n", "the placement zero3: isZero3")
        self.refuse('name.starts_with("ddp-")\n', "the placement ddp in a text")

    def test_strategies(self):
        self.refuse("int kTensorBytes = 0;\n", "the strategy tensor")

    def test_includes_of_what_brings_them(self):
        self.refuse('#include "strait/draft/kernels.h"\n', "includes strait/draft")

    def test_tree_without_names(self):
        (self.root / "strait/draft/kernels.cpp").unlink()
        status, output = self.run_tool("check_names")
        self.assertEqual(status, 1)
        self.assertIn("no kernel is defined where this check looks", output)


class Headers(Fixture):
    def setUp(self):
        super().setUp()
        (self.root / "strait/tensor/flat.h").unlink()

    def test_sound_tree_and_cache(self):
        status, output = self.run_tool("check_headers")
        self.assertEqual((status, output), (0, "headers: 6, compiled 6, unchanged 0, not checked 0, failed 0\n"))
        self.write("strait/base/text.h", "#pragma once\n#include <string>\nstruct Changed {};\n")
        status, output = self.run_tool("check_headers")
        self.assertEqual((status, output), (0, "headers: 6, compiled 2, unchanged 4, not checked 0, failed 0\n"))

    def test_missing_include(self):
        self.write("strait/data/bad.h", "#pragma once\ninline std::vector<int> values() { return {}; }\n")
        for _ in range(2):  # A failure is not cached.
            status, output = self.run_tool("check_headers")
            self.assertEqual(status, 1)
            self.assertIn("strait/data/bad.h: does not compile alone", output)
            self.assertIn("failed 1", output)

    def test_warning(self):
        self.write("strait/data/bad.h", "#pragma once\ninline int twice(int a) { int b; return a + a; }\n")
        status, output = self.run_tool("check_headers")
        self.assertEqual(status, 1)
        self.assertIn("unused variable", output)

    def test_no_header(self):
        shutil.rmtree(self.root / "strait")
        self.assertEqual(self.run_tool("check_headers")[0], 1)


class Sizes(Fixture):
    def report(self, name, text):
        self.write(name, text)
        status, output = self.run_tool("size_report")
        self.assertEqual(status, 0)
        return output

    def test_sound_tree(self):
        self.assertEqual(self.run_tool("size_report"), (0, "sizes: 0 places to look at again\n"))

    def test_function(self):
        body = "  work();\n"
        for lines, found in ((58, False), (59, True)):  # and the two lines of the braces
            output = self.report("strait/data/a.cpp", "namespace a {\nvoid B::long_one() {\n" + body * lines + "}\n}\n")
            self.assertEqual("a.cpp:2: B::long_one has" in output, found, output)

    def test_constructor_with_brace_initializers(self):
        text = "A::A(int a)\n    : a_{a}, b_{1} {\n" + "  work();\n" * 70 + "}\n"
        self.assertIn("A::A has", self.report("strait/data/a.cpp", text))

    def test_braces_in_literals_and_comments(self):
        text = 'void f() {\n  g("{", \'{\');  // {\n  /* { */\n}\n' + "\n" * 70 + "void h() {}\n"
        self.assertIn("sizes: 0 places", self.report("strait/data/a.cpp", text))

    def test_parameters(self):
        five = "void f(std::map<int, int> a, int b, int c, int d, int e) {}\n"
        self.assertIn("sizes: 0 places", self.report("strait/data/a.cpp", five))
        six = "void f(int a, int b, int c, int d, int e, int g) {}\n"
        self.assertIn("f has 6 parameters", self.report("strait/data/a.cpp", six))

    def test_wide_lines(self):
        self.assertIn("sizes: 0 places", self.report("strait/data/a.cpp", "//" + "x" * 98 + "\n"))
        self.assertIn("a.cpp:1: 1 lines wider", self.report("strait/data/a.cpp", "//" + "x" * 99 + "\n"))

    def test_file_and_folder(self):
        self.assertIn("file of 501 lines", self.report("strait/data/a.cpp", "\n" * 501))
        for index in range(26):
            self.write(f"strait/shape/s{index}.h", "")
        self.assertIn("strait/shape: folder of 26 files", self.run_tool("size_report")[1])


if __name__ == "__main__":
    unittest.main()
