#!/usr/bin/env python3
"""What routing gains where every rank of a host has a link of its own: keys of a ring that crosses two hosts, over one of
their links or over several, whole or in pieces over proxies, or in groups of key heads that each leave a host over another rank.

One document a step on a ring of all ranks (sequence.engine = "even"), so narrow links that computing is small beside them.
Probe both kinds of links and the computing, write a cluster file with as many `links` as a host has ranks, simulate every
row, then train every row in turns. A crossing transfer is what one block of keys takes in forwards: the time in which all
of a layer arrive at the first rank of the second host, from its first receive on, divided by their number. The timelines of
the runs say it, and those of the simulations. Needs root (bench/netlab)."""
import argparse
import json
import pathlib
import re
import signal
import statistics
import sys
import tempfile

sys.dont_write_bytecode = True
from lab import ROOT, Lab, call, processor_ticks, sets_of, spans, spread  # noqa: E402

EXAMPLE = ROOT / "examples/zeppelin.toml"
ROWS = ["off", "whole:2", "2", "rotate:2", "whole:4", "4", "rotate:4", "both:4"]  # values of sequence.routing
LAYERS = 2
KEYS = re.compile(r"^keys\.\d+\.\S+ = receive")  # of one document all are of its ring


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder, self.cluster = options, folder, folder / "cluster.toml"
        self.lab = Lab(options.hosts, options.ranks_per_host, options.rate, options.inside)

    def keys(self):
        tokens = self.options.tokens
        shape = {"layers": LAYERS, "width": 64, "ffn_width": 64, "heads": 4, "kv_heads": 4, "head_width": self.options.head_width,
                 "context": tokens}
        return [f"mesh.axes.sequence={self.lab.ranks}", f"train.global_batch_tokens={tokens}", "sequence.engine=even",
                "sequence.remap=none", f"data.path=synthetic:lengths/corpus/scale=1e5/longest={tokens}",
                f"train.steps={1 + self.options.steps}", "evaluation.batches=1",
                *(f"model.shape.{name}={value}" for name, value in shape.items())]

    def probe(self):
        """The cluster file: rates of all ranks at once, latencies and rates of the links of both kinds."""
        found = self.folder / "probed.toml"

        def link(lab):
            lab.run(self.options.strait, "probe", EXAMPLE, *sets_of([*self.keys(), f"mesh.axes.sequence={lab.ranks}"]), "-o", found)
            level = re.search(r'\{ name = "world", size = 0, (.*?), links = 1(.*?) \}', found.read_text())
            return level[1], level[2]

        between, share = link(Lab(2, 1, self.options.rate))
        inside, share_inside = link(Lab(self.lab.ranks, 1, self.options.inside))
        ranks = self.options.ranks_per_host
        levels = (f'levels = [\n  {{ name = "node", size = {ranks}, {inside}, links = 1{share_inside} }},\n'
                  f'  {{ name = "world", size = 0, {between}, links = {ranks}{share} }},\n]')
        self.cluster.write_text(re.sub(r"levels = \[.*?\n\]", levels, found.read_text(), flags=re.DOTALL))
        return self.cluster.read_text()

    def row_keys(self, row):
        return [*self.keys(), f"sequence.routing={row}", f"cluster.file={self.cluster}"]

    def simulate(self, row):
        report, trace = self.folder / "simulation", self.folder / "trace"
        call(self.options.strait, "simulate", EXAMPLE, "--ranks", self.lab.ranks, "--json", report, "--trace", trace,
             *sets_of(self.row_keys(row)))
        figures = json.loads(report.read_text())
        return {"step": figures["seconds_per_step"], "crossing": statistics.fmean(self.crossings(trace)),
                "bytes": {level["level"]: level["payload_bytes"] for level in figures["bytes_per_step"]}}

    def crossings(self, trace):
        """Of each forward of a layer: seconds for each of its blocks of keys."""
        parts = {}  # of blocks: when each was received, in one layer after another
        for name, _, begin, end in sorted(spans(trace)[self.options.ranks_per_host], key=lambda span: span[-1]):
            if found := KEYS.search(name):
                parts.setdefault(found[0], []).append((begin, end))
        layers = [list(layer) for layer in zip(*parts.values())]
        forwards = [layer for at, layer in enumerate(layers) if at % (2 * LAYERS) < LAYERS]
        return [(max(end for _, end in layer) - min(begin for begin, _ in layer)) / (self.lab.ranks - 1) for layer in forwards]

    def train(self, row):
        ticks, stolen = processor_ticks()
        lines, figures = self.lab.train(self.options.strait, EXAMPLE, self.folder,
                                        [*self.row_keys(row), "sequence.plan=true",
                                         f"output.timeline_steps={1 + self.options.steps}"])
        later, stolen_later = processor_ticks()
        timeline = self.folder / f"run/timeline-rank-{self.options.ranks_per_host:05}.json"
        return {"steps": [line["seconds"] for line in lines], "crossings": self.crossings(timeline)[LAYERS:],
                "routing": lines[0]["sequence_plan"]["routing"], "exposed_share": figures["exposed_communication_share"],
                "bytes": {level["level"]: level["bytes"] for level in lines[0]["bytes_per_level"]},
                "compute": statistics.fmean(line["compute_seconds"] for line in lines),
                "losses": [line["loss"] for line in lines], "stolen_share": (stolen_later - stolen) / (later - ticks)}

    def predict(self):
        return {"lab": str(self.lab), "tokens": self.options.tokens, "head_width": self.options.head_width, "cluster": self.probe(),
                "predicted": {row: self.simulate(row) for row in ROWS}, "measured": {}}

    def measure(self, record):
        """One more run of each row."""
        self.cluster.write_text(record["cluster"])
        for row in self.options.rows:
            if row not in record["predicted"]:
                record["predicted"][row] = self.simulate(row)
            self.keep(record)
            record["measured"].setdefault(row, []).append(self.train(row))
        self.keep(record)

    def keep(self, record):
        if self.options.json:
            self.options.json.write_text(json.dumps(record, indent=1) + "\n")


def table(record):
    def predicted_beside(mine, predicted):
        return f"{predicted:.3f} ({predicted / mine - 1:+.0%})"

    lines = [f"`bench/routing.py`: {record['lab']}, one document of {record['tokens']} tokens a step; medians, lowest and highest.", "",
             "| routing | pieces | crossing transfer, s | gain | predicted, s | gain predicted | step, s | gain | predicted, s | "
             "gain predicted | waits for links | MB per step between hosts, inside | stolen |", "|---" * 13 + "|"]
    first = None
    for row, runs in sorted(record["measured"].items(), key=lambda item: ROWS.index(item[0])):
        said = record["predicted"][row]
        all_crossings = [one for run in runs for one in run["crossings"]]
        all_steps = [one for run in runs for one in run["steps"]]
        crossing, step = statistics.median(all_crossings), statistics.median(all_steps)
        first = first or (crossing, step, said)
        moved = runs[0]["bytes"]
        cells = [row, runs[0]["routing"]["pieces"], spread(all_crossings), f"{first[0] / crossing:.2f}",
                 predicted_beside(crossing, said["crossing"]), f"{first[2]['crossing'] / said['crossing']:.2f}", spread(all_steps),
                 f"{first[1] / step:.2f}", predicted_beside(step, said["step"]), f"{first[2]['step'] / said['step']:.2f}",
                 f"{runs[0]['exposed_share']:.0%}", f"{moved['world'] / 1e6:.1f}, {moved['node'] / 1e6:.1f}",
                 f"{max(run['stolen_share'] for run in runs):.0%}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strait", type=pathlib.Path, default=ROOT / "build/release/strait")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, default=4)
    parser.add_argument("--rate", default="25mbit", help="of the link of each rank to other hosts")
    parser.add_argument("--inside", default="400mbit", help="of its link to those of its host")
    parser.add_argument("--tokens", type=int, default=2048, help="of the document")
    parser.add_argument("--head-width", type=int, default=64, help="of 4 heads: makes keys wide beside what is computed")
    parser.add_argument("--steps", type=int, default=2, help="that are timed")
    parser.add_argument("--repeats", type=int, default=1, help="of each run; medians are shown")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--json", type=pathlib.Path, help="record that is read, with its cluster file and predictions, and added to")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the lab too
    known = options.json and options.json.exists()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(options, pathlib.Path(name))
        record = json.loads(options.json.read_text()) if known else bench.predict()
        for _ in range(options.repeats):
            bench.measure(record)
    print(table(record), end="")


main()
