"""Llama training in PyTorch where every document is shared by all ranks in a ring (zig-zag chunks, the layout of
Transformer Engine's context parallelism), over Gloo: peer of bench/sequences.py, started by mpirun.

Keys and values of all documents travel together to the next rank while those that are here are attended to; the backward
sends them around again and the sums of their gradients one hop behind, as ring-flash-attention does. Gradients are
summed over ranks once per step. `--lengths FILE` holds the lengths of each step's documents, a JSON list per line. Rank 0
writes a line of JSON per step and prints the version. The first step is checked against attention on one rank with
--check.
"""
import argparse
import json
import math
import os
import time


def cuts(length, ranks):
    return [j * length // (2 * ranks) for j in range(2 * ranks + 1)]


class Batch:
    """Which positions of which documents a rank has, and where its rows of each begin."""

    def __init__(self, lengths, rank, ranks):
        self.spans = []  # of each rank, each document: [(begin, end), (begin, end)]
        for member in range(ranks):
            edges = [cuts(length, ranks) for length in lengths]
            self.spans.append([[(e[member], e[member + 1]), (e[2 * ranks - 1 - member], e[2 * ranks - member])]
                               for e in edges])
        self.rows = [sum(b - a for document in spans for a, b in document) for spans in self.spans]
        self.positions = [p for document in self.spans[rank] for a, b in document for p in range(a, b)]

    def blocks(self, queries, keys):
        """(first row, rows, first key row, keys, offset of the mask or None) of pairs of chunks that see each other."""
        row = key_row = 0
        for mine, others in zip(self.spans[queries], self.spans[keys]):
            at = row
            for a, b in mine:
                key_at = key_row
                for c, d in others:
                    if a < b and c < d and c < b:
                        yield at, b - a, key_at, d - c, (a - c if d > a else None)
                    key_at += d - c
                at += b - a
            row += sum(b - a for a, b in mine)
            key_row += sum(d - c for c, d in others)


def ring_attention(torch, batch, rank, ranks):
    dist = torch.distributed

    def exchange(tensor, rows):
        """Starts to send to the next rank and to receive so many rows from the one before."""
        got = tensor.new_empty((tensor.shape[0], rows, tensor.shape[2]))
        flights = [dist.isend(tensor, (rank + 1) % ranks), dist.irecv(got, (rank - 1) % ranks)]
        return got, flights

    def masked(scores, offset):
        if offset is None:
            return scores
        rows, keys = scores.shape[-2:]
        return scores.masked_fill(torch.ones(rows, keys, dtype=torch.bool).triu(offset + 1), -math.inf)

    class Ring(torch.autograd.Function):
        @staticmethod
        def forward(context, q, kv):
            heads, rows, width = q.shape
            out, lse = torch.zeros_like(q), torch.full((heads, rows), -math.inf)
            held = kv
            for step in range(ranks):
                holder = (rank - step) % ranks
                if step + 1 < ranks:
                    coming, flights = exchange(held, batch.rows[(holder - 1) % ranks])
                for at, count, key_at, keys, offset in batch.blocks(rank, holder):
                    k, v = held[:heads, key_at:key_at + keys], held[heads:, key_at:key_at + keys]
                    scores = masked(q[:, at:at + count] @ k.transpose(1, 2) / math.sqrt(width), offset)
                    part = torch.logsumexp(scores, -1)
                    new = torch.logaddexp(lse[:, at:at + count], part)
                    here = torch.exp(scores - new[..., None]) @ v
                    keep = torch.exp(lse[:, at:at + count] - new)[..., None]
                    out[:, at:at + count] = out[:, at:at + count] * keep + here
                    lse[:, at:at + count] = new
                if step + 1 < ranks:
                    for flight in flights:
                        flight.wait()
                    held = coming
            context.save_for_backward(q, kv, out, lse)
            return out

        @staticmethod
        def backward(context, gradient):
            q, kv, out, lse = context.saved_tensors
            heads, width = q.shape[0], q.shape[2]
            delta, dq, held, sums, own = (gradient * out).sum(-1), torch.zeros_like(q), kv, None, None
            for step in range(ranks):
                holder = (rank - step) % ranks
                if step + 1 < ranks:
                    coming, flights = exchange(held, batch.rows[(holder - 1) % ranks])
                dkv = torch.zeros_like(held)
                for at, count, key_at, keys, offset in batch.blocks(rank, holder):
                    part = slice(at, at + count)
                    k, v = held[:heads, key_at:key_at + keys], held[heads:, key_at:key_at + keys]
                    scores = masked(q[:, part] @ k.transpose(1, 2) / math.sqrt(width), offset)
                    p = torch.exp(scores - lse[:, part, None])
                    ds = p * (gradient[:, part] @ v.transpose(1, 2) - delta[:, part, None]) / math.sqrt(width)
                    dq[:, part] += ds @ k
                    dkv[:heads, key_at:key_at + keys] += ds.transpose(1, 2) @ q[:, part]
                    dkv[heads:, key_at:key_at + keys] += p.transpose(1, 2) @ gradient[:, part]
                if step == 0:
                    own = dkv
                else:
                    if step > 1:  # what others have summed up of these keys
                        for flight in back:
                            flight.wait()
                        dkv += sums
                    sums, back = exchange(dkv.contiguous(), batch.rows[(holder - 1) % ranks])
                    kept = dkv  # until it is sent
                if step + 1 < ranks:
                    for flight in flights:
                        flight.wait()
                    held = coming
            if ranks > 1:
                for flight in back:
                    flight.wait()
                own = own + sums
            del kept
            return dq, own

    return Ring.apply


def rotate(torch, x, positions):
    half = x.shape[-1] // 2
    angles = positions[:, None] * (10000.0 ** (-torch.arange(half) / half))
    cos, sin = torch.cos(angles), torch.sin(angles)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def make_model(torch, arguments):
    nn, width, ffn = torch.nn, arguments.width, arguments.ffn

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x):
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.between = Norm(), Norm()
            self.qkv, self.output = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.up, self.down = nn.Linear(width, 2 * ffn, bias=False), nn.Linear(ffn, width, bias=False)

        def forward(self, x, positions, attend):
            heads = self.qkv(self.before(x)).view(-1, 3 * arguments.heads, width // arguments.heads).transpose(0, 1)
            n = arguments.heads
            q, k = rotate(torch, heads[:n], positions), rotate(torch, heads[n:2 * n], positions)
            mixed = attend(q.contiguous(), torch.cat([k, heads[2 * n:]]).contiguous())
            x = x + self.output(mixed.transpose(0, 1).reshape(-1, width))
            gate, value = self.up(self.between(x)).chunk(2, -1)
            return x + self.down(nn.functional.silu(gate) * value)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(arguments.vocabulary, width)
            self.blocks = nn.ModuleList([Block() for _ in range(arguments.layers)])
            self.norm, self.head = Norm(), nn.Linear(width, arguments.vocabulary, bias=False)

        def forward(self, tokens, positions, attend):
            x = self.embedding(tokens)
            for block in self.blocks:
                x = block(x, positions, attend)
            return self.head(self.norm(x))

    return Model()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", required=True)
    parser.add_argument("--metrics", required=True)
    for name, value in {"layers": 2, "heads": 4, "width": 256, "ffn": 704, "vocabulary": 256, "threads": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    rank, ranks = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    import torch

    torch.set_num_threads(arguments.threads)
    torch.distributed.init_process_group("gloo", init_method=f"file://{arguments.metrics}.meeting", rank=rank,
                                         world_size=ranks)
    torch.manual_seed(1)
    model = make_model(torch, arguments)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(arguments.lengths) as file:
        steps = [json.loads(line) for line in file]
    for lengths in steps:
        torch.distributed.barrier()
        began = time.time()
        batch = Batch(lengths, rank, ranks)
        positions = torch.tensor(batch.positions)
        tokens = (5 * positions + 3) % arguments.vocabulary
        logits = model(tokens, positions, ring_attention(torch, batch, rank, ranks))
        loss = torch.nn.functional.cross_entropy(logits, (tokens + 5) % arguments.vocabulary, reduction="sum")
        (loss / sum(lengths)).backward()
        if arguments.check:
            check(torch, model, lengths, arguments, ranks)
        flat = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
        torch.distributed.all_reduce(flat)
        at = 0
        for p in model.parameters():
            p.grad.copy_(flat[at:at + p.numel()].view_as(p))
            at += p.numel()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if rank == 0:
            with open(arguments.metrics, "a") as file:
                file.write(json.dumps({"seconds": time.time() - began, "loss": loss.item()}) + "\n")
    if rank == 0:
        print(f"PyTorch {torch.__version__}")


def check(torch, model, lengths, arguments, ranks):
    """Gradients summed over ranks against those of all documents on one rank."""
    names = [(name, p.grad.clone()) for name, p in model.named_parameters()]
    for _, gradient in names:
        torch.distributed.all_reduce(gradient)
    model.zero_grad(set_to_none=True)
    batch = Batch(lengths, 0, 1)
    positions = torch.tensor(batch.positions)
    tokens = (5 * positions + 3) % arguments.vocabulary

    def attend(q, kv):
        heads, mixed = q.shape[0], []
        k, v = kv[:heads], kv[heads:]
        at = 0
        for length in lengths:
            part = slice(at, at + length)
            scores = q[:, part] @ k[:, part].transpose(1, 2) / math.sqrt(q.shape[2])
            scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -math.inf)
            mixed.append(torch.softmax(scores, -1) @ v[:, part])
            at += length
        return torch.cat(mixed, 1)

    loss = torch.nn.functional.cross_entropy(model(tokens, positions, attend), (tokens + 5) % arguments.vocabulary,
                                             reduction="sum")
    (loss / sum(lengths)).backward()
    for (name, gradient), p in zip(names, model.parameters()):
        error = (gradient - p.grad).norm() / p.grad.norm()
        assert error < 1e-4, f"{name}: {error} off one rank's"
        p.grad.copy_(gradient / ranks)
    print("checked against one rank")


main()
