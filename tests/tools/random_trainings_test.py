"""tools/random_trainings: a few combinations train or are refused; a program that fails, or says something else than verify, is found."""
import os
import pathlib
import stat
import subprocess
import tempfile
import textwrap
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
STRAIT = os.environ.get("STRAIT_BINARY")
# Trains nothing, or refuses in `verify` what trains.
FAILING = {"exit 1": 'case "$1" in train) exit 1;; esac', "verify 2, train 0": 'case "$1" in verify) exit 2;; esac'}


def trials(strait, count):
    command = [ROOT / "tools/random_trainings", "--strait", strait, "--count", str(count)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@unittest.skipUnless(STRAIT, "needs STRAIT_BINARY")
class RandomTrainings(unittest.TestCase):
    def test_are_trained_or_refused(self):
        ran = trials(STRAIT, 20)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertRegex(ran.stdout, r"20 runs: [1-9]\d* with exit code 0, .*; 0 failures")

    def test_failures_are_found(self):
        for said, script in FAILING.items():
            with self.subTest(said), tempfile.TemporaryDirectory() as folder:
                wrapper = pathlib.Path(folder) / "strait"
                wrapper.write_text(textwrap.dedent(f"""
                    #!/bin/sh
                    {script}
                    exec "$STRAIT_BINARY" "$@"
                    """).lstrip())
                wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
                ran = trials(wrapper, 8)
                self.assertEqual(ran.returncode, 1, ran.stdout + ran.stderr)
                self.assertIn(said, ran.stdout)


if __name__ == "__main__":
    unittest.main()
