#!/usr/bin/env python3
"""Loss at equal tokens of replicas that agree rarely, against a gradient in every step.

Trains nanoGPT's character model under every policy with the same global batches and initial weights, one replica a
thread rank, and compares the validation losses of the outer weights pair by pair. What a line tries is tried in short
runs with the first seed, and the best of it is measured in whole runs with every seed. Local steps take the inner rate
that the every-step line chose. Figures that OUTPUT already holds are not measured again, and those of lines that are
gone stay in it. Prints tables; OUTPUT holds all figures as JSON.
"""
import argparse
import dataclasses
import pathlib
import statistics
import sys

sys.dont_write_bytecode = True
import quality_runs  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
EVERY_STEP, DILOCO, STREAMING = "every step", "diloco, H 30", "streaming, H 30, 4 bits"
TRIAL_STEPS = 1200  # 40 rounds of 30
STEPS = 4000        # 40 rounds of 100
LATE_STEPS = 2400   # 80 rounds of 30
CURVE_POINTS = 20


@dataclasses.dataclass(frozen=True)
class Line:
    """One policy: keys that are fixed, and the choices of keys of which the best is taken."""
    keys: tuple = ()
    tried: tuple = ((),)
    against: str = EVERY_STEP  # the line its losses are compared with
    takes: str = ""            # the line whose choice this one takes
    replicas: int = 2
    steps: int = STEPS


def rate(value):
    return (f"optimizer.learning_rate={value:g}", f"optimizer.minimum_learning_rate={value / 10:g}")


def outer(*rates):
    return tuple((f"sync.outer.learning_rate={rate}",) for rate in rates)


def with_momentum(*pairs):
    return tuple((f"sync.outer.learning_rate={rate}", f"sync.outer.momentum={kept}") for rate, kept in pairs)


def policy(name, period, *keys):
    return (f"sync.policy={name}", f"sync.rounds.period_steps={period}", *keys)


def co2(momentum, penalty, clip):
    return (f"sync.outer.momentum={momentum}", f"sync.outer.penalty=constant:{penalty}", f"sync.outer.clip={clip}")


LATE = "sync.rounds.delay_steps=30"
LINES = {
    EVERY_STEP: Line(tried=(rate(1e-3), rate(2e-3), rate(4e-3), rate(8e-3)), against=""),
    STREAMING: Line(policy("streaming-diloco", 30),
                    outer(0.4, 0.7, 1.0) + with_momentum((1.0, 0.5), (1.0, 0.2), (0.7, 0.7))),
    "streaming, H 100, 4 bits": Line(policy("streaming-diloco", 100), takes=STREAMING),
    "4 replicas, streaming, H 30, 4 bits": Line(policy("streaming-diloco", 30), takes=STREAMING, replicas=4),
    "4 replicas, streaming, H 100, 4 bits": Line(policy("streaming-diloco", 100), takes=STREAMING, replicas=4),
    "co2, tau 12": Line(policy("co2", 12), (co2(0.2, 1.0, 1.0), co2(0.2, 2.0, 0.01), co2(0.5, 2.0, 0.01),
                                            co2(0.2, 2.0, 0.0), co2(0.1, 1.5, 0.02))),
    "co2, tau 12, without remedies": Line(policy("co2", 12, *co2(0.5, 1.0, 0.0))),
    DILOCO: Line(policy("diloco", 30), outer(0.4, 0.7, 1.0) + with_momentum((1.0, 0.2)), against="", steps=LATE_STEPS),
    "eager, H 30": Line(policy("diloco", 30, LATE, "sync.rounds.eager=true"),
                        outer(0.4) + with_momentum((1.0, 0.2), (0.7, 0.2)), DILOCO, steps=LATE_STEPS),
    "delayed, lower rate": Line(policy("diloco", 30, LATE), with_momentum((0.5, 0.2)), DILOCO, steps=LATE_STEPS),
    "delayed": Line(policy("diloco", 30, LATE), with_momentum((1.0, 0.2)), DILOCO, steps=LATE_STEPS),
}


class Runs:
    """Measures what the record lacks. A cell is a line, one of its choices, a number of steps and a seed."""

    def __init__(self, options, record):
        self.options, self.record = options, record

    def keys(self, name, choice):
        inner = () if name == EVERY_STEP else self.best(EVERY_STEP)
        return [*inner, *LINES[name].keys, *choice]

    def find(self, name, choice, steps, seed):
        wanted = (LINES[name].replicas, steps, seed, self.keys(name, choice))
        return next((row for row in self.record.rows
                     if (row["replicas"], row["steps"], row["seed"], row["keys"]) == wanted), None)

    def measure(self, name, choice, steps, seed):
        """The cell's row, or None where --seconds ended it."""
        row = self.find(name, choice, steps, seed)
        if row:
            return row
        keys, replicas = self.keys(name, choice), LINES[name].replicas
        with quality_runs.run_folder(self.options.runs, name, *choice, steps, seed) as folder:
            sets = [f"output.run_dir={folder}/run", f"seed={seed}", f"train.steps={steps}", *keys]
            figures = quality_runs.train(self.command(replicas, sets), self.options.seconds)
        if figures is None:
            return None
        cell = {"line": name, "replicas": replicas, "steps": steps, "seed": seed, "keys": keys}
        self.record.add(cell | figures_of(figures, steps))
        return self.record.rows[-1]

    def command(self, replicas, sets):
        sets = [f"data.path={self.options.text.resolve()}", "placement.preset=ddp", "runtime.threads_per_rank=1",
                "evaluation.every_steps=0", "checkpoint.resume=auto", *sets]
        return [self.options.strait, "train", ROOT / "examples/shakespeare_char.toml", "--ranks", replicas,
                *(word for one in sets for word in ("--set", one))]

    def trials(self, name):
        """What a line tries, with the rows of the first seed; one choice needs no trial."""
        choices = LINES[name].tried
        if len(choices) == 1:
            return []
        return [(choice, self.find(name, choice, TRIAL_STEPS, self.options.seeds[0])) for choice in choices]

    def best(self, name):
        """The choice that is taken, of those that have been tried."""
        name = LINES[name].takes or name
        measured = [(choice, row) for choice, row in self.trials(name) if row]
        return min(measured, key=lambda pair: pair[1]["validation_loss"])[0] if measured else LINES[name].tried[0]

    def final(self, name, seed):
        return self.find(name, self.best(name), LINES[name].steps, seed)


def figures_of(report, steps):
    losses, width = report["losses"], steps // CURVE_POINTS
    curve = [round(statistics.fmean(losses[at:at + width]), 4) for at in range(0, len(losses), width)]
    sent = sum(row["payload_bytes"] + row["metadata_bytes"] for row in report["bytes_per_step"]["runtime"])
    kept = ("validation_loss", "train_loss", "tokens", "parameters", "parameter_hash", "commit")
    return {name: report[name] for name in kept} | {"train_loss_curve": curve, "bytes_per_step": sent}


def measure_all(runs, options):
    """False where --seconds ended it."""
    for name in options.lines:
        for choice, row in [] if LINES[name].takes else runs.trials(name):
            if not row and not runs.measure(name, choice, TRIAL_STEPS, options.seeds[0]):
                return False
    return all(runs.measure(name, runs.best(name), LINES[name].steps, seed)
               for seed in options.seeds for name in options.lines)


def print_results(runs, options):
    print("| line | replicas | steps | bytes per step | validation loss, by seed | more than | mean (each seed) |")
    print("|---|---|---|---|---|---|---|")
    for name in options.lines:
        line = LINES[name]
        rows = [row for row in (runs.final(name, seed) for seed in options.seeds) if row]
        if not rows:
            continue
        losses = ", ".join(f"{row['validation_loss']:.4f}" for row in rows)
        bases = [line.against and runs.final(line.against, row["seed"]) for row in rows]
        pairs = [row["validation_loss"] - base["validation_loss"] for row, base in zip(rows, bases) if base]
        more = f"{statistics.mean(pairs):+.4f} ({', '.join(f'{pair:+.4f}' for pair in pairs)})" if pairs else ""
        print(f"| {name} | {line.replicas} | {line.steps} | {rows[0]['bytes_per_step']:.0f} | {losses} | "
              f"{line.against} | {more} |")


def print_trials(runs, options):
    print(f"\n| line | tried for {TRIAL_STEPS} steps with the first seed | validation loss |\n|---|---|---|")
    for name in options.lines:
        for choice, row in [] if LINES[name].takes else runs.trials(name):
            loss = f"{row['validation_loss']:.4f}" if row else "not yet"
            mark = " (taken)" if choice == runs.best(name) else ""
            print(f"| {name} | {', '.join(choice)} | {loss}{mark} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quality_runs.add_options(parser, ROOT)
    parser.add_argument("--lines", nargs="+", default=list(LINES), choices=list(LINES))
    parser.add_argument("--only-print", action="store_true", help="measure nothing")
    options = parser.parse_args()
    what = "examples/shakespeare_char.toml: loss of the outer weights over the whole validation part at equal tokens"
    runs = Runs(options, quality_runs.Record(options.output, what))
    if not options.only_print:
        measure_all(runs, options)
    print_results(runs, options)
    print_trials(runs, options)


main()
