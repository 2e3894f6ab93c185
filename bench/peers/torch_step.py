"""What the peers of `strait bench step` share: flags, optimizer and the protocol of a driven training step.

AdamW with weight decay on matrices and embeddings only, PyTorch's defaults; gradients are freed between steps.

Protocol, on standard output: `ready TORCH_VERSION PARAMETERS` once the model stands, then for every line read one
training step and `SECONDS LOSS`. Ends at end of input. Anything that fails prints `error MESSAGE`.
"""

import argparse
import os
import sys
import time


def make_parser(description):
    parser = argparse.ArgumentParser(description=description)
    for name, default in (("layers", 12), ("heads", 12), ("width", 768), ("vocabulary", 50257), ("batch", 4),
                          ("context", 64), ("threads", 2)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--precision", choices=["fp32", "fp64", "bf16"], default="fp32", help="bf16: autocast")
    parser.add_argument("--clip-norm", type=float, default=0.0, help="0 = off")
    parser.add_argument("--compile", action="store_true", help="torch.compile, of PyTorch 2")
    return parser


def rank_of_mpirun():
    """Of this process, and of how many."""
    return int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])


def join_world(torch, threads):
    """Makes the processes of an mpirun one world of Gloo, which meets at host0 (bench/netlab), with equal seeds."""
    rank, ranks = rank_of_mpirun()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "eth0")
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="host0", MASTER_PORT="29500")
    torch.set_num_threads(threads)
    torch.manual_seed(1337)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)


def make_optimizer(torch, model):
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95))


def train(arguments, make_model_class):
    import torch

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1337)
    torch.set_default_dtype(torch.float64 if arguments.precision == "fp64" else torch.float32)
    model = make_model_class(torch)(arguments)
    optimizer = make_optimizer(torch, model)
    forward = torch.compile(model) if arguments.compile else model
    tokens = torch.randint(arguments.vocabulary, (arguments.batch, arguments.context + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    count = sum(parameter.numel() for parameter in model.parameters())
    print("ready", torch.__version__, count, flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.precision == "bf16"):
            loss = forward(inputs, targets)
        loss.backward()
        if arguments.clip_norm > 0.0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), arguments.clip_norm)
        optimizer.step()
        value = loss.item()
        print(f"{time.perf_counter() - start:.9f} {value:.9f}", flush=True)


def drive(arguments, make_model_class):
    try:
        train(arguments, make_model_class)
    except Exception as error:  # the other side shows it as the reason for a missing peer
        print("error", type(error).__name__, str(error).splitlines()[0] if str(error) else "", flush=True)
        sys.exit(1)
