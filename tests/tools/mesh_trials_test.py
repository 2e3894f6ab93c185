"""tools/mesh_trials: a few kills and resumes in other meshes end with the losses of one rank; other losses are found."""
import os
import pathlib
import stat
import subprocess
import tempfile
import textwrap
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
STRAIT = os.environ.get("STRAIT_BINARY")
# Learns a little faster where ranks share the work.
HASTY = textwrap.dedent("""
    #!/bin/sh
    for word in "$@"; do case "$word" in mesh.axes.*) more="--set optimizer.learning_rate=3.0001e-3";; esac; done
    exec "$STRAIT_BINARY" "$@" $more
    """).lstrip()


def trials(strait, kills):
    command = [ROOT / "tools/mesh_trials", "--strait", strait, "--kills", str(kills), "--seed", "5"]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@unittest.skipUnless(STRAIT, "needs STRAIT_BINARY")
class MeshTrials(unittest.TestCase):
    def test_runs_end_as_one_rank(self):
        ran = trials(STRAIT, 5)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertRegex(ran.stdout, "5 kills.*; 0 failures")

    def test_other_losses_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            hasty = pathlib.Path(folder) / "strait"
            hasty.write_text(HASTY)
            hasty.chmod(hasty.stat().st_mode | stat.S_IXUSR)
            ran = trials(hasty, 2)
        self.assertEqual(ran.returncode, 1, ran.stdout + ran.stderr)
        self.assertRegex(ran.stdout, r"training losses, clips|step \d+: .* is not")


if __name__ == "__main__":
    unittest.main()
