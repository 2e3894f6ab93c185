"""What benchmarks on emulated clusters share: commands that must succeed, and those that run in a lab (bench/netlab)."""
import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def call(*command):
    """What the command prints; ends the script with what it said where it fails."""
    words = list(map(str, command))
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{' '.join(words)}: status {result.returncode}\n{result.stderr[-2000:]}")
    return result.stdout


def sets_of(keys):
    """The --set options of KEY=VALUE words."""
    return [word for key in keys for word in ("--set", key)]


def processor_ticks():
    """Of all processors since the machine started: all, and those that its host gave to others."""
    ticks = list(map(int, pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    return sum(ticks), ticks[7]


def cores_of_each(ranks):
    """Of a core, where so many ranks are more than the cores; None where each has one."""
    cores = len(os.sched_getaffinity(0))
    return cores / ranks if ranks > cores else None


@dataclasses.dataclass
class Lab:
    """Hosts of so many ranks, which share memory and a link of `rate`; with `inside` every rank has a link of `rate` of its
    own, and one of this rate into its host, and shares no memory. Where ranks are more than cores each has an equal share of one and
    no more, so that none computes while another one waits."""
    hosts: int
    ranks_per_host: int
    rate: str
    inside: str = ""
    cores_per_rank: float | None = None

    def __post_init__(self):
        self.cores_per_rank = self.cores_per_rank or cores_of_each(self.ranks)

    @property
    def ranks(self):
        return self.hosts * self.ranks_per_host

    def of_one_rank(self):
        """One rank as fast as each of these."""
        return Lab(1, 1, self.rate, cores_per_rank=self.cores_per_rank)

    def run(self, *command):
        ranks = (["--level", f"node:{self.ranks_per_host}:{self.inside}", "--nics"] if self.inside else
                 ["--ranks-per-host", self.ranks_per_host])
        share = ["--cores-per-rank", self.cores_per_rank] if self.cores_per_rank else []
        return call(ROOT / "bench/netlab", "--hosts", self.hosts, *ranks, *share, "--rate", self.rate, "--", *command)

    def train(self, strait, run_file, folder, keys, warm_up=1):
        """Trains in folder/run; what the steps behind the first ones, which warm up, wrote down, and the run's report."""
        run_dir, report = folder / "run", folder / "report"
        shutil.rmtree(run_dir, ignore_errors=True)
        self.run(strait, "train", run_file, "--json", report, *sets_of([*keys, f"output.run_dir={run_dir}"]))
        lines = (run_dir / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines][warm_up:], json.loads(report.read_text())

    def __str__(self):
        links = f" a rank, {self.inside} inside" if self.inside else ""
        cores = f", {self.cores_per_rank:g} of a core for each" if self.cores_per_rank else ""
        return f"{self.hosts} hosts x {self.ranks_per_host} ranks, {self.rate}{links}{cores}"


def spans(trace):
    """What a timeline says ran: rank -> spans of its streams, each a name, its stream (0: computing), begin and end."""
    ranks = {}
    for event in json.loads(pathlib.Path(trace).read_text())["traceEvents"]:
        if event["ph"] == "X":
            begin = event["ts"] / 1e6
            ranks.setdefault(event["pid"], []).append((event["name"], event["tid"], begin, begin + event["dur"] / 1e6))
    return ranks


def steps_of(folder):
    """Seconds of the steps of a run between its first, which warms up, and its last, which an evaluation follows."""
    lines = (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["seconds"] for line in lines][1:-1]


def spread(seconds):
    """The median, lowest and highest beside it."""
    return f"{statistics.median(seconds):.3f} ({min(seconds):.3f} to {max(seconds):.3f})"


def predictions(runs):
    """The median of what was predicted for the runs, by how much it differs from what each took, and the worst."""
    off = [one["predicted_seconds"] / one["seconds"] - 1 for one in runs]
    worst = f", {max(off, key=abs):+.0%}" if len(off) > 1 else ""
    return f"{statistics.median(one['predicted_seconds'] for one in runs):.3g} ({statistics.median(off):+.0%}{worst})"
