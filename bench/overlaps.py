#!/usr/bin/env python3
"""What tensor.overlap hides, and weak scaling from one rank to two and four, on emulated clusters.

A GPT of 50M parameters, 512 tokens per rank and step, one core per rank where there are as many. For each grid: find the
rate of the links at which the sums of a step take half as long as its backward computes, probe the lab at that rate, then
train a few steps with no overlap, with each alone and with all; with rows split over x ("x rows"), whole exchanges of rows
and those by shards (tensor.tiles), with and without "oar", beside whole exchanges over links without a limit. Beside them
one rank, as many ranks that share nothing but the machine's memory and caches (local steps without a round), and for x what
`strait plan` takes for the fastest way of two ranks at this rate, with and without codecs, data parallelism with and without
them, a round of Streaming DiLoCo (the mean of all its steps), and PyTorch's tensor parallel (torch.distributed.tensor) over Gloo on the same links. Needs root (bench/netlab).
"""
import argparse
import json
import pathlib
import signal
import statistics
import sys
import tempfile

sys.dont_write_bytecode = True
from lab import ROOT, Lab, call, processor_ticks, sets_of, spread, steps_of  # noqa: E402

CONTEXT, SEQUENCES = 128, 4  # of a rank and step
WORDS = ["oar", "ors", "oag"]
PEER = "PyTorch tensor parallel"
EXACT = 'plan.search=["mesh", "placement", "pipeline", "sequence", "micro_batch_size", "recompute"]'
CODED = ["placement.codecs.gradients=int4/128", "placement.codecs.update=int8/2048"]
DATA_PARALLEL = {"ddp": ["placement.preset=ddp"], "zero2 in int4 and int8": ["placement.preset=zero2", *CODED]}
ROUND = 30  # steps of Streaming DiLoCo, its paper's
LOCAL = ["placement.preset=ddp", "sync.policy=streaming-diloco", f"sync.rounds.period_steps={ROUND}"]
PICKS = {"planner's pick": [], "planner's pick without codecs": [EXACT]}
RUN_FILE = """name = "overlaps"
[runtime]
threads_per_rank = 1
[model]
preset = "nano-char"
shape = {{ layers = 8, heads = 12, kv_heads = 12, width = 720, ffn_width = 2880, context = {context}, bias = true, tied_head = false, dropout = 0.0 }}
[data]
path = "{text}"
tokenizer = "byte"
[train]
steps = {steps}
precision = "fp32"
clip_norm = 0.0
[evaluation]
batches = 1
every_steps = 0
[checkpoint]
asynchronous = false
"""


def overlap_key(words):
    return "tensor.overlap=[" + ", ".join(f'"{word}"' for word in words) + "]"


class Grid:
    """A mesh, the words of tensor.overlap that act on it, and the share of its bytes between hosts that are sums. Words
    without effect have to stand in every list."""

    def __init__(self, ranks_per_host, axes, words, sums):
        self.ranks_per_host, self.axes, self.words, self.sums = ranks_per_host, axes, words, sums
        self.idle = [word for word in WORDS if word not in words]

    def keys(self):
        axes = [f"mesh.axes.{axis}={size}" for axis, size in self.axes.items()]
        depth = self.axes.get("z", 1)
        return [*axes, "mesh.axes.data=1", f"placement.preset={'zero3' if depth > 1 else 'ddp'}"]

    def rows(self):
        """The first without any overlap."""
        rows = {"none": self.idle}
        if len(self.words) > 1:
            rows |= {word: [*self.idle, word] for word in self.words}
        rows |= {" + ".join(self.words): [*self.idle, *self.words]}
        return {row: [overlap_key(words)] for row, words in rows.items()}

    def __str__(self):
        return " x ".join(f"{axis} = {size}" for axis, size in self.axes.items())


class SplitRows(Grid):
    """Ranks of x split the rows between products: exchanges of rows, whole and by shards, on links where they take as long as
    the computing, three times half a backward."""

    def __init__(self):
        super().__init__(1, {"x": 2}, ["oar"], 1 / 3)

    def keys(self):
        return [*super().keys(), "tensor.sequence_parallel=true"]

    def rows(self):
        return {", ".join([" + ".join(words) or "none", *([] if tiles == "off" else [tiles])]): [overlap_key([*self.idle, *words]), f"tensor.tiles={tiles}"]
                for words in ([], ["oar"]) for tiles in ("off", "on:1", "on:2", "on:4", "auto")}


# Of zero3 a third are sums: weights are gathered twice, gradients summed once.
GRIDS = {"x": Grid(1, {"x": 2}, ["oar"], 1.0), "x rows": SplitRows(), "z": Grid(1, {"z": 2}, ["ors", "oag"], 1 / 3),
         "x z": Grid(2, {"x": 2, "z": 2}, WORDS, 1 / 3)}


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.run_file, self.cluster = folder / "run.toml", folder / "cluster.toml"
        self.run_file.write_text(RUN_FILE.format(context=CONTEXT, text=options.text.resolve(), steps=2 + options.steps))

    def keys(self, ranks, keys):
        return sets_of([*keys, f"train.global_batch_size={SEQUENCES * ranks}", f"cluster.file={self.cluster}"])

    def probe(self, lab):
        lab.run(self.options.strait, "probe", self.run_file, "-o", self.cluster)

    def simulate(self, ranks, keys):
        report = self.folder / "simulation"
        call(self.options.strait, "simulate", self.run_file, "--ranks", ranks, "--json", report, *self.keys(ranks, keys))
        return json.loads(report.read_text())

    def rate_of(self, grid):
        """At which the sums of a step between the hosts take half as long as its backward, two thirds of the computing."""
        lab = Lab(2, grid.ranks_per_host, "none")
        self.probe(lab)
        found = self.simulate(lab.ranks, grid.keys())
        sent = {row["level"]: row["payload_bytes"] for row in found["bytes_per_step"]}["world"] / 2  # by one host
        return f"{sent * grid.sums * 8 / (found['compute_seconds'] / 3) / 1e6:.0f}mbit"

    def plan(self, lab, name, keys):
        """The run file of the planner's first candidate, and its line of the planner's table."""
        best = self.folder / f"{name}.toml"
        table = call(self.options.strait, "plan", self.run_file, "--ranks", lab.ranks, "-o", best, *self.keys(lab.ranks, keys))
        return best, next(line for line in table.splitlines() if line.split()[:1] == ["1"])

    def train_round(self, lab):
        """Steps with and without a border, as the mean of one round."""
        run = self.train(lab, [*LOCAL, f"train.steps={2 + ROUND}"])
        return run | {"seconds": [statistics.mean(run["seconds"])]}

    def train(self, lab, keys, run_file=None):
        report, run_dir = self.folder / "report", self.folder / "run"
        call("rm", "-rf", run_dir)
        ticks, stolen = processor_ticks()
        lab.run(self.options.strait, "train", run_file or self.run_file, "--json", report, "--set", f"output.run_dir={run_dir}",
                *self.keys(lab.ranks, keys))
        later, stolen_later = processor_ticks()
        figures = json.loads(report.read_text())
        return {"seconds": steps_of(run_dir), "predicted_seconds": figures["predicted_seconds_per_step"],
                "exposed_share": figures["exposed_communication_share"], "loss": figures["train_loss"],
                "stolen_share": (stolen_later - stolen) / (later - ticks)}

    def train_peer(self, lab):
        metrics = self.folder / "peer.jsonl"
        metrics.unlink(missing_ok=True)
        output = lab.run("env", f"OPENBLAS_CORETYPE={self.options.blas}", self.options.peer_python,
                         ROOT / "bench/peers/tensor_torch.py", "--context", CONTEXT, "--batch", SEQUENCES * lab.ranks,
                         "--steps", 2 + self.options.steps, "--metrics", metrics)
        seconds = [json.loads(line)["seconds"] for line in metrics.read_text().splitlines()]
        return {"seconds": seconds[1:-1], "version": output.strip().splitlines()[-1]}

    def measure(self, name):
        """All rows of a grid, one after another."""
        grid = GRIDS[name]
        lab = Lab(2, grid.ranks_per_host, self.options.rate or self.rate_of(grid))
        self.probe(lab)
        place = {"lab": str(lab), "grid": str(grid), "cluster": self.cluster.read_text(), "rows": {}}
        picks = {pick: self.plan(lab, pick, keys) for pick, keys in PICKS.items()} if name == "x" else {}
        for _ in range(self.options.turns):
            join(place, "one", self.train(lab.of_one_rank(), ["placement.preset=ddp"]))
            join(place, "apart", self.train(lab, ["placement.preset=ddp", "sync.policy=diloco", "sync.rounds.period_steps=1000"]))
            if name == "x rows":
                join(place, "free", self.train(Lab(2, 1, "none"), [*grid.keys(), "tensor.tiles=off"]))
            for row, keys in grid.rows().items():
                join(place["rows"], row, self.train(lab, [*grid.keys(), *keys]))
            for pick, (best, line) in picks.items():
                join(place["rows"], pick, {**self.train(lab, [], best), "line": line})
            if name == "x":
                for row, keys in DATA_PARALLEL.items():
                    join(place["rows"], row, self.train(lab, keys))
                join(place["rows"], "Streaming DiLoCo", self.train_round(lab))
                if self.options.peer_python:
                    join(place["rows"], PEER, self.train_peer(lab))
        return place


def join(rows, name, run):
    """Turns of a row are one sample of seconds; its shares are means, its loss is the same in each."""
    print(name, json.dumps(run), file=sys.stderr, flush=True)
    before = rows.setdefault(name, {"runs": []})
    before["runs"].append(run)
    before |= run | {"seconds": [second for turn in before["runs"] for second in turn["seconds"]]}
    before |= {share: statistics.mean(turn[share] for turn in before["runs"]) for share in ("exposed_share", "stolen_share") if share in run}


def turns_of(row, beside):
    """Medians of the turns of a row over those of another, turn by turn."""
    return [statistics.median(b["seconds"]) / statistics.median(a["seconds"]) for a, b in zip(row["runs"], beside["runs"])]


def print_table(place):
    rows = place["rows"]
    one = statistics.median(place["one"]["seconds"])
    apart = statistics.median(place["apart"]["seconds"])
    base = rows["none"]
    print(f"\n{place['grid']}, {place['lab']}\n\n| overlap | seconds per step | predicted | gained | gain predicted | of it | "
          "waits for links | of one rank's speed | of ranks apart | stolen |\n|---|---|---|---|---|---|---|---|---|---|")
    for name, key in (("one rank", "one"), ("ranks apart", "apart")):
        print(f"| {name} | {spread(place[key]['seconds'])} | {place[key]['predicted_seconds']:.3f} | | | | | "
              f"{one / statistics.median(place[key]['seconds']):.0%} | | {place[key]['stolen_share']:.0%} |")
    for name, row in rows.items():
        mine = statistics.median(row["seconds"])
        if "predicted_seconds" not in row:
            print(f"| {name} ({row['version']}) | {spread(row['seconds'])} | | | | | | {one / mine:.0%} | {apart / mine:.0%} | |")
            continue
        predicted = row["predicted_seconds"]
        gains = [statistics.median(base["seconds"]) - mine, base["predicted_seconds"] - predicted]
        share = f"{gains[0] / gains[1]:.0%}" if gains[1] > 1e-3 * predicted else ""
        name += f" ({' '.join(row['line'].split())})" if "line" in row else ""
        print(f"| {name} | {spread(row['seconds'])} | {predicted:.3f} ({predicted / mine - 1:+.0%}) | {gains[0]:.3f} | {gains[1]:.3f} | "
              f"{share} | {row['exposed_share']:.0%} | {one / mine:.0%} | {apart / mine:.0%} | {row['stolen_share']:.0%} |", flush=True)
    if "free" in place:
        free = statistics.median(place["free"]["seconds"])
        print(f"\nOver links without a limit {spread(place['free']['seconds'])}. Effective communication, of that of whole exchanges:")
        for base in ("none", "oar"):
            beyond = statistics.median(rows[base]["seconds"]) - free
            print(f"* {base}: " + ", ".join(f"{name} {(statistics.median(row['seconds']) - free) / beyond:.0%}"
                                            for name, row in rows.items() if name.startswith(base)))
    if len(place["one"]["runs"]) > 1:
        print("\nTurn by turn, of one rank's speed and of that of ranks apart:")
        for name, row in rows.items():
            print(f"* {name}: " + "; ".join(", ".join(f"{share:.0%}" for share in turns_of(row, place[key])) for key in ("one", "apart")))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=pathlib.Path, help="any text of 1 MB or so")
    parser.add_argument("--strait", type=pathlib.Path, default=ROOT / "build/release/strait")
    parser.add_argument("--grids", nargs="+", choices=GRIDS, default=list(GRIDS))
    parser.add_argument("--rate", help="of the links, instead of the one that follows the computing; e.g. 1gbit")
    parser.add_argument("--steps", type=int, default=6, help="that are timed, in a turn")
    parser.add_argument("--turns", type=int, default=1, help="of all rows, one after another: processors change speed")
    parser.add_argument("--peer-python", help="with the PyTorch (2.5 or newer) of the peer; without it there is none")
    parser.add_argument("--blas", default="SKYLAKEX", help="processor that the peer's OpenBLAS takes this one for")
    parser.add_argument("--json", type=pathlib.Path, help="record that is read, added to and written after each grid")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the lab too
    record = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(options, pathlib.Path(name))
        for grid in options.grids:
            record[grid] = bench.measure(grid)
            if options.json:
                options.json.write_text(json.dumps(record, indent=1) + "\n")
    for place in record.values():
        print_table(place)


main()
