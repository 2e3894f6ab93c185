#!/usr/bin/env python3
"""Pipelines across the narrow link against data parallelism across it, on emulated clusters.

For each cluster of two hosts: probe it under all its ranks, let `strait plan` rank placements without stages and orders
with them, then train a 19M GPT, whose activations are smaller than its gradients, for a few steps each way; PyTorch's
1F1B (torch.distributed.pipelining) over Gloo beside them on the same links. The planner's pick is run when no row is
it. Each further round probes anew, since a processor's speed changes with what its neighbours do: a run is predicted by
the probe of its round, the table has medians over rounds. Stages are the hosts; ranks of a host share a stage. Nothing
clips, so that H2 needs no validation. The first step warms up, the last, which the evaluation follows, is not counted.
A call runs the cells that its options name and keeps the others of --json. Needs root (bench/netlab).
"""
import argparse
import json
import pathlib
import signal
import statistics
import sys
import tempfile

sys.dont_write_bytecode = True
from lab import ROOT, Lab, call, predictions, processor_ticks, sets_of, spread  # noqa: E402

HOSTS, CONTEXT, SEQUENCES, MICRO_BATCH, WARM_UP = 2, 64, 8, 1, 1  # a step: 512 tokens
ORDERS = ["1f1b", "zero-bubble-h1", "zero-bubble-h2"]
ALONE, INNER = ["zero3"], ["zero++", "zero-topo"]  # where a host has one rank; where it has several
PLACEMENTS = ["ddp", *ALONE, *INNER]
PEER = "PyTorch 1F1B"
ROWS = [*ORDERS, *PLACEMENTS, PEER]
RUN_FILE = """name = "pipelines"
[model]
preset = "nano-char"
shape = {{ layers = 6, heads = 8, kv_heads = 8, width = 512, ffn_width = 2048, context = {context}, bias = true, tied_head = false }}
[data]
path = "{text}"
tokenizer = "byte"
[train]
steps = {steps}
precision = "bf16"
global_batch_size = {sequences}
clip_norm = 0.0
[evaluation]
batches = 1
every_steps = 0
[checkpoint]
asynchronous = false
[cluster]
file = "{cluster}"
"""


class Way:
    """How a row shares the work: a placement over all ranks, or an order of stages with one inside each."""

    def __init__(self, placement, stages, micro_batch, order="1f1b", chunks=1):
        self.placement, self.stages, self.micro_batch, self.order, self.chunks = placement, stages, micro_batch, order, chunks

    def settings(self):
        sets = [f"placement.preset={self.placement}", f"mesh.axes.stage={self.stages}", f"train.micro_batch_size={self.micro_batch}"]
        if self.stages > 1:
            sets += [f"pipeline.order={self.order}", f"pipeline.chunks_per_stage={self.chunks}"]
        return sets_of(sets)

    def name(self):
        if self.stages == 1:
            return self.placement
        return self.order if self.chunks == 1 else f"{self.order} {self.chunks}"

    def title(self):
        return f"{self.name()}, {self.placement}, micro-batch {self.micro_batch}"


def way_of(row, lab):
    if row in PLACEMENTS:
        return Way(row, 1, SEQUENCES // lab.ranks)
    return Way("zero1" if lab.ranks_per_host > 1 else "ddp", HOSTS, MICRO_BATCH, row)


def write_run_file(options, folder):
    run_file = folder / "run.toml"
    run_file.write_text(RUN_FILE.format(context=CONTEXT, text=options.text.resolve(), steps=WARM_UP + options.steps + 1,
                                        sequences=SEQUENCES, cluster=folder / "cluster.toml"))
    return run_file


def plan(options, lab, folder):
    """The planner's candidates in its order, with stages and without."""
    report, found = folder / "plan", []
    call(options.strait, "plan", write_run_file(options, folder), "--ranks", lab.ranks, "--json", report,
         *sets_of(["plan.keep=1000", 'plan.search=["placement", "pipeline", "micro_batch_size"]']))
    for one in json.loads(report.read_text())["candidates"]:
        pipeline = one["pipeline"] or {"order": "1f1b", "chunks_per_stage": 1}
        way = Way(one["placement"], one["mesh"].get("stage", 1), one["micro_batch_size"], pipeline["order"], pipeline["chunks_per_stage"])
        found.append((one["seconds_per_step"], way))
    return found


def pick_of(candidates, lab):
    """The planner's first; among those that it takes for equal, a row of the table."""
    rows = {way_of(row, lab).title() for row in [*ORDERS, *PLACEMENTS]}
    best = [way for seconds, way in candidates if abs(seconds / candidates[0][0] - 1) <= 1e-6]
    return next((way for way in best if way.title() in rows), best[0])


def train(options, lab, way, folder):
    report, run_dir = folder / "report", folder / "run"
    lab.run(options.strait, "train", write_run_file(options, folder), "--json", report, "--set", f"output.run_dir={run_dir}",
            *way.settings())
    figures = json.loads(report.read_text())
    seconds = [json.loads(line)["seconds"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    sent = {row["level"]: row["payload_bytes"] + row["metadata_bytes"] for row in figures["bytes_per_step"]["runtime"]}
    return {"seconds": seconds[WARM_UP:-1], "predicted_seconds": figures["predicted_seconds_per_step"],
            "bytes_per_step": sent["world"], "exposed_share": figures["exposed_communication_share"],
            "loss": figures["train_loss"]}


def train_peer(options, lab, folder):
    """Without seconds where there is no torch.distributed.pipelining."""
    metrics = folder / "metrics.jsonl"
    output = lab.run("env", f"OPENBLAS_CORETYPE={options.blas}", options.peer_python, ROOT / "bench/peers/pipeline_torch.py",
                    "--ranks-per-host", lab.ranks_per_host, "--context", CONTEXT, "--micro-batch", MICRO_BATCH,
                    "--micro-batches", SEQUENCES // MICRO_BATCH // lab.ranks_per_host, "--steps", WARM_UP + options.steps + 1, "--metrics", metrics)
    version = output.strip().splitlines()[-1]
    if version.startswith("missing"):
        return {"seconds": [], "version": version}
    seconds = [json.loads(line)["seconds"] for line in metrics.read_text().splitlines()]
    return {"seconds": seconds[WARM_UP:-1], "version": version}


def probe(options, place, lab):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "cluster.toml").write_text("")
        probe_file = write_run_file(options, folder)
        probe_file.write_text(probe_file.read_text().split("[cluster]")[0])
        lab.run(options.strait, "probe", probe_file, "-o", folder / "cluster.toml")
        place["cluster"] = (folder / "cluster.toml").read_text()


def choose(options, place, lab):
    """The planner's pick, the first time, and the cells to run, whose earlier steps are forgotten."""
    if "pick" not in place:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "cluster.toml").write_text(place["cluster"])
            place["pick"] = vars(pick_of(plan(options, lab, folder), lab))
    ways = {name: way for name, way in ways_of(options, place, lab).items() if not (options.only_missing and name in place["rows"])}
    for name in ways:
        place["rows"].pop(name, None)
    return ways


def measure(options, record, lab):
    place = record.setdefault(str(lab), {"rows": {}})
    for turn in range(options.rounds):
        probe(options, place, lab)
        if turn == 0:
            ways = choose(options, place, lab)
        for name, way in ways.items():
            run_cell(options, place, lab, name, way)
            if options.json:
                options.json.write_text(json.dumps(record, indent=1) + "\n")


def run_cell(options, place, lab, name, way):
    """One run, whose steps are added to those of rounds before."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        (folder / "cluster.toml").write_text(place["cluster"])
        ticks, stolen = processor_ticks()
        row = train_peer(options, lab, folder) if way is None else train(options, lab, way, folder)
        later, stolen_later = processor_ticks()
    before = place["rows"].get(name, {"seconds": [], "stolen_share": 0.0, "rounds": []})
    if way:
        row["rounds"] = before["rounds"] + [{"seconds": statistics.median(row["seconds"]), "predicted_seconds": row.pop("predicted_seconds")}]
    row["seconds"] = before["seconds"] + row["seconds"]
    place["rows"][name] = {**row, "stolen_share": max(before["stolen_share"], (stolen_later - stolen) / (later - ticks))}
    print(lab, name, json.dumps(place["rows"][name]), file=sys.stderr, flush=True)


def ways_of(options, place, lab):
    """The rows that are asked for, and the planner's pick when it is none of them."""
    rows = [row for row in options.rows if row not in (INNER if lab.ranks_per_host == 1 else ALONE)]
    ways = {row: None if row == PEER else way_of(row, lab) for row in rows}
    chosen = Way(*(place["pick"][key] for key in ("placement", "stages", "micro_batch", "order", "chunks")))
    same = [name for name, way in ways.items() if way and way.title() == chosen.title()]
    place["pick"]["row"] = same[0] if same else chosen.title()
    return ways if same else {**ways, chosen.title(): chosen}


def print_table(key, place):
    rows, pick = place["rows"], place["pick"]
    measured = {name: statistics.median(row["seconds"]) for name, row in rows.items() if row["seconds"]}
    ours = {name: seconds for name, seconds in measured.items() if name != PEER}
    print(f"\n{key}\n\n| run | seconds per step | predicted (off, worst round) | MB over the links per step | stolen |\n|---|---|---|---|---|")
    for name in sorted(rows, key=lambda name: measured.get(name, 1e9)):
        row = rows[name]
        if name not in measured:
            print(f"| {name} | {row['version']} | | | |")
            continue
        more = [predictions(row["rounds"]), f"{row['bytes_per_step'] / 1e6:.1f}"] if "rounds" in row else ["", ""]
        print(f"| {name} | {spread(row['seconds'])} | {more[0]} | {more[1]} | {row['stolen_share']:.0%} |")
    chosen = pick["row"] if pick.get("row") in ours else None
    if chosen:
        best = min(ours, key=ours.get)
        print(f"\nThe planner's pick is {chosen}, the fastest of Strait's rows {best}" +
              ("." if best == chosen else f": {ours[chosen] / ours[best] - 1:.0%} faster than the pick."))
    if chosen and PEER in measured:
        print(f"{PEER} ({rows[PEER]['version']}) takes {measured[PEER] / ours[chosen]:.2f} times the pick's time.", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=pathlib.Path, help="any text of 1 MB or so")
    parser.add_argument("--strait", type=pathlib.Path, default=ROOT / "build/release/strait")
    parser.add_argument("--ranks-per-host", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rate", nargs="+", default=["100mbit", "1gbit"])
    parser.add_argument("--steps", type=int, default=5, help="of a run that are timed")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each row, in turns; all their steps count")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--peer-python", default="/usr/bin/python3", help="with the PyTorch (2.5 or newer) of the peer")
    parser.add_argument("--blas", default="SKYLAKEX", help="processor that the peer's OpenBLAS takes this one for")
    parser.add_argument("--json", type=pathlib.Path, help="record that is read, added to and written after each cell")
    parser.add_argument("--only-missing", action="store_true", help="leave out cells that the record has")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the lab too
    record = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    for lab in [Lab(HOSTS, ranks, rate) for ranks in options.ranks_per_host for rate in options.rate]:
        measure(options, record, lab)
    for key, place in record.items():
        print_table(key, place)


main()
