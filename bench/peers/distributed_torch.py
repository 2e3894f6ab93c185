"""GPT-2 training under the distributed systems of PyTorch and DeepSpeed over Gloo, started by mpirun: peers of
bench/sharding.py.

`ddp` computes in fp32 and sends gradients in --wire (a communication hook that casts; the Gloo of PyTorch 1.13 has no
bf16). The others need PyTorch 2: `fsdp` shards over all ranks and reduces every micro-step (ZeRO-3), `hsdp` shards
inside a host and sums across hosts once per step, both with bf16 parameters and reductions under fp32 masters;
`deepspeed` is its ZeRO stage 3 in bf16, `deepspeed-hpz` with ZeRO++'s secondary partition inside a host (its
quantized gathers and gradients need CUDA). `post-local-sgd`, `diloco` and, with torchft installed, `torchft-diloco` and
`torchft-streaming-diloco` agree every --period steps: peers of bench/local_steps.py. Rank 0 writes a line of JSON per step
and prints the version.
"""
import argparse
import contextlib
import json
import os
import socket
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gpt2_torch  # noqa: E402
import torch_step  # noqa: E402


class PyTorch:
    def __init__(self, model, arguments):
        self.model, self.accumulation = model, arguments.accumulation

    def prepare(self, torch):
        """Once the parameters are those that this rank updates."""
        self.optimizer = torch_step.make_optimizer(torch, self.model)
        self.clip = torch.nn.utils.clip_grad_norm_
        self.version = f"PyTorch {torch.__version__}"

    def update(self):
        self.clip(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.agree()
        self.optimizer.zero_grad(set_to_none=True)

    def agree(self):
        """Of replicas that update weights of their own."""


class Ddp(PyTorch):
    def __init__(self, torch, model, arguments):
        super().__init__(model, arguments)
        masks = [name for name, buffer in model.named_buffers() if buffer.dtype == torch.bool]  # Gloo has no bool
        parallel = torch.nn.parallel.DistributedDataParallel
        parallel._set_params_and_buffers_to_ignore_for_model(model, masks)
        self.forward = parallel(model)
        if arguments.wire != "fp32":
            wire = {"fp16": torch.float16, "bf16": torch.bfloat16}[arguments.wire]

            def narrow(_, bucket):
                small = bucket.buffer().div(arguments.ranks).to(wire)
                future = torch.distributed.all_reduce(small, async_op=True).get_future()
                return future.then(lambda done: done.value()[0].to(torch.float32))

            self.forward.register_comm_hook(None, narrow)
        self.prepare(torch)

    def micro_step(self, inputs, targets, last):
        with contextlib.nullcontext() if last else self.forward.no_sync():
            (self.forward(inputs, targets) / self.accumulation).backward()


class Fsdp(PyTorch):
    def __init__(self, torch, model, arguments):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        super().__init__(model, arguments)
        self.hybrid = arguments.system == "hsdp"
        hosts = arguments.ranks // arguments.ranks_per_host
        shape, names = ((hosts, arguments.ranks_per_host), ("across", "inside")) if self.hybrid else (
            (arguments.ranks,), ("all",))
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        for module in [*model.blocks, model]:
            fully_shard(module, mesh=mesh, mp_policy=policy)
        for module in model.modules():
            if hasattr(module, "set_force_sum_reduction_for_comms"):
                module.set_force_sum_reduction_for_comms(True)  # Gloo has no average
        self.prepare(torch)

    def micro_step(self, inputs, targets, last):
        if self.hybrid:
            self.model.set_requires_all_reduce(last)
        (self.model(inputs, targets) / self.accumulation).backward()


class PostLocalSgd(PyTorch):
    """PyTorch's averager of models, every --period steps."""

    def __init__(self, torch, model, arguments):
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

        super().__init__(model, arguments)
        self.prepare(torch)
        self.averager = PeriodicModelAverager(period=arguments.period, warmup_steps=0)

    def micro_step(self, inputs, targets, last):
        del last
        (self.model(inputs, targets) / self.accumulation).backward()

    def agree(self):
        self.averager.average_parameters(list(self.model.parameters()))  # those that have gradients


class DiLoCo(PostLocalSgd):
    """Blocking, written down as published: PyTorch itself has none."""

    def __init__(self, torch, model, arguments):
        super().__init__(torch, model, arguments)
        self.all_reduce, self.flat = torch.distributed.all_reduce, torch.nn.utils.parameters_to_vector
        self.load, self.share, self.period, self.count = torch.nn.utils.vector_to_parameters, 1 / arguments.ranks, arguments.period, 0
        self.outer = torch.nn.Parameter(self.flat(model.parameters()).detach().clone())
        self.outer_optimizer = torch.optim.SGD([self.outer], lr=0.7, momentum=0.9, nesterov=True)

    def agree(self):
        self.count += 1
        if self.count % self.period:
            return
        self.outer.grad = self.outer.detach() - self.flat(self.model.parameters()).detach()
        self.all_reduce(self.outer.grad)
        self.outer.grad.mul_(self.share)
        self.outer_optimizer.step()
        self.load(self.outer.detach().clone(), self.model.parameters())  # which become views of it


class Torchft(PostLocalSgd):
    """torchft's DiLoCo, one flat sum per fragment. Every rank is a replica group of its own; rank 0 also runs the lighthouse, which
    every border asks who takes part. Its streaming form has two fragments, one every half period, which are taken up in the step
    before the next one leaves; its 8-bit sums need an accelerator."""

    def __init__(self, torch, model, arguments):
        os.environ["RUST_LOG"] = "error"  # what a border logs would travel over the links that are measured
        from importlib import metadata

        from torchft import Manager, ProcessGroupGloo
        from torchft.coordination import LighthouseServer
        from torchft.local_sgd import DiLoCo as Agreement

        super().__init__(torch, model, arguments)
        rank, host = int(os.environ["RANK"]), socket.gethostname()
        if rank == 0:
            self.lighthouse = LighthouseServer(bind="0.0.0.0:29501", min_replicas=arguments.ranks, join_timeout_ms=60000)
        port = 29502 + int(os.environ["LOCAL_RANK"])
        self.store = torch.distributed.TCPStore(host, port, is_master=True, wait_for_workers=False)
        manager = Manager(
            ProcessGroupGloo(), None, None, arguments.ranks, use_async_quorum=False, rank=0, world_size=1, store_addr=host, store_port=port,
            lighthouse_addr="http://host0:29501", replica_id=str(rank), init_sync=False, max_retries=0)  # a round that fails ends the run
        parts, rate, more = [model], 0.7, {}
        if arguments.system == "torchft-streaming-diloco":  # as Strait's: layers in turn, all else in the first fragment
            rest = [model.tokens, model.positions, model.norm]  # the head is the tokens' weight
            parts = [torch.nn.ModuleList(part) for part in ([*model.blocks[::2], *rest], model.blocks[1::2])]
            rate, more = 0.4, {"fragment_sync_delay": arguments.period // 2 - 1, "fragment_update_alpha": 0.5}
        outer = [torch.optim.SGD(part.parameters(), lr=rate, momentum=0.9, nesterov=True) for part in parts]
        Agreement(manager, parts, self.optimizer, outer, arguments.period, use_bucketization=True, **more).__enter__()  # hooks the optimizer
        name = metadata.packages_distributions()["torchft"][0]
        self.version = f"{name} {metadata.version(name)}, {self.version}"

    def agree(self):
        """The optimizer's hooks have."""


class DeepSpeed:
    def __init__(self, torch, model, arguments):
        import deepspeed

        self.version = f"DeepSpeed {deepspeed.__version__}, PyTorch {torch.__version__}"
        zero = {"stage": 3, "overlap_comm": True, "contiguous_gradients": True,
                "stage3_param_persistence_threshold": 10000}
        if arguments.system == "deepspeed-hpz":
            zero["zero_hpz_partition_size"] = arguments.ranks_per_host
        settings = {"train_micro_batch_size_per_gpu": arguments.batch, "bf16": {"enabled": True},
                    "gradient_accumulation_steps": arguments.accumulation, "gradient_clipping": 1.0,
                    "zero_allow_untested_optimizer": True, "zero_optimization": zero, "steps_per_print": 1 << 30}
        self.engine, *_ = deepspeed.initialize(
            model=model, optimizer=torch_step.make_optimizer(torch, model), config=settings, dist_init_required=False)

    def micro_step(self, inputs, targets, last):
        del last  # the engine counts
        self.engine.backward(self.engine(inputs, targets))
        self.engine.step()

    def update(self):
        pass


SYSTEMS = {"ddp": Ddp, "fsdp": Fsdp, "hsdp": Fsdp, "post-local-sgd": PostLocalSgd, "diloco": DiLoCo, "torchft-diloco": Torchft,
           "torchft-streaming-diloco": Torchft, "deepspeed": DeepSpeed, "deepspeed-hpz": DeepSpeed}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", choices=SYSTEMS)
    for name, default in (("layers", 6), ("heads", 8), ("width", 512), ("vocabulary", 256), ("positions", 128),
                          ("batch", 4), ("context", 128), ("accumulation", 1), ("steps", 6), ("threads", 1),
                          ("ranks-per-host", 2), ("period", 30)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--metrics", help="file for a line per step", default="/dev/stdout")
    parser.add_argument("--wire", choices=["fp32", "fp16", "bf16"], default="fp16")
    arguments = parser.parse_args()
    arguments.no_bias, arguments.precision = False, "fp32"
    rank, arguments.ranks = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "eth0")
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(arguments.ranks), MASTER_ADDR="host0", MASTER_PORT="29500",
                      LOCAL_RANK=str(rank % arguments.ranks_per_host), DS_ACCELERATOR="cpu",
                      LOCAL_WORLD_SIZE=str(arguments.ranks_per_host))
    import torch

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1337)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=arguments.ranks)
    model = gpt2_torch.make_model_class(torch)(arguments)
    system = SYSTEMS[arguments.system](torch, model, arguments)
    tokens = torch.randint(arguments.vocabulary, (arguments.batch, arguments.context + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    metrics = open(arguments.metrics, "w", buffering=1, encoding="utf-8") if rank == 0 else None
    for _ in range(arguments.steps):
        if not isinstance(system, PostLocalSgd):  # whose replicas run by themselves
            torch.distributed.barrier()
        start = time.perf_counter()
        for micro_step in range(arguments.accumulation):
            system.micro_step(inputs, targets, micro_step == arguments.accumulation - 1)
        system.update()
        if metrics:
            print(json.dumps({"seconds": time.perf_counter() - start}), file=metrics)
    if metrics:
        print(system.version)


main()
