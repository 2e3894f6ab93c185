"""What benchmarks on emulated clusters share: commands that must succeed, and those that run in a lab (bench/netlab)."""
import dataclasses
import json
import pathlib
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


@dataclasses.dataclass
class Lab:
    hosts: int
    ranks_per_host: int
    rate: str

    @property
    def ranks(self):
        return self.hosts * self.ranks_per_host

    def run(self, *command):
        return call(ROOT / "bench/netlab", "--hosts", self.hosts, "--ranks-per-host", self.ranks_per_host, "--rate", self.rate,
                    "--", *command)

    def __str__(self):
        return f"{self.hosts} hosts x {self.ranks_per_host} ranks, {self.rate}"


def steps_of(folder):
    """Seconds of the steps of a run between its first, which warms up, and its last, which an evaluation follows."""
    lines = (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["seconds"] for line in lines][1:-1]


def spread(seconds):
    """The median, lowest and highest beside it."""
    return f"{statistics.median(seconds):.3f} ({min(seconds):.3f} to {max(seconds):.3f})"
