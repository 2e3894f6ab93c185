"""What the scripts that compare losses share: one run of `strait train` that may be stopped and resumed, the folder it
lies in, and a record whose figures are not measured again."""
import contextlib
import json
import pathlib
import signal
import subprocess
import sys
import tempfile


def train(command, seconds=None):
    """The report of a run that is whole, or None where it was stopped after `seconds`."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        words = list(map(str, [*command, "--json", report]))
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            _, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)  # saves, to be resumed
            _, errors = process.communicate()
        if process.returncode != 0:
            sys.exit(f"{' '.join(words)}: status {process.returncode}\n{errors[-2000:]}")
        figures = json.loads(report.read_text())
    return figures if figures["stopped_by"] == "steps" and figures["validation_loss"] is not None else None


def run_folder(runs, *names):
    """A folder under `runs`, where a run lasts that was stopped, or without it one that does not."""
    if not runs:
        return tempfile.TemporaryDirectory()
    folder = runs.resolve() / "-".join(map(str, names)).replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    return contextlib.nullcontext(folder)


class Record:
    """The rows of a JSON file, written again with every row that is added."""

    def __init__(self, path, what):
        self.path, self.what = path, what
        self.rows = json.loads(path.read_text())["rows"] if path.exists() else []

    def add(self, row):
        self.rows.append(row)
        self.path.write_text(json.dumps({"what": self.what, "rows": self.rows}, indent=1) + "\n")


def add_options(parser, root):
    """Arguments that these scripts have in common."""
    parser.add_argument("text", type=pathlib.Path, help="Tiny Shakespeare, or any text of 1 MB or so")
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--strait", type=pathlib.Path, default=root / "build/release/strait")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, help="stop the run after so many, and end; needs --runs")
    parser.add_argument("--runs", type=pathlib.Path, help="folder in which runs lie that were stopped")
