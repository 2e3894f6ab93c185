#!/usr/bin/env python3
"""How much of its transfers a ring hides: hosts of one rank share every sequence, and where a rank has so many times the
tokens whose attention takes as long as moving their keys, a step is compared with one over links that limit nothing.

For each number of ranks: probe how fast a rank attends, then train over links of a rate that follows, in turns with free
ones. Transfers are the hops of keys in forwards and backwards and of sums of their gradients, three times ranks - 1 in a
layer, at the rate of the link; what is not hidden is the time by which the step is longer. Needs root (bench/netlab)."""
import argparse
import json
import pathlib
import signal
import statistics
import sys
import tempfile
import tomllib

sys.dont_write_bytecode = True
from lab import ROOT, Lab, sets_of, spread  # noqa: E402

EXAMPLE = ROOT / "examples/llama_tiny.toml"
LAYERS, WIDTH, FREE, WARM_UP = 2, 256, "10gbit", 1


def keys(options, ranks):
    shape = {"layers": LAYERS, "width": WIDTH, "ffn_width": WIDTH, "heads": 4, "kv_heads": 4, "context": ranks * options.tokens}
    return [f"mesh.axes.sequence={ranks}", f"sequence.engine={options.engine}", f"data.path={options.text.resolve()}",
            "train.global_batch_size=1", f"train.steps={WARM_UP + options.steps}", "evaluation.batches=1", "evaluation.every_steps=0",
            "placement.preset=ddp", *(f"model.shape.{name}={value}" for name, value in shape.items())]


def probed(options, lab, folder):
    """The cluster file of a lab, which is probed once."""
    file = folder / f"{lab.rate}.toml"
    if not file.exists():
        lab.run(options.strait, "probe", EXAMPLE, *sets_of(keys(options, lab.ranks)), "-o", file)
    return file


def attention_rate(options, ranks, folder):
    """Of a rank while all attend, operations per second in fp32."""
    file = probed(options, Lab(ranks, 1, "1gbit"), folder)
    return tomllib.loads(file.read_text())["rates"]["fp32_attention_flops_per_second"]


def train(options, ranks, rate, folder):
    lab = Lab(ranks, 1, rate)
    words = [*keys(options, ranks), f"cluster.file={probed(options, lab, folder)}"]
    lines, report = lab.train(options.strait, EXAMPLE, folder, words, WARM_UP)
    return [line["seconds"] for line in lines], report["predicted_seconds_per_step"]


def measure(options, ranks, times, flops, folder):
    rate = f"{8 * 4 * flops * times / options.tokens / 1e6:.0f}mbit"
    runs, predicted = {rate: [], FREE: []}, {}
    for _ in range(options.turns):
        for one, seconds in runs.items():
            took, predicted[one] = train(options, ranks, one, folder)
            seconds += took
    transfers = 3 * (ranks - 1) * LAYERS * options.tokens * 2 * WIDTH * 4 * 8 / (float(rate[:-4]) * 1e6)
    longer = statistics.median(runs[rate]) - statistics.median(runs[FREE])
    return {"ranks": ranks, "times": times, "rate": rate, "seconds": runs[rate], "free": runs[FREE], "transfers": transfers,
            "hidden": 1 - longer / transfers, "predicted": predicted[rate]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=pathlib.Path, help="any text of 1 MB or so")
    parser.add_argument("--strait", type=pathlib.Path, default=ROOT / "build/release/strait")
    parser.add_argument("--engine", default="ring", help="sequence.engine")
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--tokens", type=int, default=4096, help="of a rank")
    parser.add_argument("--times", nargs="+", type=float, default=[2.0], help="the tokens that hide a transfer")
    parser.add_argument("--steps", type=int, default=3, help="that are timed, in a turn")
    parser.add_argument("--turns", type=int, default=1, help="of limited and free links")
    parser.add_argument("--json", type=pathlib.Path, help="writes the figures there")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the lab too
    rows = []
    print("| ranks | tokens over those that hide a transfer | links | seconds per step | over free links | transfers, s | hidden | "
          "predicted step |\n|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as name:
        for ranks in options.ranks:
            folder = pathlib.Path(name, str(ranks))
            folder.mkdir()
            flops = attention_rate(options, ranks, folder)
            for times in options.times:
                row = measure(options, ranks, times, flops, folder)
                rows.append(row)
                off = row["predicted"] / statistics.median(row["seconds"]) - 1
                print(f"| {ranks} | {times:g} | {row['rate']} | {spread(row['seconds'])} | {spread(row['free'])} | {row['transfers']:.3f} | "
                      f"{row['hidden']:.0%} | {row['predicted']:.3f} ({off:+.0%}) |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


main()
