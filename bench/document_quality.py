#!/usr/bin/env python3
"""Loss curves of batches of whole documents on four ranks that share a batch by plan, against one rank.

Trains one small Llama on the speeches of a text with the same batches and initial weights, and compares the loss of every
step with that of one rank: the sums are the same, in another order. Figures that OUTPUT already holds are not measured
again. Prints a table; OUTPUT holds all losses as JSON.
"""
import argparse
import json
import pathlib
import statistics
import sys

sys.dont_write_bytecode = True
import quality_runs  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
ONE_RANK = "one rank"
SHARED = ("placement.preset=ddp", "mesh.axes.sequence=4")
LINES = {  # ranks, keys
    ONE_RANK: (1, ("runtime.threads_per_rank=1",)),
    "zeppelin": (4, (*SHARED, "sequence.engine=zeppelin")),
    "zeppelin, remapped": (4, (*SHARED, "sequence.engine=zeppelin", "sequence.remap=qkv")),
    "even": (4, (*SHARED, "sequence.engine=even", "sequence.remap=none")),
}
RUN_FILE = """name = "document-quality"
[model]
family = "llama"
shape = { layers = 2, heads = 4, kv_heads = 2, width = 96, ffn_width = 256, context = 512, tied_head = true }
[train]
global_batch_tokens = 1024
clip_norm = 1.0
[optimizer]
learning_rate = 1e-3
minimum_learning_rate = 1e-4
warmup_steps = 50
[evaluation]
every_steps = 0
batches = 32
[checkpoint]
asynchronous = false
resume = "auto"
[cluster]
levels = [{ name = "node", size = 2, gb_per_second = 10.0, latency_microseconds = 1.0 },
          { name = "world", size = 0, gb_per_second = 1.0, latency_microseconds = 10.0 }]
"""


def train(options, line, precision, seed, folder):
    """Losses by step and at the end, or None when the run was stopped before its end."""
    ranks, keys = LINES[line]
    run_file = folder / "run.toml"
    run_file.write_text(RUN_FILE)
    sets = [f"data.path={options.text.resolve()}", "data.tokenizer=char", r"data.document_separator=\n\n", f"seed={seed}",
            f"train.precision={precision}", f"train.steps={options.steps}", f"output.run_dir={folder}/run", *keys]
    command = [options.strait, "train", run_file, "--ranks", ranks, *(word for one in sets for word in ("--set", one))]
    figures = quality_runs.train(command, options.seconds)
    if figures is None:
        return None
    steps = [json.loads(text)["loss"] for text in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return {"line": line, "precision": precision, "seed": seed, "steps": options.steps, "losses": steps,
            "validation_loss": figures["validation_loss"], "parameters": figures["parameters"],
            "tokens": figures["tokens"], "commit": figures["commit"]}


def differences(row, other):
    """Largest of single steps and of means of five steps, and at the end the validation loss."""
    each = [a - b for a, b in zip(row["losses"], other["losses"], strict=True)]
    fives = [statistics.mean(each[at:at + 5]) for at in range(0, len(each) - 4, 5)]
    return max(map(abs, each)), max(map(abs, fives)), row["validation_loss"] - other["validation_loss"]


def print_table(rows):
    print("| line | precision | seed | validation loss | largest difference of a step | of five steps' mean | at the end |")
    print("|---|---|---|---|---|---|---|")
    of_one = {(row["precision"], row["seed"]): row for row in rows if row["line"] == ONE_RANK}
    for row in rows:
        other = of_one.get((row["precision"], row["seed"]))
        if row is other or other is None:
            continue
        step, five, end = differences(row, other)
        print(f"| {row['line']} | {row['precision']} | {row['seed']} | {row['validation_loss']:.4f} | {step:.2g} | "
              f"{five:.2g} | {end:+.2g} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quality_runs.add_options(parser, ROOT)
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args()
    record = quality_runs.Record(options.output, "losses of whole documents, one rank and four")
    known = {(row["line"], row["precision"], row["seed"], row["steps"]) for row in record.rows}
    wanted = [(line, "fp32", seed) for seed in options.seeds for line in LINES]
    wanted += [(line, "fp64", options.seeds[0]) for line in (ONE_RANK, "zeppelin, remapped")]
    for line, precision, seed in [cell for cell in wanted if (*cell, options.steps) not in known]:
        with quality_runs.run_folder(options.runs, line, precision, seed) as folder:
            row = train(options, line, precision, seed, pathlib.Path(folder))
        if row is None:
            break
        record.add(row)
    print_table(record.rows)


if __name__ == "__main__":
    main()
