"""bench/paired_steps runs two builds in turns and states what their pairs say; the builds here are scripts."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Reports one step time after another of its list, and writes its name into the log.
BUILD = """#!/usr/bin/env python3
import json, pathlib, sys
folder = pathlib.Path(__file__).parent
name = pathlib.Path(__file__).name
with open(folder / "log", "a") as log:
    log.write(name + " " + " ".join(sys.argv[1:]) + "\\n")
turn = sum(line.startswith(name) for line in open(folder / "log")) - 1
seconds = {SECONDS}[turn]
row = {"case": {"model": "tiny"}, "seconds": {"median": seconds, "count": 7}}
report = {"verified": VERIFIED, "commit": name, "machine": {"cpu": "test", "cores": 2}, "rows": [row]}
pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(report))
"""


class PairedSteps(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def build(self, name, seconds, verified=True):
        path = self.folder / name
        path.write_text(BUILD.replace("{SECONDS}", repr(seconds)).replace("VERIFIED", repr(verified)))
        path.chmod(0o755)
        return path

    def run_pair(self, *flags):
        command = [sys.executable, ROOT / "bench/paired_steps", self.folder / "old", self.folder / "new", *flags]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def test_turns_and_figures(self):
        self.build("old", [1.0, 2.0, 4.0])
        self.build("new", [1.1, 2.0, 6.0])
        record = self.folder / "record.md"
        done = self.run_pair("--steps", "15", "--model", "tiny", "-o", record)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        log = [line.split()[0] for line in (self.folder / "log").read_text().splitlines()]
        self.assertEqual(log, ["old", "new", "new", "old", "old", "new"])
        self.assertIn("--model tiny", (self.folder / "log").read_text())
        text = record.read_text()
        self.assertIn("| before | old | 21 | 2.0000 | 1.2000 | 3.6000 |", text)
        self.assertIn("| 1.1000 | 1.0000 to 1.5000 | 1.0200 | 1.4200 | 3 |", text)
        self.assertIn("| 3 | 4.0000 | 6.0000 | 1.5000 |", text)

    def test_what_is_not_verified_is_not_recorded(self):
        self.build("old", [1.0])
        self.build("new", [1.0], verified=False)
        done = self.run_pair("--steps", "7")
        self.assertEqual(done.returncode, 1)
        self.assertIn("was not verified", done.stderr)


if __name__ == "__main__":
    unittest.main()
