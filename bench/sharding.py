#!/usr/bin/env python3
"""Step times of placements on emulated clusters, with what was predicted and what the interfaces counted.

For each cluster: probe it under all its ranks, then train a 19M GPT under each placement for a few steps, one run
after the other on the same links; PyTorch's DDP over Gloo beside them. The first step warms up, the last, which the
evaluation follows, is not counted; bytes are those between the ends of the steps that are timed. A call runs the cells that its options name and keeps the others of --json, so
that a matrix can be filled in parts; the cluster of a lab is probed once. Needs root (bench/netlab).
"""
import argparse
import json
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from lab import cores_of_each  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
NETLAB = ROOT / "bench/netlab"
CONTEXT, MICRO_STEP_TOKENS, WARM_UP = 128, 2048, 1
HEADER_BYTES = 66  # of a packet: Ethernet 14, IP 20, TCP 32 with its timestamps
OURS = ["ddp", "zero3", "zero++", "zero-topo"]
PEERS = {"PyTorch DDP": "ddp"}  # the system of bench/peers/distributed_torch.py
NEEDS_TORCH_2 = {"PyTorch FSDP": "fsdp", "PyTorch HSDP": "hsdp", "DeepSpeed ZeRO-3": "deepspeed",
                 "DeepSpeed hpZ": "deepspeed-hpz"}
PEERS |= NEEDS_TORCH_2
PLACEMENTS = [*OURS, *PEERS]
RUN_FILE = """name = "sharding"
[model]
preset = "nano-char"
shape = {{ layers = 6, heads = 8, kv_heads = 8, width = 512, ffn_width = 2048, context = {context}, bias = true }}
[data]
path = "{text}"
tokenizer = "byte"
[train]
steps = {steps}
precision = "bf16"
global_batch_size = {batch}
micro_batch_size = {micro_batch}
[evaluation]
batches = 1
every_steps = 0
[checkpoint]
asynchronous = false
[cluster]
file = "{cluster}"
[placement]
preset = "{placement}"
[output]
run_dir = "{run_dir}"
"""


def netlab(options, lab, *command, more=()):
    hosts, rate = lab
    share = cores_of_each(hosts * options.ranks_per_host)
    if share:
        more = ["--cores-per-rank", share, *more]
    words = [NETLAB, "--hosts", hosts, "--ranks-per-host", options.ranks_per_host, "--rate", rate, *more, "--", *command]
    result = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: status {result.returncode}\n{result.stderr[-2000:]}")
    return result.stdout


def processor_ticks():
    """Of all processors since the machine started: all, and those that its host gave to others."""
    ticks = list(map(int, pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    return sum(ticks), ticks[7]


def run_with_counters(options, lab, folder, metrics, *command):
    """Output, and what a step that is timed sent between hosts as the interfaces count it, with and without headers."""
    counters = folder / "counters"
    output = netlab(options, lab, *command, more=["--counters", counters, "--marks", metrics])
    marks = {mark["lines"]: mark["levels"][-1] for mark in json.loads(counters.read_text())["marks"]}
    before, after = marks[WARM_UP], marks[WARM_UP + options.steps]
    packets, counted = (after[kind] - before[kind] for kind in ("sent_packets", "sent_bytes"))
    return output, {"interface_bytes_per_step": counted / options.steps,
                    "interface_payload_per_step": (counted - HEADER_BYTES * packets) / options.steps}


def train(options, lab, placement, accumulation, folder):
    ranks = lab[0] * options.ranks_per_host
    sequences = MICRO_STEP_TOKENS // CONTEXT
    run_file, report, run_dir = (folder / name for name in ("run.toml", "report", "run"))
    run_file.write_text(RUN_FILE.format(
        context=CONTEXT, text=options.text.resolve(), steps=WARM_UP + options.steps + 1, batch=sequences * accumulation,
        micro_batch=sequences // ranks, cluster=folder / "cluster.toml", placement=placement, run_dir=run_dir))
    metrics = run_dir / "metrics.jsonl"
    _, counted = run_with_counters(options, lab, folder, metrics, options.strait, "train", run_file, "--json", report)
    figures = json.loads(report.read_text())
    seconds = [json.loads(line)["seconds"] for line in metrics.read_text().splitlines()]
    sent = {row["level"]: row["payload_bytes"] + row["metadata_bytes"] for row in figures["bytes_per_step"]["runtime"]}
    return {"seconds": seconds[WARM_UP:-1], "predicted_seconds": figures["predicted_seconds_per_step"],
            "exposed_share": figures["exposed_communication_share"], "ledger_bytes_per_step": sent["world"],
            **counted, "loss": figures["train_loss"]}


def train_peer(options, lab, system, accumulation, folder):
    ranks = lab[0] * options.ranks_per_host
    metrics = folder / "metrics.jsonl"
    output, counted = run_with_counters(
        options, lab, folder, metrics, "env", f"OPENBLAS_CORETYPE={options.blas}", options.peer_python,
        ROOT / "bench/peers/distributed_torch.py", system, "--accumulation", accumulation, "--metrics", metrics,
        "--batch", MICRO_STEP_TOKENS // CONTEXT // ranks, "--ranks-per-host", options.ranks_per_host,
        "--steps", WARM_UP + options.steps + 1)
    seconds = [json.loads(line)["seconds"] for line in metrics.read_text().splitlines()]
    return {"seconds": seconds[WARM_UP:-1], **counted, "version": output.strip().splitlines()[-1]}


def run_cell(options, record, lab, placement, accumulation):
    key = f"{lab[0]} hosts x {options.ranks_per_host} ranks, {lab[1]}"
    place = record.setdefault(key, {"rows": []})
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if placement in OURS:
            if "cluster" not in place:
                netlab(options, lab, options.strait, "probe", "-o", folder / "cluster.toml")
                place["cluster"] = (folder / "cluster.toml").read_text()
            (folder / "cluster.toml").write_text(place["cluster"])
        ticks, stolen = processor_ticks()
        row = train(options, lab, placement, accumulation, folder) if placement in OURS else train_peer(
            options, lab, PEERS[placement], accumulation, folder)
        later, stolen_later = processor_ticks()
    row = {"placement": placement, "accumulation": accumulation, **row,
           "stolen_share": (stolen_later - stolen) / (later - ticks)}
    place["rows"] = [other for other in place["rows"]
                     if (other["placement"], other["accumulation"]) != (placement, accumulation)] + [row]


def peer_is_new(options):
    command = [options.peer_python, "-c", "import deepspeed, torch.distributed.fsdp as f; f.fully_shard"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def print_table(key, rows):
    median = {(row["placement"], row["accumulation"]): statistics.median(row["seconds"]) for row in rows}
    print(f"\n{key}\n\n| A | placement | seconds per step | predicted | of zero3's speed | MB over the links per step | "
          "interfaces / ledger | without headers | stolen |\n|---|---|---|---|---|---|---|---|---|")
    for row in sorted(rows, key=lambda row: (row["accumulation"], PLACEMENTS.index(row["placement"]))):
        seconds, zero3 = median[row["placement"], row["accumulation"]], median.get(("zero3", row["accumulation"]))
        counted = row.get("interface_bytes_per_step")
        more = ["", f"{counted / 1e6:.1f}" if counted else "", "", ""]
        if "predicted_seconds" in row:
            more = [f"{row['predicted_seconds']:.2f} ({row['predicted_seconds'] / seconds - 1:+.0%})",
                    f"{row['ledger_bytes_per_step'] / 1e6:.1f}", f"{counted / row['ledger_bytes_per_step']:.3f}",
                    f"{row['interface_payload_per_step'] / row['ledger_bytes_per_step']:.3f}"]
        print(f"| {row['accumulation']} | {row['placement']} | {seconds:.2f} ({min(row['seconds']):.2f} to "
              f"{max(row['seconds']):.2f}) | {more[0]} | {f'{zero3 / seconds:.2f}x' if zero3 else ''} | {more[1]} | "
              f"{more[2]} | {more[3]} | {row['stolen_share']:.0%} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=pathlib.Path, help="any text of 1 MB or so")
    parser.add_argument("--strait", type=pathlib.Path, default=ROOT / "build/release/strait")
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--ranks-per-host", type=int, default=2)
    parser.add_argument("--rate", nargs="+", default=["100mbit", "1gbit"])
    parser.add_argument("--steps", type=int, default=5, help="that are timed")
    parser.add_argument("--accumulation", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--placements", nargs="*", choices=PLACEMENTS,
                        help="as a default all that the peers' PyTorch is new enough for")
    parser.add_argument("--peer-python", default="/usr/bin/python3", help="with the PyTorch (and DeepSpeed) of the peers")
    parser.add_argument("--blas", default="SKYLAKEX", help="processor that the peer's OpenBLAS takes this one for")
    parser.add_argument("--json", type=pathlib.Path, help="record that is read, added to and written after each cell")
    parser.add_argument("--only-missing", action="store_true", help="leave out cells that the record has")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the lab too
    if options.placements is None:
        options.placements = [name for name in PLACEMENTS if name not in NEEDS_TORCH_2 or peer_is_new(options)]
    record = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    for lab in [(hosts, rate) for hosts in options.hosts for rate in options.rate]:
        key = f"{lab[0]} hosts x {options.ranks_per_host} ranks, {lab[1]}"
        for accumulation in options.accumulation:
            for placement in options.placements:
                known = [(row["placement"], row["accumulation"]) for row in record.get(key, {"rows": []})["rows"]]
                if options.only_missing and (placement, accumulation) in known:
                    continue
                run_cell(options, record, lab, placement, accumulation)
                print(key, json.dumps(record[key]["rows"][-1]), file=sys.stderr, flush=True)
                if options.json:
                    options.json.write_text(json.dumps(record, indent=1) + "\n")
    for key, place in record.items():
        print_table(key, place["rows"])


main()
