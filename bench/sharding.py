#!/usr/bin/env python3
"""Step times of placements on emulated clusters, with what was predicted and what the interfaces counted.

For each cluster: probe it under all its ranks, then train a 19M GPT under each placement for a few steps, in one run
after the other on the same links; PyTorch's DDP over Gloo beside them. Medians of the steps after the warm-up that
`strait train` leaves out. Needs root (bench/netlab). Prints a table and writes all figures as JSON.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
NETLAB = ROOT / "bench/netlab"
CONTEXT, MICRO_STEP_TOKENS, WARM_UP = 128, 2048, 5
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


def netlab(options, *command, counters=None):
    words = [NETLAB, "--hosts", options.hosts, "--ranks-per-host", options.ranks_per_host, "--rate", options.rate]
    words += ["--counters", counters] if counters else []
    result = subprocess.run(list(map(str, [*words, "--", *command])), capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: status {result.returncode}\n{result.stderr[-2000:]}")
    return result.stdout


def train(options, folder, placement, accumulation, ranks):
    name = f"{placement}-{accumulation}"
    sequences = MICRO_STEP_TOKENS // CONTEXT
    run_file, report, counters = folder / f"{name}.toml", folder / f"{name}.json", folder / f"{name}.counters"
    run_file.write_text(RUN_FILE.format(
        context=CONTEXT, text=options.text.resolve(), steps=WARM_UP + options.steps, batch=sequences * accumulation,
        micro_batch=sequences // ranks, cluster=folder / "cluster.toml", placement=placement, run_dir=folder / name))
    netlab(options, options.strait, "train", run_file, "--json", report, counters=counters)
    figures = json.loads(report.read_text())
    sent = {row["level"]: row["payload_bytes"] + row["metadata_bytes"] for row in figures["bytes_per_step"]["runtime"]}
    hosts = json.loads(counters.read_text())["hosts"]
    # Whole runs: beside the steps there is a hash of the weights, an evaluation and the start.
    return {"placement": placement, "accumulation": accumulation,
            "seconds": figures["seconds_per_step"]["median"], "spread": figures["seconds_per_step"],
            "predicted_seconds": figures["predicted_seconds_per_step"],
            "exposed_share": figures["exposed_communication_share"],
            "boundary_bytes_per_step": sent["world"],
            "interface_bytes": sum(host["sent_bytes"] for host in hosts),
            "ledger_bytes": sent["world"] * (WARM_UP + options.steps),
            "loss": figures["train_loss"]}


def train_ddp(options, accumulation, ranks):
    out = netlab(options, "/usr/bin/python3", ROOT / "bench/peers/ddp_torch.py", "--accumulation", accumulation,
                 "--batch", MICRO_STEP_TOKENS // CONTEXT // ranks, "--steps", 2 + options.steps)
    figures = json.loads(out.strip().splitlines()[-1])
    return {"placement": f"PyTorch {figures['torch']} DDP, Gloo, bf16 wire", "accumulation": accumulation,
            "seconds": statistics.median(figures["seconds"][2:])}


def print_table(options, rows):
    zero3 = {row["accumulation"]: row["seconds"] for row in rows if row["placement"] == "zero3"}
    print(f"\n{options.hosts} hosts x {options.ranks_per_host} ranks, {options.rate}\n")
    print("| placement | A | seconds per step | predicted | of zero3's speed | MB over the links per step | interfaces / ledger |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        speed = f"{zero3[row['accumulation']] / row['seconds']:.2f}x" if row["accumulation"] in zero3 else ""
        more = ["", "", ""]
        if "predicted_seconds" in row:
            error = row["predicted_seconds"] / row["seconds"] - 1
            more = [f"{row['predicted_seconds']:.2f} ({error:+.0%})", f"{row['boundary_bytes_per_step'] / 1e6:.1f}",
                    f"{row['interface_bytes'] / row['ledger_bytes']:.2f}"]
        print(f"| {row['placement']} | {row['accumulation']} | {row['seconds']:.2f} | {more[0]} | {speed} | {more[1]} | {more[2]} |",
              flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=pathlib.Path, help="any text of 1 MB or so")
    parser.add_argument("--strait", type=pathlib.Path, default=ROOT / "build/release/strait")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, default=2)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--steps", type=int, default=5, help="that are timed")
    parser.add_argument("--accumulation", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--placements", nargs="+", default=["ddp", "zero3", "zero++", "zero-topo"])
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    ranks = options.hosts * options.ranks_per_host
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        netlab(options, options.strait, "probe", "-o", folder / "cluster.toml")
        cluster = (folder / "cluster.toml").read_text()
        for accumulation in options.accumulation:
            for placement in options.placements:
                rows.append(train(options, folder, placement, accumulation, ranks))
                print(rows[-1], file=sys.stderr, flush=True)
            if not options.no_peer:
                rows.append(train_ddp(options, accumulation, ranks))
    print_table(options, rows)
    if options.json:
        setting = {"hosts": options.hosts, "ranks_per_host": options.ranks_per_host, "rate": options.rate}
        options.json.write_text(json.dumps({"setting": setting, "cluster": cluster, "rows": rows}, indent=1) + "\n")


main()
