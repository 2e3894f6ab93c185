#!/usr/bin/env python3
"""How much of their time replicas compute that agree rarely, on emulated clusters: utilisation of each policy, that is
its mean step on links without a limit over its mean step on the links measured, beside the simulator's.

For each rate of the links: probe the cluster, then train nanoGPT's character model (0.8M parameters) under each policy,
one replica a host, for whole rounds; the first round warms up. Needs root (bench/netlab)."""
import argparse
import json
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples/shakespeare_char.toml"
FREE = "20gbit"  # more than the hosts, which share a memory, can send


def policies(period):
    """Keys of each policy in [sync]."""
    rounds = [f"rounds.period_steps={period}"]
    streaming = ["policy=streaming-diloco", *rounds, "rounds.fragments=2", f"rounds.delay_steps={period // 2 - 1}"]
    return {"every step": [], "diloco": ["policy=diloco", *rounds], "co2": ["policy=co2", *rounds],
            "streaming": [*streaming, "outer.codec=none"], "streaming, 4 bits": streaming}


PEERS = {"PyTorch DDP": "ddp", "PyTorch post-local SGD": "post-local-sgd", "DiLoCo in PyTorch": "diloco"}
SHAPE = {"layers": 4, "heads": 4, "width": 128, "vocabulary": 65, "positions": 64, "context": 64}  # of nano-char


def netlab(options, rate, *command):
    words = [ROOT / "bench/netlab", "--hosts", options.hosts, "--ranks-per-host", 1, "--rate", rate, "--", *command]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stderr[-2000:]}")


def train(options, rate, policy, folder):
    """Mean step behind the first round, what was predicted, and bytes per step over all links."""
    keys = policies(options.period)[policy]
    warm, steps = (options.period, options.rounds * options.period) if keys else (2, 10)
    run_dir, report = folder / "run", folder / "report"
    sets = [f"data.path={options.text.resolve()}", f"output.run_dir={run_dir}", f"cluster.file={folder / 'cluster.toml'}",
            f"train.steps={warm + steps}", "evaluation.every_steps=0", "evaluation.batches=1",
            "placement.preset=ddp", *(f"sync.{key}" for key in keys)]
    command = [options.strait, "train", EXAMPLE, "--json", report]
    for one in sets:
        command += ["--set", one]
    netlab(options, rate, *command)
    figures = json.loads(report.read_text())
    seconds = [json.loads(line)["seconds"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    sent = sum(row["payload_bytes"] + row["metadata_bytes"] for row in figures["bytes_per_step"]["runtime"])
    return {"seconds": statistics.fmean(seconds[warm:]), "predicted": figures["predicted_seconds_per_step"],
            "bytes": sent, "loss": figures["train_loss"]}


def train_peer(options, rate, peer, folder):
    warm, steps = (2, 10) if PEERS[peer] == "ddp" else (options.period, options.rounds * options.period)
    metrics = folder / "metrics"
    command = ["env", f"OPENBLAS_CORETYPE={options.blas}", options.peer_python, ROOT / "bench/peers/distributed_torch.py",
               PEERS[peer], "--wire", "fp32", "--batch", 12 // options.hosts, "--steps", warm + steps, "--period", options.period,
               "--ranks-per-host", 1, "--metrics", metrics]
    for name, value in SHAPE.items():
        command += [f"--{name}", value]
    netlab(options, rate, *command)
    seconds = [json.loads(line)["seconds"] for line in metrics.read_text().splitlines()]
    return {"seconds": statistics.fmean(seconds[warm:])}


def measure(options):
    """Runs of each row by rate. The rates take turns, because machines change their speed from minute to minute."""
    rates, rows = [FREE, *options.rate], {}
    with tempfile.TemporaryDirectory() as name:
        folders = {rate: pathlib.Path(name, rate) for rate in rates}
        for rate, folder in folders.items():
            folder.mkdir()
            netlab(options, rate, options.strait, "probe", EXAMPLE, "--set", f"data.path={options.text.resolve()}", "-o",
                   folder / "cluster.toml")
        for row in [*options.policies, *(options.peers if options.peer_python else [])]:
            for rate in rates * options.repeats:
                subprocess.run(["rm", "-rf", folders[rate] / "run"], check=True)
                one = (train_peer if row in PEERS else train)(options, rate, row, folders[rate])
                rows.setdefault((rate, row), []).append(one)
                print(rate, row, json.dumps(one), file=sys.stderr, flush=True)
    return rows


def median(runs, key):
    return statistics.median(run[key] for run in runs)


def spread(shares):
    return f"{statistics.median(shares):.1%} ({min(shares):.1%} to {max(shares):.1%})"


def table(options, rows):
    lines = [f"`bench/local_steps.py`: {options.hosts} hosts of one rank, {options.rounds} rounds of {options.period} steps.", "",
             "| links | policy | seconds per step | predicted | utilisation (all) | predicted | kB per step over all links |",
             "|---|---|---|---|---|---|---|"]
    for (rate, policy), runs in rows.items():
        pairs = list(zip(rows[FREE, policy], runs))
        share = spread([free["seconds"] / run["seconds"] for free, run in pairs]) if rate != FREE else ""
        seconds, mine = median(runs, "seconds"), "predicted" in runs[0]
        predicted = f"{runs[0]['predicted']:.4f} ({runs[0]['predicted'] / seconds - 1:+.0%})" if mine else ""
        foreseen = f"{rows[FREE, policy][0]['predicted'] / runs[0]['predicted']:.1%}" if mine and share else ""
        sent = f"{runs[0]['bytes'] / 1e3:.1f}" if mine else ""
        lines.append(f"| {'no limit' if rate == FREE else rate} | {policy} | {seconds:.4f} | {predicted} | {share} | "
                     f"{foreseen} | {sent} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=pathlib.Path, help="any text of 1 MB or so")
    parser.add_argument("--strait", type=pathlib.Path, default=ROOT / "build/release/strait")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", nargs="+", default=["10mbit", "100mbit"])
    parser.add_argument("--rounds", type=int, default=3, help="that are timed")
    parser.add_argument("--repeats", type=int, default=3, help="of each run; medians are shown")
    parser.add_argument("--policies", nargs="+", choices=policies(1), default=list(policies(1)))
    parser.add_argument("--period", type=int, default=30, help="steps of a round")
    parser.add_argument("--peer-python", help="with the PyTorch of the peers; without it there are none")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--blas", default="SKYLAKEX", help="processor that the peer's OpenBLAS takes this one for")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="writes the table there")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the lab too
    text = table(options, measure(options))
    print(text, end="")
    if options.output:
        options.output.write_text(text)


main()
