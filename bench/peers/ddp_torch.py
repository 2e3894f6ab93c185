"""GPT-2 training under PyTorch's DistributedDataParallel over Gloo, started by mpirun: a peer of bench/sharding.py.

Every rank computes in fp32; with --wire fp16 gradients travel in fp16 (a communication hook that casts; Gloo has no
bf16). Rank 0 prints one line of JSON: seconds of each step.
"""
import argparse
import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gpt2_torch  # noqa: E402
import torch_step  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("layers", 6), ("heads", 8), ("width", 512), ("vocabulary", 256), ("positions", 128),
                          ("batch", 4), ("context", 128), ("accumulation", 1), ("steps", 6), ("threads", 1)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--wire", choices=["fp32", "fp16"], default="fp16")
    arguments = parser.parse_args()
    arguments.no_bias, arguments.precision = False, "fp32"
    import torch
    import torch.distributed as distributed

    rank, ranks = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1337)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "eth0")
    distributed.init_process_group("gloo", init_method="tcp://host0:29500", rank=rank, world_size=ranks)
    model = gpt2_torch.make_model_class(torch)(arguments)
    masks = [name for name, buffer in model.named_buffers() if buffer.dtype == torch.bool]  # Gloo has no bool
    torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, masks)
    parallel = torch.nn.parallel.DistributedDataParallel(model)

    def half_width(_, bucket):
        small = bucket.buffer().div(ranks).to(torch.float16)
        future = distributed.all_reduce(small, async_op=True).get_future()
        return future.then(lambda done: done.value()[0].to(torch.float32))

    if arguments.wire == "fp16":
        parallel.register_comm_hook(None, half_width)
    optimizer = torch_step.make_optimizer(torch, model)
    tokens = torch.randint(arguments.vocabulary, (arguments.batch, arguments.context + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    seconds = []
    for _ in range(arguments.steps):
        distributed.barrier()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        for micro_step in range(arguments.accumulation - 1):
            with parallel.no_sync():
                (parallel(inputs, targets) / arguments.accumulation).backward()
        (parallel(inputs, targets) / arguments.accumulation).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    if rank == 0:
        print(json.dumps({"torch": torch.__version__, "seconds": seconds}), flush=True)


main()
