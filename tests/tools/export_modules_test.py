#!/usr/bin/env python3
"""tools/export_modules: what it writes and what it refuses. Without PyTorch only what needs none."""
import importlib.machinery
import importlib.util
import json
import os
import struct
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True


def load(path, name):
    loader = importlib.machinery.SourceFileLoader(name, path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


export_modules = load(os.path.join(ROOT, "tools", "export_modules"), "export_modules")
try:
    import torch
    from torch import nn
except ImportError:
    torch = None


class WithoutTorch(unittest.TestCase):
    def test_names(self):
        for modules, text in (([("a", 1)], "at least two"), ([("a", 1), ("a", 2)], "twice"),
                              ([("../a", 1), ("b", 2)], "no name"), ([(".a", 1), ("b", 2)], "no name")):
            with self.assertRaisesRegex(export_modules.Refused, text):
                export_modules.named(modules)
        self.assertEqual([name for name, _ in export_modules.named([1, 2])], ["block0", "block1"])

    def test_parameters_are_elements(self):
        blocks = [{"parameters": [{"dims": [256, 128]}]}, {"parameters": [{"dims": [4, 3]}, {"dims": [4]}]}]
        self.assertEqual(export_modules.sizes({"blocks": blocks}), "2 blocks, 32,784 parameters in 3 tensors")

    def test_functions_that_are_not_there(self):
        for where, text in (("net.py", "names no function"), ("/nothing/net.py:f", "is not there"),
                            (os.path.join(ROOT, "examples", "modules_mixer.py") + ":nothing", "")):
            with self.assertRaises((export_modules.Refused, ImportError)) as caught:
                export_modules.load(where)
            self.assertIn(text, str(caught.exception))


@unittest.skipUnless(torch, "PyTorch for Python is not installed")
class WithTorch(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def export(self, middle, head=None, **more):
        chain = [("embedding", nn.Embedding(20, 8)), ("middle", middle), ("head", head or nn.Linear(8, 20))]
        return export_modules.export(chain, self.folder.name, vocabulary=20, context=5, **more)

    def refuse(self, text, *arguments, **more):
        with self.assertRaisesRegex(export_modules.Refused, text):
            self.export(*arguments, **more)
        self.assertFalse(os.path.exists(os.path.join(self.folder.name, "modules.json")))

    def test_the_folder_holds_what_the_modules_are(self):
        middle = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Dropout(0.0), nn.Linear(12, 8))
        manifest = self.export(middle)
        with open(os.path.join(self.folder.name, "modules.json")) as file:
            self.assertEqual(json.load(file), manifest)
        block = manifest["blocks"][1]
        self.assertEqual(block["output"], [5, 8])
        self.assertEqual([p["name"] for p in block["parameters"]], ["0.weight", "0.bias", "3.weight", "3.bias"])
        self.assertEqual([p["decay"] for p in block["parameters"]], [True, False, True, False])
        self.assertGreaterEqual(block["forward_flops"], 2 * 5 * (8 * 12 + 12 * 8))
        path = os.path.join(self.folder.name, block["file"])
        self.assertEqual(os.path.getsize(path), block["bytes"])
        made = torch.jit.load(path)
        for name, parameter in made.named_parameters():
            self.assertEqual(parameter.untyped_storage().nbytes() if hasattr(parameter, "untyped_storage")
                             else parameter.storage().nbytes(), 4)
            parameter.data = dict(middle.named_parameters())[name].data
        x = torch.randn(2, 5, 8)
        self.assertTrue(torch.allclose(made(x), middle(x)))
        with open(os.path.join(self.folder.name, "weights.safetensors"), "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
            start = file.tell()
            entry = header["middle.3.bias"]
            file.seek(start + entry["data_offsets"][0])
            values = struct.unpack("<8f", file.read(32))
        self.assertEqual(list(values), middle[3].bias.tolist())

    def test_what_libtorch_does_beside_products_is_counted(self):
        middle = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8), nn.LayerNorm(8))
        work = [block["work"] for block in self.export(middle, nn.Sequential(nn.Linear(8, 20), nn.ReLU()))["blocks"]]
        # A look-up writes what it reads; the five tokens besides.
        self.assertEqual(work[0], {"calls": 1, "activations": 0, "passed": 2 * 5 * 8 + 5})
        # GELU in and out; the norm's rows, their two vectors, and mean and deviation of each.
        self.assertEqual(work[1]["activations"], 5 * 12 + 5 * 8)
        self.assertEqual(work[1]["passed"], 2 * 5 * 12 + 2 * 5 * 8 + 2 * 8 + 2 * 5)
        # A product, the view of its matrix, and views that join the dims of its rows.
        self.assertIn(work[1]["calls"], range(2 * 1 + 2, 2 * 5 + 2 + 1))
        self.assertEqual((work[2]["activations"], work[2]["passed"]), (0, 2 * 5 * 20))

    def test_each_way_to_pass_numbers_is_counted_once(self):
        class Ways(nn.Module):
            def __init__(self):
                super().__init__()
                self.row = nn.Parameter(torch.ones(8))

            def forward(self, x):
                x = x + self.row                  # 40 + 8 in, 40 out
                x = x.transpose(1, 2).transpose(1, 2).view(-1, 5, 8)  # views
                x = torch.cat([x, x], -1)         # 80 in, 80 out
                x = torch.softmax(x, -1).clone()  # 80 and 80, twice
                x.mul_(2.0)                       # 80 and 80
                return x.sum(-1, keepdim=True).expand(-1, -1, 8) + self.row  # 80 and 5; 5 and 8 in, 40 out

        work = self.export(Ways())["blocks"][1]["work"]
        self.assertEqual(work["activations"], 80)
        self.assertEqual(work["passed"], 88 + 160 + 320 + 160 + 85 + 53)

    def test_what_cannot_be_exported_is_named(self):
        class Eager(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(8, 8)

            def forward(self, x):
                return self.inner(x) * float(x.shape[0]) if eval("x.shape[0] > 1") else self.inner(x)

        self.refuse("middle .*scripted.*; traced, gives something else", Eager())
        self.refuse("middle draws random numbers", nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)))
        self.refuse("middle changes its buffer", nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(5)))
        self.refuse("middle has no parameters", nn.GELU())
        self.refuse("middle fails on an input", nn.Linear(9, 8))
        self.refuse(r"head gives \[5, 19\]", nn.Linear(8, 8), nn.Linear(8, 19))
        frozen = nn.Linear(8, 8)
        frozen.bias.requires_grad_(False)
        self.refuse("middle.bias is frozen", frozen)
        shared = nn.Linear(8, 8)
        self.refuse("0.weight is the same tensor|1.weight is the same tensor", nn.Sequential(shared, shared))
        bad = nn.Linear(8, 8)
        bad.weight.data[0, 0] = float("nan")
        self.refuse("not finite|draws random", bad)

    def test_an_own_loss_takes_the_targets(self):
        class Loss(nn.Module):
            def __init__(self):
                super().__init__()
                self.head = nn.Linear(8, 20)

            def forward(self, x, targets):
                return -torch.gather(torch.log_softmax(self.head(x), -1), -1, targets.unsqueeze(-1)).squeeze(-1)

        self.assertEqual(self.export(nn.Linear(8, 8), Loss(), loss="own")["blocks"][2]["output"], [5])


if __name__ == "__main__":
    unittest.main(verbosity=2)
