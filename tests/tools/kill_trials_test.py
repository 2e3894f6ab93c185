"""tools/kill_trials: a few kills of each kind and a race lose nothing; a program that loses something is found."""
import os
import pathlib
import stat
import subprocess
import tempfile
import textwrap
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
STRAIT = os.environ.get("STRAIT_BINARY")
# Leaves a temporary file in the run folder whatever it is asked for.
LITTERING = textwrap.dedent("""
    #!/bin/sh
    for word in "$@"; do case "$word" in output.run_dir=*) folder=${word#*=};; esac; done
    "$STRAIT_BINARY" "$@"
    status=$?
    [ -z "$folder" ] || : > "$folder/run.toml.tmp-1"
    exit $status
    """).lstrip()


def trials(strait, kills):
    command = [ROOT / "tools/kill_trials", "--strait", strait, "--kills", str(kills), "--races", "1"]
    return subprocess.run(command, capture_output=True, text=True, timeout=900)


@unittest.skipUnless(STRAIT, "needs STRAIT_BINARY")
class KillTrials(unittest.TestCase):
    def test_nothing_is_lost(self):
        ran = trials(STRAIT, 12)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertRegex(ran.stdout, "races 1.*; 0 failures")

    def test_what_is_left_over_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            littering = pathlib.Path(folder) / "strait"
            littering.write_text(LITTERING)
            littering.chmod(littering.stat().st_mode | stat.S_IXUSR)
            ran = trials(littering, 0)
        self.assertEqual(ran.returncode, 1, ran.stdout + ran.stderr)
        self.assertIn("a race left files over", ran.stdout)


if __name__ == "__main__":
    unittest.main()
