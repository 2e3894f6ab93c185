"""Scripts under bench/ that import each other leave nothing beside themselves, also where they are installed."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BENCH = pathlib.Path(__file__).resolve().parent.parent.parent / "bench"


def imported(folder):
    """Scripts of a folder that others in it import, by name."""
    names = {script.stem for script in folder.glob("*.py")}
    found = re.findall(r"^(?:from|import) (\w+)", "".join(s.read_text() for s in folder.glob("*.py")), re.MULTILINE)
    return names & set(found)


class Scripts(unittest.TestCase):
    def test_no_bytecode_is_left(self):
        variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        for folder, shared in (("", {"lab", "quality_runs"}), ("peers", {"torch_step", "gpt2_torch"})):
            self.assertLessEqual(shared, imported(BENCH / folder))
            with tempfile.TemporaryDirectory() as root:
                copy = pathlib.Path(root) / "bench"
                shutil.copytree(BENCH / folder, copy, ignore=shutil.ignore_patterns("__pycache__", "records"))
                for script in sorted(copy.glob("*.py")):
                    subprocess.run([sys.executable, script, "--help"], env=variables, cwd=root, timeout=120, check=False,
                                   stdin=subprocess.DEVNULL, capture_output=True)
                    self.assertEqual(list(copy.rglob("*.pyc")), [], script.name)


if __name__ == "__main__":
    unittest.main()
