#!/usr/bin/env python3
"""How much of their time replicas compute that agree rarely, on emulated clusters: utilisation of each policy, that is
its mean step on links without a limit over its mean step on the links measured, beside the simulator's; and the share of
their time that ranks do not wait for a link.

In each turn, for each policy and each rate of the links: probe the cluster, then train nanoGPT's character model (0.8M
parameters), one replica a host, for whole rounds: the first one warms up, and in the last one, which is not timed, a run ends
by taking up what is under way. A prediction is compared with the run behind its own probe, because machines change their speed
from minute to minute. Needs root (bench/netlab)."""
import argparse
import json
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from lab import ROOT, Lab, predictions, sets_of  # noqa: E402

EXAMPLE = ROOT / "examples/shakespeare_char.toml"
FREE = "20gbit"  # more than the hosts, which share a memory, can send


def policies(period):
    """Keys of each policy in [sync]."""
    rounds = [f"rounds.period_steps={period}"]
    streaming = ["policy=streaming-diloco", *rounds, "rounds.fragments=2", f"rounds.delay_steps={period // 2 - 1}"]
    return {"every step": [], "diloco": ["policy=diloco", *rounds], "co2": ["policy=co2", *rounds],
            "streaming": [*streaming, "outer.codec=none"], "streaming, 4 bits": streaming}


PEERS = {"PyTorch DDP": "ddp", "PyTorch post-local SGD": "post-local-sgd", "DiLoCo in PyTorch": "diloco"}
OF_TORCHFT = {"torchft DiLoCo": "torchft-diloco", "torchft Streaming DiLoCo": "torchft-streaming-diloco"}
PEERS |= OF_TORCHFT
SHAPE = {"layers": 4, "heads": 4, "width": 128, "vocabulary": 65, "positions": 64, "context": 64}  # of nano-char


def lab_of(options, rate):
    return Lab(options.hosts, 1, rate)


def seconds_of(path, warm, steps, key="seconds"):
    """The mean of so many steps behind those that warm up."""
    return statistics.fmean([json.loads(line)[key] for line in path.read_text().splitlines()][warm:warm + steps])


def train(options, rate, policy, folder):
    """Mean step behind the first round and what of it waits for a link, what was predicted, and bytes per step over all links."""
    keys = policies(options.period)[policy]
    warm, steps = (options.period, options.rounds * options.period) if keys else (2, 10)
    last = options.period if keys else 0
    run_dir, report, cluster = folder / "run", folder / "report", folder / "cluster.toml"
    text = f"data.path={options.text.resolve()}"
    lab_of(options, rate).run(options.strait, "probe", EXAMPLE, *sets_of([text]), "-o", cluster)
    lab_of(options, rate).run(options.strait, "train", EXAMPLE, "--json", report, *sets_of(
        [text, f"output.run_dir={run_dir}", f"cluster.file={cluster}",
         f"train.steps={warm + steps + last}", "evaluation.every_steps=0", "evaluation.batches=1", "placement.preset=ddp",
         *(f"sync.{key}" for key in keys)]))
    figures = json.loads(report.read_text())
    sent = sum(row["payload_bytes"] + row["metadata_bytes"] for row in figures["bytes_per_step"]["runtime"])
    metrics = run_dir / "metrics.jsonl"
    return {"seconds": seconds_of(metrics, warm, steps), "waits_seconds": seconds_of(metrics, warm, steps, "exposed_communication_seconds"),
            "predicted_seconds": figures["predicted_seconds_per_step"], "bytes": sent, "loss": figures["train_loss"]}


def train_peer(options, rate, peer, folder):
    warm, steps = (2, 10) if PEERS[peer] == "ddp" else (options.period, options.rounds * options.period)
    metrics = folder / "metrics"
    command = ["env", f"OPENBLAS_CORETYPE={options.blas}", options.peer_python, ROOT / "bench/peers/distributed_torch.py",
               PEERS[peer], "--wire", "fp32", "--batch", 12 // options.hosts, "--steps", warm + steps, "--period", options.period,
               "--ranks-per-host", 1, "--metrics", metrics]
    for name, value in SHAPE.items():
        command += [f"--{name}", value]
    lab_of(options, rate).run(*command)
    return {"seconds": seconds_of(metrics, warm, steps)}


def take_turn(options, rows):
    """One more run of each row with each rate, one after the other: they are compared."""
    for row in [*options.policies, *(options.peers if options.peer_python else [])]:
        for rate in [FREE, *options.rate]:
            with tempfile.TemporaryDirectory() as folder:
                one = (train_peer if row in PEERS else train)(options, rate, row, pathlib.Path(folder))
            rows.setdefault(row, {}).setdefault(rate, []).append(one)
            print(rate, row, json.dumps(one), file=sys.stderr, flush=True)


def peers_that_run(options):
    """Without those of torchft where the Python of the peers has none, which is said."""
    wanted = [peer for peer in options.peers if peer in OF_TORCHFT] if options.peer_python else []
    if not wanted:
        return options.peers
    tried = subprocess.run([options.peer_python, "-c", "import torchft.local_sgd"], capture_output=True, text=True, check=False)
    if tried.returncode == 0:
        return options.peers
    why = tried.stderr.strip().rpartition("\n")[2]
    print(f"left out: {', '.join(wanted)}; {options.peer_python} cannot import torchft ({why})", file=sys.stderr, flush=True)
    return [peer for peer in options.peers if peer not in OF_TORCHFT]


def median(runs, key):
    return statistics.median(run[key] for run in runs)


def spread(shares):
    return f"{statistics.median(shares):.1%} ({min(shares):.1%} to {max(shares):.1%})"


def row_of(policy, rate, runs, free):
    pairs = list(zip(free, runs))
    share = "" if rate == FREE else spread([one["seconds"] / run["seconds"] for one, run in pairs])
    said = ["", share, "", "", ""]
    if policy not in PEERS:
        waits = spread([1 - run["waits_seconds"] / run["seconds"] for run in runs])
        foreseen = statistics.median(one["predicted_seconds"] / run["predicted_seconds"] for one, run in pairs)
        said = [predictions(runs), share, f"{foreseen:.1%}" if share else "", waits, f"{runs[0]['bytes'] / 1e3:.1f}"]
    return "| " + " | ".join(["no limit" if rate == FREE else rate, policy, f"{median(runs, 'seconds'):.4f}", *said]) + " |"


def table(options, rows):
    lines = [f"`bench/local_steps.py`: {options.hosts} hosts of one rank, {options.rounds} rounds of {options.period} steps.", "",
             "| links | policy | seconds per step | predicted (off, worst turn) | utilisation (all) | predicted | does not wait (all) "
             "| kB per step over all links |", "|---|---|---|---|---|---|---|---|"]
    lines += [row_of(policy, rate, runs, rates[FREE]) for policy, rates in rows.items() for rate, runs in rates.items()]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=pathlib.Path, help="any text of 1 MB or so")
    parser.add_argument("--strait", type=pathlib.Path, default=ROOT / "build/release/strait")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", nargs="+", default=["10mbit", "100mbit"])
    parser.add_argument("--rounds", type=int, default=3, help="that are timed")
    parser.add_argument("--turns", type=int, default=3, help="runs of each row; medians are shown")
    parser.add_argument("--policies", nargs="+", choices=policies(1), default=list(policies(1)))
    parser.add_argument("--period", type=int, default=30, help="steps of a round")
    parser.add_argument("--peer-python", help="with the PyTorch of the peers; without it there are none")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--blas", default="SKYLAKEX", help="processor that the peer's OpenBLAS takes this one for")
    parser.add_argument("--json", type=pathlib.Path, help="record that is read, added to and written after each turn")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the lab too
    options.peers = peers_that_run(options)
    rows = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    for _ in range(options.turns):
        take_turn(options, rows)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(options, rows), end="")


main()
