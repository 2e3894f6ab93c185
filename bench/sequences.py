#!/usr/bin/env python3
"""How fast documents of unequal length train under each layout, on emulated clusters: Zeppelin's plans beside packed, even
and hybrid ones and gathered keys, the same batches for all.

For each rate of the links between hosts: probe the cluster, then train examples/zeppelin.toml for some steps under each
layout, in turns; the first steps warm up. Seconds are sums over the same batches. With --peer-python also a ring in
PyTorch over Gloo, to whose ranks every document is spread (bench/peers/ring_torch.py). Needs root (bench/netlab)."""
import argparse
import json
import pathlib
import re
import signal
import statistics
import sys
import tempfile
import tomllib

sys.dont_write_bytecode = True
from lab import ROOT, Lab, sets_of, spans  # noqa: E402

EXAMPLE = ROOT / "examples/zeppelin.toml"
LAYOUTS = {"zeppelin": ["engine=zeppelin"], "zeppelin, not filled": ["engine=zeppelin", "fill=false"],
           "zeppelin, not remapped": ["engine=zeppelin", "remap=none"], "zeppelin, remapped": ["engine=zeppelin", "remap=qkv"],
           "zeppelin, stream remapped": ["engine=zeppelin", "remap=residual"],
           "zeppelin, heads": ["engine=zeppelin", "head_ranks=2"], "even, heads": ["engine=even", "head_ranks=2"],
           "even": ["engine=even"], "packed": ["engine=packed"], "hybrid": ["engine=hybrid"],
           "hybrid, not remapped": ["engine=hybrid", "remap=none"], "hybrid, remapped": ["engine=hybrid", "remap=qkv"],
           "hybrid, stream remapped": ["engine=hybrid", "remap=residual"],
           "gathered": ["engine=gathered", "plan=false"]}
PEER = "PyTorch ring"
LINEAR = re.compile(r"= (forward|backward|forward_backward|forward_segments|backward_input|backward_weight) block")


def lab_of(options, rate):
    return Lab(options.hosts, options.ranks_per_host, rate)


def keys(options):
    ranks = options.hosts * options.ranks_per_host
    return [f"mesh.axes.sequence={ranks}", f"train.global_batch_tokens={options.tokens}", f"model.shape.context={options.context}",
            f"data.path=synthetic:lengths/{options.lengths}"]


def rows_of(options, layout):
    """Rows of a rank for layouts that leave ranks unequal, in place of room for a whole document more; as a key."""
    even = options.tokens // (options.hosts * options.ranks_per_host)
    more = {"packed": 1.25, "hybrid": 1.5}.get(layout.split(",")[0], options.room)
    return [f"sequence.capacity_tokens={int(even * more)}"] if more else []


def linear_seconds(options, run_dir):
    """Of each step and rank, in all products but attention's, by the ranks' timelines: the timed steps, which begin_step and
    finish_step enclose (an evaluation follows)."""
    ranks = []
    for path in sorted(run_dir.glob("timeline-rank-*.json")):
        (computed,) = spans(path).values()
        ends = [end for name, _, _, end in computed if "finish_step" in name]
        begins = [begin for name, _, begin, _ in computed if "= begin_step" in name]
        ranks.append([sum(end - begin for name, _, begin, end in computed if first <= begin < last and LINEAR.search(name))
                      for first, last in zip(begins[options.warm_up:], ends[options.warm_up:])])
    return [list(step) for step in zip(*ranks)]


def linear_imbalance(runs):
    """Time of the slowest rank over the mean, the mean over the steps. The runs have the same batches: a rank's time is its median
    over them, so that what took a processor away in one of them is no imbalance."""
    steps = [[statistics.median(rank) for rank in zip(*step)] for step in zip(*(run["linear"] for run in runs))]
    return statistics.fmean(max(step) / statistics.fmean(step) for step in steps)


def rate_of(options, threshold):
    """At which attention on so many tokens of a rank takes as long as their keys and values do over a link: bits per second
    8 e (k / h) F / n*, with F of a rank as the probe measures it. A probe over other links finds F alike."""
    with tempfile.TemporaryDirectory() as name:
        file = pathlib.Path(name, "cluster.toml")
        lab_of(options, "1gbit").run(options.strait, "probe", EXAMPLE, *sets_of(keys(options)), "-o", file)
        flops = tomllib.loads(file.read_text())["rates"]["fp32_attention_flops_per_second"]
    shape = tomllib.loads(EXAMPLE.read_text())["model"]["shape"]
    rate = f"{8 * 4 * shape['kv_heads'] / shape['heads'] * flops / threshold / 1e6:.0f}mbit"
    print(f"attention of {threshold} tokens hides their transfer from {rate}: a rank reaches {flops / 1e9:.1f} GFLOP/s",
          file=sys.stderr, flush=True)
    return rate


def predicted_batch(run_dir):
    """Seconds of the step whose batch a run's prediction is for: of all its batches the one whose layers are to take the
    median of the predicted times. None where batches are not planned."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    if "sequence_plan" not in lines[0]:
        return None
    tried = sorted((line["sequence_plan"]["predicted"]["layers_seconds"], at) for at, line in enumerate(lines))
    return lines[tried[len(tried) // 2][1]]["seconds"]


def train(options, rate, layout, folder):
    words = [*keys(options), f"cluster.file={folder / 'cluster.toml'}", f"train.steps={options.warm_up + options.steps}", "evaluation.batches=1",
             *(f"sequence.{key}" for key in LAYOUTS[layout]), *rows_of(options, layout),
             f"output.timeline_steps={options.warm_up + options.steps}"]
    lines, figures = lab_of(options, rate).train(options.strait, EXAMPLE, folder, words, options.warm_up)
    plans = [line["sequence_plan"] for line in lines if "sequence_plan" in line]
    zones = {zone: sum(plan["documents"][zone] for plan in plans) for zone in ("local", "intra", "inter")}
    return {"seconds": sum(line["seconds"] for line in lines), "predicted": figures["predicted_seconds_per_step"],
            "predicted_for": predicted_batch(folder / "run"),
            "exposed": figures["exposed_communication_share"], "zones": zones if plans else None,
            "between": statistics.fmean(line["bytes_per_level"][-1]["bytes"] for line in lines),
            "linear": linear_seconds(options, folder / "run") if plans else None, "tokens": [plan["linear"]["slowest_over_mean"] for plan in plans],
            "moved": statistics.fmean(plan["linear"]["moved_tokens"] for plan in plans) if plans else None,
            "remapped": sum(plan["linear"]["remapped"] for plan in plans),
            "planning": statistics.fmean(plan["planning_seconds"] for plan in plans) if plans else None,
            "losses": [line["loss"] for line in lines]}


def train_peer(options, rate, lengths, folder):
    path, metrics = folder / "lengths.jsonl", folder / "peer"
    path.write_text("".join(json.dumps(batch) + "\n" for batch in lengths))
    metrics.unlink(missing_ok=True)
    lab_of(options, rate).run("env", f"OPENBLAS_CORETYPE={options.blas}", options.peer_python,
                              ROOT / "bench/peers/ring_torch.py", "--lengths", path, "--metrics", metrics)
    seconds = [json.loads(line)["seconds"] for line in metrics.read_text().splitlines()]
    return {"seconds": sum(seconds[options.warm_up:])}


def measure(options):
    """Runs of each row by rate. Layouts take turns, because machines change their speed from minute to minute."""
    rows = {}
    with tempfile.TemporaryDirectory() as name:
        for rate in options.rate:
            folder = pathlib.Path(name, rate)
            folder.mkdir()
            if options.cluster:
                (folder / "cluster.toml").write_text(options.cluster.read_text())
            else:
                lab_of(options, rate).run(options.strait, "probe", EXAMPLE, *sets_of(keys(options)), "-o", folder / "cluster.toml")
            print(rate, (folder / "cluster.toml").read_text(), file=sys.stderr, flush=True)
            for _ in range(options.repeats):
                for layout in options.layouts:
                    one = train(options, rate, layout, folder)
                    if layout == options.layouts[0]:
                        lengths = [json.loads(line)["sequence_plan"]["lengths"] for line in
                                   (folder / "run/metrics.jsonl").read_text().splitlines()]
                    rows.setdefault((rate, layout), []).append(one)
                    print(rate, layout, json.dumps(one), file=sys.stderr, flush=True)
                if options.peer_python:
                    one = train_peer(options, rate, lengths, folder)
                    rows.setdefault((rate, PEER), []).append(one)
                    print(rate, PEER, json.dumps(one), file=sys.stderr, flush=True)
    return rows


def table(options, rows):
    hosts = f"{options.hosts} hosts of {options.ranks_per_host} ranks"
    lines = [f"`bench/sequences.py`: {hosts}, {options.tokens} tokens a step, documents {options.lengths}; medians of "
             f"{options.repeats} runs, each the sum of {options.steps} steps over the same batches.", "",
             f"| links | layout | seconds per step | all runs | {options.layouts[0]} is faster by | predicted for one batch, which took | "
             "waiting for links | MB per step between hosts | documents local, in a host, between | steps remapped | tokens moved | "
             "slowest over mean: linear tokens, linear time |", "|---" * 12 + "|"]
    for (rate, layout), runs in rows.items():
        seconds = [run["seconds"] / options.steps for run in runs]
        mine, best = statistics.median(seconds), statistics.median(run["seconds"] for run in rows[rate, options.layouts[0]])
        spread = ", ".join(f"{one:.2f}" for one in seconds)
        cells = [rate, layout, f"{mine:.2f}", spread, f"{mine * options.steps / best:.2f}"]
        if layout != PEER:
            one = runs[0]
            zones = "" if one["zones"] is None else ", ".join(str(count) for count in one["zones"].values())
            took = mine if one["predicted_for"] is None else statistics.median(run["predicted_for"] for run in runs)
            cells += [f"{one['predicted']:.2f}, {took:.2f} ({one['predicted'] / took - 1:+.0%})", f"{one['exposed']:.0%}",
                      f"{one['between'] / 1e6:.1f}", zones]
            cells += [f"{one['remapped']}", f"{one['moved']:.0f}", f"{statistics.fmean(one['tokens']):.3f}, {linear_imbalance(runs):.3f}"
                      ] if one["tokens"] else [""] * 3
        else:
            cells += [""] * 7
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strait", type=pathlib.Path, default=ROOT / "build/release/strait")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, default=2)
    parser.add_argument("--rate", nargs="+", default=["100mbit", "1gbit"])
    parser.add_argument("--threshold", nargs="+", type=int, metavar="TOKENS", help="in place of --rate: rates at which attention on so "
                        "many tokens of a rank hides their transfer, by the speed that a probe measures")
    parser.add_argument("--tokens", type=int, default=32768, help="of a step")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--cluster", type=pathlib.Path, help="cluster file of the one rate, in place of a probe")
    parser.add_argument("--room", type=float, help="of a rank, in even parts of the tokens, where a layout needs no more; the default "
                        "is the program's")
    parser.add_argument("--lengths", default="corpus/scale=0.25/longest=8192", help="distribution, as in data.path")
    parser.add_argument("--steps", type=int, default=4, help="that are timed")
    parser.add_argument("--warm-up", type=int, default=3, help="steps before those")
    parser.add_argument("--repeats", type=int, default=2, help="of each run; medians are shown")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--peer-python", help="with PyTorch; without it there is no peer")
    parser.add_argument("--blas", default="SKYLAKEX", help="processor that the peer's OpenBLAS takes this one for")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="writes the table there")
    options = parser.parse_args()
    if options.threshold:
        options.rate = [rate_of(options, tokens) for tokens in options.threshold]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the lab too
    text = table(options, measure(options))
    print(text, end="")
    if options.output:
        options.output.write_text(text)


main()
