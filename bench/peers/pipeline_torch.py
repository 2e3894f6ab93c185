"""GPT-2 training under PyTorch's 1F1B (torch.distributed.pipelining, PyTorch 2.5 or newer) over Gloo, started by
mpirun: a peer of bench/pipelines.py.

The hosts are the stages; the ranks of a host share a stage and sum its gradients once per step. Matrices multiply in
bf16 (autocast) under fp32 weights, activations and their gradients cross in bf16; the head is not tied and nothing
clips, as in the run that it is compared with. Rank 0 writes a line of JSON per step and prints the version, or `missing`
and why.
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
    for name, default in (("layers", 6), ("heads", 8), ("width", 512), ("vocabulary", 256), ("context", 64),
                          ("micro-batch", 1), ("micro-batches", 16), ("steps", 7), ("threads", 1), ("ranks-per-host", 1)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--metrics", help="file for a line per step", default="/dev/stdout")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    arguments = parser.parse_args()
    arguments.no_bias, arguments.positions = False, arguments.context
    return arguments


def make_stage(torch, arguments, stage, stages):
    """The part of the model that a stage has: blocks, with the embedding before the first and the head behind the last."""
    model = gpt2_torch.make_model_class(torch)(arguments)
    first, last = stage * arguments.layers // stages, (stage + 1) * arguments.layers // stages
    wire = torch.bfloat16 if arguments.precision == "bf16" else torch.float32

    class Stage(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList(model.blocks[first:last])
            if stage == 0:
                self.tokens, self.positions = model.tokens, model.positions
            if stage == stages - 1:
                self.norm = model.norm
                self.head = torch.nn.Linear(arguments.width, arguments.vocabulary, bias=False)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16, enabled=arguments.precision == "bf16"):
                x = self.tokens(x) + self.positions(torch.arange(x.shape[1])) if stage == 0 else x.float()
                for block in self.blocks:
                    x = block(x)
                return self.head(self.norm(x)).float() if stage == stages - 1 else x.to(wire)

    return Stage()


def sum_gradients(torch, module, group, ranks):
    """Over the ranks that share a stage, in one message."""
    if ranks == 1:
        return
    gradients = [parameter.grad for parameter in module.parameters()]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients]).div_(ranks)
    torch.distributed.all_reduce(flat, group=group)
    begin = 0
    for gradient in gradients:
        gradient.copy_(flat[begin:begin + gradient.numel()].view_as(gradient))
        begin += gradient.numel()


def main():
    arguments = parse_arguments()
    rank, ranks = torch_step.rank_of_mpirun()
    try:
        import torch
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    except ImportError as error:
        if rank == 0:
            print(f"missing: {error}")
        return
    torch_step.join_world(torch, arguments.threads)
    distributed = torch.distributed
    inside = arguments.ranks_per_host
    stages, stage = ranks // inside, rank // inside
    across = [distributed.new_group([place + inside * other for other in range(stages)]) for place in range(inside)]
    shared = [distributed.new_group([inside * other + place for place in range(inside)]) for other in range(stages)]
    module = make_stage(torch, arguments, stage, stages)
    optimizer = torch_step.make_optimizer(torch, module)

    def loss_of(logits, targets):
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    pipeline = PipelineStage(module, stage, stages, torch.device("cpu"), group=across[rank % inside])
    schedule = Schedule1F1B(pipeline, arguments.micro_batches, loss_fn=loss_of)
    tokens = torch.randint(arguments.vocabulary, (arguments.micro_batch * arguments.micro_batches, arguments.context + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    metrics = open(arguments.metrics, "w", buffering=1, encoding="utf-8") if rank == 0 else None
    for _ in range(arguments.steps):
        distributed.barrier()
        start = time.perf_counter()
        losses = []
        given = {"target": targets, "losses": losses} if stage == stages - 1 else {}
        schedule.step(*([inputs] if stage == 0 else []), **given)
        sum_gradients(torch, module, shared[stage], inside)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if metrics:
            print(json.dumps({"seconds": time.perf_counter() - start}), file=metrics)
    distributed.barrier()
    if metrics:
        print(f"PyTorch {torch.__version__}")
    distributed.destroy_process_group()


main()
