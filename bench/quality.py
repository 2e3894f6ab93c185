#!/usr/bin/env python3
"""Loss at equal tokens of placements with codecs, against zero3 with the same seed.

Trains one small character model under each setting and seed on four thread ranks that emulate two nodes of two, and
compares the validation losses pair by pair. Figures that OUTPUT already holds are not measured again, and with --runs a
run that --seconds ended goes on at the next call, so a long series may be made in parts. Prints a table; OUTPUT holds
all figures as JSON.
"""
import argparse
import pathlib
import statistics
import sys

sys.dont_write_bytecode = True
import quality_runs  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
BASELINE = "zero3"
SETTINGS = {
    BASELINE: {"preset": "zero3"},
    # As published: divisor 2^(b-1), one block about a row of a matrix, no error feedback.
    "zero++ as published": {"preset": "zero++", "weights": "int8/4096+paper", "gradients": "int4/128+paper"},
    "zero-topo as published": {"preset": "zero-topo", "update": "int8/4096+paper", "gradients": "int4/128+paper"},
    "zero++ preset": {"preset": "zero++"},
    "zero-topo preset": {"preset": "zero-topo"},
    "zero++ recommended": {"preset": "zero++", "weights": "int8/2048", "gradients": "int4/128+ef"},
    "zero-topo recommended": {"preset": "zero-topo", "update": "int8/2048", "gradients": "int4/128+ef"},
}
RUN_FILE = """name = "quality"
seed = {seed}
[model]
preset = "nano-char"
shape = {{ layers = 6, heads = 4, kv_heads = 4, width = 128, ffn_width = 512, context = 64, bias = true }}
[data]
path = "{text}"
tokenizer = "char"
[train]
steps = {steps}
precision = "fp32"
global_batch_size = 16
micro_batch_size = 2
[optimizer]
learning_rate = 2e-3
minimum_learning_rate = 2e-4
warmup_steps = 100
[evaluation]
every_steps = 0
[checkpoint]
asynchronous = false
resume = "auto"
[cluster]
levels = [{{ name = "node", size = 2, gb_per_second = 10.0, latency_microseconds = 1.0 }},
          {{ name = "world", size = 0, gb_per_second = 0.1, latency_microseconds = 50.0 }}]
[placement]
preset = "{preset}"
codecs = {{ {codecs} }}
[output]
run_dir = "{run_dir}"
"""
RANKS = 4


def train(options, setting, seed, folder):
    """The figures of one run, or None when it was stopped before its end."""
    words = dict(SETTINGS[setting])
    preset = words.pop("preset")
    codecs = ", ".join(f'{key} = ["{codec}"]' if key == "gradients" else f'{key} = "{codec}"'
                       for key, codec in words.items())
    run_file = folder / "run.toml"
    run_file.write_text(RUN_FILE.format(seed=seed, text=options.text.resolve(), steps=options.steps, preset=preset,
                                        codecs=codecs, run_dir=folder / "run"))
    figures = quality_runs.train([options.strait, "train", run_file, "--ranks", RANKS], options.seconds)
    if figures is None:
        return None
    sent = {row["level"]: row["payload_bytes"] + row["metadata_bytes"] for row in figures["bytes_per_step"]["runtime"]}
    return {"setting": setting, "seed": seed, "steps": options.steps, "codecs": codecs,
            "parameters": figures["parameters"], "tokens": figures["tokens"], "commit": figures["commit"],
            "validation_loss": figures["validation_loss"], "train_loss": figures["train_loss"],
            "boundary_bytes_per_step": sent["world"], "parameter_hash": figures["parameter_hash"]}


def print_table(rows):
    loss = {(row["setting"], row["seed"]): row["validation_loss"] for row in rows}
    sent = {row["setting"]: row["boundary_bytes_per_step"] for row in rows if row["boundary_bytes_per_step"]}
    print("| setting | codecs | KB between nodes per step | validation loss, by seed | more than zero3, mean (all) |")
    print("|---|---|---|---|---|")
    for setting in SETTINGS:
        seeds = sorted(seed for name, seed in loss if name == setting)
        if not seeds:
            continue
        losses = ", ".join(f"{loss[setting, seed]:.4f}" for seed in seeds)
        pairs = [loss[setting, seed] - loss[BASELINE, seed] for seed in seeds if (BASELINE, seed) in loss]
        more = f"{statistics.mean(pairs):+.4f} ({', '.join(f'{pair:+.4f}' for pair in pairs)})" if pairs else ""
        codecs = ", ".join(f"{key} `{codec}`" for key, codec in SETTINGS[setting].items() if key != "preset")
        sent_kb = f"{sent[setting] / 1e3:.0f}" if setting in sent else ""
        print(f"| {setting} | {codecs} | {sent_kb} | {losses} | {more if setting != BASELINE else ''} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quality_runs.add_options(parser, ROOT)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    options = parser.parse_args()
    what = "loss over the whole validation part at equal tokens, 4 ranks as 2 nodes of 2"
    record = quality_runs.Record(options.output, what)
    known = {(row["setting"], row["seed"], row["steps"]) for row in record.rows}
    wanted = [(setting, seed) for seed in options.seeds for setting in options.settings]
    for setting, seed in [pair for pair in wanted if (*pair, options.steps) not in known]:
        with quality_runs.run_folder(options.runs, setting, seed) as folder:
            row = train(options, setting, seed, pathlib.Path(folder))
        if row is None:
            return
        record.add(row)
    print_table([row for row in record.rows if row["steps"] == options.steps])


main()
