#!/usr/bin/env python3
"""What asynchronous checkpoints cost a training run: the demo (examples/demo.toml) with a save every few steps against
the same run without, interleaved. Prints JSON: the share of step time for which training stood still
(save_stall_seconds of `strait train` over interval x median step), and the ratios of processor time and of wall time.
Usage: bench/async_save.py TEXT [--strait PROGRAM] [--every N] [--steps N] [--rounds N]. Needs a quiet machine for the
wall times; stall share and processor time bear other work better."""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text")
    parser.add_argument("--strait", default=str(ROOT / "build/release/strait"))
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def train(arguments, every):
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
        report = folder + "/report.json"
        keys = {"data.path": arguments.text, "data.encoding": "utf-8", "output.run_dir": folder + "/run",
                "train.steps": arguments.steps, "optimizer.decay_steps": 800, "evaluation.every_steps": 0,
                "evaluation.batches": 1, "output.timeline_steps": 0, "checkpoint.every_steps": every,
                "checkpoint.keep": 2}
        command = [arguments.strait, "train", str(ROOT / "examples/demo.toml"), "--ranks", "2", "--json", report]
        for key, value in keys.items():
            command += ["--set", f"{key}={value}"]
        processor, wall = processor_seconds(), time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        result = {"wall_seconds": time.monotonic() - wall, "processor_seconds": processor_seconds() - processor}
        with open(report, encoding="utf-8") as file:
            found = json.load(file)
        result["step_seconds"] = found["seconds_per_step"]["median"]
        result["stall_seconds"] = found["save_stall_seconds"]
        result["commit"], result["machine"] = found["commit"], found["machine"]
        return result


def main():
    arguments = parse_arguments()
    rounds = []
    for number in range(arguments.rounds):
        order = [0, arguments.every] if number % 2 == 0 else [arguments.every, 0]
        runs = {every: train(arguments, every) for every in order}
        rounds.append({"without": runs[0], "saving": runs[arguments.every]})

    def median(of):
        return statistics.median(of(r["without"], r["saving"]) for r in rounds)

    print(json.dumps({
        "case": {"run": "examples/demo.toml", "ranks": 2, "every_steps": arguments.every, "steps": arguments.steps},
        "load_average": os.getloadavg()[0],
        "stall_share_of_step_time":
            median(lambda a, b: b["stall_seconds"]["median"] / (arguments.every * b["step_seconds"])),
        "processor_seconds_ratio": median(lambda a, b: b["processor_seconds"] / a["processor_seconds"]),
        "wall_seconds_ratio": median(lambda a, b: b["wall_seconds"] / a["wall_seconds"]),
        "rounds": rounds}, indent=2))


if __name__ == "__main__":
    main()
