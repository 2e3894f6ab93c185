"""GPT-2 training under PyTorch's tensor parallel (torch.distributed.tensor, PyTorch 2.5 or newer) over Gloo, started by
mpirun: a peer of bench/overlaps.py.

All ranks share every matrix: query, key, value and up by columns, output and down by rows (ColwiseParallel,
RowwiseParallel), embedding, norms and head whole, as torchtitan's simplest plan has them. fp32. Rank 0 writes a line of
JSON per step and prints the version, or `missing` and why.
"""
import argparse
import json
import os
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gpt2_torch  # noqa: E402
import torch_step  # noqa: E402


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("layers", 7), ("heads", 12), ("width", 768), ("vocabulary", 256), ("context", 256), ("batch", 4),
                          ("steps", 8), ("threads", 1)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--metrics", help="file for a line per step", default="/dev/stdout")
    arguments = parser.parse_args()
    arguments.no_bias, arguments.positions = False, arguments.context
    return arguments


def make_model(torch, arguments):
    """The GPT-2 of gpt2_torch with query, key and value as matrices of their own, which columns can be taken from."""
    functional, nn = torch.nn.functional, torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            width = arguments.width
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            y = self.norm1(x)
            parts = [part(y).unflatten(-1, (-1, arguments.width // arguments.heads)).transpose(1, 2)
                     for part in (self.query, self.key, self.value)]
            mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.output(mixed.transpose(1, 2).flatten(2))
            return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    model = gpt2_torch.make_model_class(torch)(arguments)
    model.blocks = nn.ModuleList(Block() for _ in range(arguments.layers))
    return model


def main():
    arguments = parse_arguments()
    rank, ranks = torch_step.rank_of_mpirun()
    try:
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    except ImportError as error:
        if rank == 0:
            print(f"missing: {error}")
        return
    torch_step.join_world(torch, arguments.threads)
    distributed = torch.distributed
    model = make_model(torch, arguments)
    mesh = init_device_mesh("cpu", (ranks,))
    columns, rows = ("query", "key", "value", "up"), ("output", "down")
    for block in model.blocks:
        parallelize_module(block, mesh, {**{name: ColwiseParallel() for name in columns}, **{name: RowwiseParallel() for name in rows}})
    optimizer = torch_step.make_optimizer(torch, model)
    tokens = torch.randint(arguments.vocabulary, (arguments.batch, arguments.context + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    metrics = open(arguments.metrics, "w", buffering=1, encoding="utf-8") if rank == 0 else None
    for _ in range(arguments.steps):
        distributed.barrier()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        model(inputs, targets).backward()
        optimizer.step()
        if metrics:
            print(json.dumps({"seconds": time.perf_counter() - start}), file=metrics)
    distributed.barrier()
    if metrics:
        print(f"PyTorch {torch.__version__}")
    distributed.destroy_process_group()


main()
