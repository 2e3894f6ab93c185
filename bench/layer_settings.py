#!/usr/bin/env python3
"""Loss at equal tokens against bytes: one setting for all layers, and one per layer as L-GreCo chooses it.

Trains nanoGPT's character model with a compressed all-reduce, the same global batches and initial weights in every line.
Every line of settings per layer is compared with the uniform setting that it starts from, seed by seed: how many times
fewer bytes, and how much more loss. Figures that OUTPUT already holds are not measured again. Prints tables; OUTPUT
holds all figures as JSON.
"""
import argparse
import dataclasses
import pathlib
import statistics
import sys

sys.dont_write_bytecode = True
import quality_runs  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS = 2000
PLAIN = "no codec"


@dataclasses.dataclass(frozen=True)
class Line:
    """A codec of the all-reduce, and the line that it is compared with; alpha 0: the same setting everywhere."""
    codec: str = "none"
    against: str = ""
    alpha: float = 0.0


def family(*codecs, alphas):
    """A uniform line of each codec, and one per alpha that starts from it."""
    lines = {}
    for codec in codecs:
        lines[codec] = Line(codec, PLAIN)
        for alpha in alphas:
            lines[f"{codec}, per layer, alpha {alpha:g}"] = Line(codec, codec, alpha)
    return lines


LINES = {PLAIN: Line(),
         **family("qsgd2/512+ef", "qsgd3/512+ef", "qsgd4/512", alphas=(1, 2)),
         **family("topk/0.01+ef", "topk/0.05+ef", alphas=(1, 1.5)),
         **family("powersgd/4+ef", "powersgd/8+ef", alphas=(1,))}


def keys_of(line, options):
    keys = [f"compression.codec={line.codec}"]
    if line.alpha:
        keys += ["compression.adapt=lgreco", f"compression.adapt_every_steps={options.every}",
                 f"lgreco.start_step={options.every}", f"lgreco.alpha={line.alpha:g}"]
    return keys


class Runs:
    """Measures what the record lacks. A cell is a line and a seed."""

    def __init__(self, options, record):
        self.options, self.record = options, record

    def find(self, name, seed):
        wanted = (self.options.ranks, self.options.steps, seed, keys_of(LINES[name], self.options))
        return next((row for row in self.record.rows
                     if (row["ranks"], row["steps"], row["seed"], row["keys"]) == wanted), None)

    def measure(self, name, seed):
        """The cell's row, or None where --seconds ended it."""
        row = self.find(name, seed)
        if row:
            return row
        keys = keys_of(LINES[name], self.options)
        with quality_runs.run_folder(self.options.runs, name.replace("/", "-"), self.options.steps, seed) as folder:
            figures = quality_runs.train(self.command([f"output.run_dir={folder}/run", f"seed={seed}", *keys]),
                                         self.options.seconds)
        if figures is None:
            return None
        cell = {"line": name, "ranks": self.options.ranks, "steps": self.options.steps, "seed": seed, "keys": keys}
        self.record.add(cell | figures_of(figures))
        return self.record.rows[-1]

    def command(self, sets):
        sets = [f"data.path={self.options.text.resolve()}", "placement.preset=ddp", "runtime.threads_per_rank=1",
                "evaluation.every_steps=0", "checkpoint.resume=auto", f"train.steps={self.options.steps}", *sets]
        return [self.options.strait, "train", ROOT / "examples/shakespeare_char.toml", "--ranks", self.options.ranks,
                *(word for one in sets for word in ("--set", one))]


def figures_of(report):
    """Bytes are the mean of the steps of the process that ended the run: a stopped one counts from there on."""
    sent = sum(row["payload_bytes"] + row["metadata_bytes"] for row in report["bytes_per_step"]["runtime"])
    kept = ("validation_loss", "train_loss", "tokens", "parameters", "parameter_hash", "commit", "steps_this_process")
    layers = (report["compression"] or {"layers": []})["layers"]
    return ({name: report[name] for name in kept} | {"bytes_per_step": sent} |
            {"settings": {layer["name"]: layer["setting"] for layer in layers}})


def spread(values, form):
    """The mean and each value."""
    each = ", ".join(format(value, form) for value in values)
    return f"{statistics.mean(values):{form}} ({each})" if values else ""


def print_results(runs, options):
    print("| line | KB per step | validation loss, by seed | against | fewer bytes | more loss: mean (each seed) |")
    print("|---|---|---|---|---|---|")
    for name in options.lines:
        line = LINES[name]
        rows = [row for row in (runs.find(name, seed) for seed in options.seeds) if row]
        if not rows:
            continue
        losses = ", ".join(f"{row['validation_loss']:.4f}" for row in rows)
        pairs = [(row, runs.find(line.against, row["seed"])) for row in rows] if line.against else []
        pairs = [(row, base) for row, base in pairs if base]
        fewer = spread([base["bytes_per_step"] / row["bytes_per_step"] for row, base in pairs], ".2f")
        more = spread([row["validation_loss"] - base["validation_loss"] for row, base in pairs], "+.4f")
        sent = statistics.mean(row["bytes_per_step"] for row in rows) / 1e3
        print(f"| {name} | {sent:.1f} | {losses} | {line.against} | {fewer} | {more} |")


def print_settings(runs, options):
    print("\n| line | settings of layers after the last choice, first seed |\n|---|---|")
    for name in options.lines:
        row = runs.find(name, options.seeds[0])
        if not row or not LINES[name].alpha:
            continue
        counts = {}
        for setting in row["settings"].values():
            counts[setting] = counts.get(setting, 0) + 1
        print(f"| {name} | {', '.join(f'{count} x {setting}' for setting, count in sorted(counts.items()))} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quality_runs.add_options(parser, ROOT)
    parser.add_argument("--lines", nargs="+", default=list(LINES), choices=list(LINES))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--every", type=int, default=200, help="steps before the first choice, and between two")
    parser.add_argument("--only-print", action="store_true", help="measure nothing")
    options = parser.parse_args()
    what = "examples/shakespeare_char.toml: loss over the whole validation part at equal tokens, against bytes"
    runs = Runs(options, quality_runs.Record(options.output, what))
    if not options.only_print:
        all(runs.measure(name, seed) for seed in options.seeds for name in options.lines)
    print_results(runs, options)
    print_settings(runs, options)


main()
