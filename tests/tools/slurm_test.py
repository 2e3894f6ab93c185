"""examples/slurm.sh with an srun and an scontrol that only note what they are asked: what goes back into the queue."""
import os
import pathlib
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SECONDS = 30
SRUN = """#!/usr/bin/env bash
printf '%s\\n' "$@" >"$NOTES/srun"
trap 'echo USR1 >"$NOTES/signal"; sleep 0.3; exit "$STATUS"' USR1
touch "$NOTES/started"
for ((i = 0; i < 500; ++i)); do
  [[ -n $UNTIL_SIGNAL ]] || exit "$STATUS"
  sleep 0.02
done
"""
SCONTROL = """#!/usr/bin/env bash
echo "$@" >"$NOTES/scontrol"
"""


class Slurm(unittest.TestCase):
    def job(self, status, until_signal=False, restarts=None):
        """Exit status of the script, and what was noted."""
        with tempfile.TemporaryDirectory() as folder:
            tools, notes = pathlib.Path(folder, "tools"), pathlib.Path(folder, "notes")
            tools.mkdir()
            notes.mkdir()
            for name, text in [("srun", SRUN), ("scontrol", SCONTROL)]:
                (tools / name).write_text(text)
                (tools / name).chmod(0o755)
            environment = {"PATH": f"{tools}:{os.environ['PATH']}", "NOTES": str(notes), "STATUS": str(status),
                           "UNTIL_SIGNAL": "yes" if until_signal else "", "SLURM_JOB_ID": "77",
                           "SLURM_CPUS_PER_TASK": "3"}
            if restarts is not None:
                environment["SLURM_RESTART_COUNT"] = str(restarts)
            script = subprocess.Popen([ROOT / "examples/slurm.sh", "my run.toml"], env=environment,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            if until_signal:
                deadline = time.monotonic() + SECONDS
                while not (notes / "started").exists() and time.monotonic() < deadline:
                    time.sleep(0.01)
                script.send_signal(10)
            self.output, self.errors = script.communicate(timeout=SECONDS)
            return script.returncode, {note.name: note.read_text() for note in notes.iterdir()}

    def test_command(self):
        _, notes = self.job(0)
        self.assertEqual(notes["srun"].splitlines(), [
            "--mpi=pmix", "--cpus-per-task=3", "build/release/strait", "train", "my run.toml", "--set",
            "output.run_dir=runs/slurm-77", "--set", "checkpoint.resume=auto"])

    def test_a_finished_run_stays_out_of_the_queue(self):
        status, notes = self.job(0)
        self.assertEqual((status, "scontrol" in notes), (0, False))

    def test_a_saved_run_goes_back(self):
        status, notes = self.job(0, until_signal=True)
        self.assertEqual(notes.get("signal"), "USR1\n", "the ranks must get the signal")
        self.assertEqual((status, notes.get("scontrol")), (0, "requeue 77\n"), self.errors)

    def test_what_may_pass_goes_back(self):
        for status in (4, 6, 137, 143):
            with self.subTest(status):
                self.assertEqual(self.job(status)[1].get("scontrol"), "requeue 77\n")

    def test_what_will_not_pass_stays_out(self):
        for status in (1, 2, 3, 5):
            for until_signal in (False, True):
                with self.subTest((status, until_signal)):
                    result, notes = self.job(status, until_signal)
                    self.assertEqual((result, "scontrol" in notes), (status, False))

    def test_restarts_end(self):
        self.assertEqual(self.job(4, restarts=19)[1].get("scontrol"), "requeue 77\n")
        status, notes = self.job(4, restarts=20)
        self.assertEqual((status, "scontrol" in notes), (4, False))
        self.assertIn("after 20 restarts", self.errors)

    def test_no_run_file(self):
        result = subprocess.run([ROOT / "examples/slurm.sh"], capture_output=True, text=True, check=False)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("sbatch examples/slurm.sh RUN.toml", result.stderr)


if __name__ == "__main__":
    unittest.main()
