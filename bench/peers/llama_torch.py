"""Llama training steps in eager PyTorch, driven line by line, as a peer of `strait bench step`.

RMSNorm, rotary positions on half-split pairs, SwiGLU, grouped queries, no biases, no dropout. Protocol: torch_step.py.
"""

import math
import sys

sys.dont_write_bytecode = True
import torch_step  # noqa: E402


def parse_arguments():
    parser = torch_step.make_parser(__doc__)
    for name, default in (("positions", 1024), ("kv-heads", 12), ("ffn-width", 2048)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--rope-theta", type=float, default=1e4)
    parser.add_argument("--norm-epsilon", type=float, default=1e-5)
    parser.add_argument("--tied-head", action="store_true")
    return parser.parse_args()


def make_model_class(torch):
    functional, nn = torch.nn.functional, torch.nn

    class RmsNorm(nn.Module):
        """torch 1.13 has none."""

        def __init__(self, width, epsilon):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))
            self.epsilon = epsilon

        def forward(self, x):
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.weight

    def rotated(x, cosine, sine):
        low, high = x.chunk(2, dim=-1)
        return x * cosine + torch.cat((-high, low), dim=-1) * sine

    class Block(nn.Module):
        def __init__(self, a):
            super().__init__()
            self.heads, self.kv_heads, self.head_width = a.heads, a.kv_heads, a.width // a.heads
            self.norm1, self.norm2 = RmsNorm(a.width, a.norm_epsilon), RmsNorm(a.width, a.norm_epsilon)
            self.qkv = nn.Linear(a.width, (a.heads + 2 * a.kv_heads) * self.head_width, bias=False)
            self.output = nn.Linear(a.width, a.width, bias=False)
            self.gate_up = nn.Linear(a.width, 2 * a.ffn_width, bias=False)
            self.down = nn.Linear(a.ffn_width, a.width, bias=False)
            exponents = torch.arange(0, self.head_width, 2) / self.head_width
            angles = torch.outer(torch.arange(a.positions), a.rope_theta ** -exponents)
            for name, table in (("cosine", angles.cos()), ("sine", angles.sin())):
                self.register_buffer(name, torch.cat((table, table), dim=-1), persistent=False)
            ones = torch.ones(a.positions, a.positions, dtype=torch.bool)
            self.register_buffer("hidden", torch.triu(ones, diagonal=1), persistent=False)

        def attend(self, x):
            batch, tokens, width = x.shape
            split = self.qkv(x).view(batch, tokens, -1, self.head_width).transpose(1, 2)
            query, key, value = split.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
            cosine, sine = self.cosine[:tokens], self.sine[:tokens]
            query, key = rotated(query, cosine, sine), rotated(key, cosine, sine)
            shared = self.heads // self.kv_heads
            key, value = (t.repeat_interleave(shared, dim=1) if shared > 1 else t for t in (key, value))
            scores = query @ key.transpose(-2, -1) / math.sqrt(self.head_width)
            scores = scores.masked_fill(self.hidden[:tokens, :tokens], float("-inf"))
            mixed = functional.softmax(scores, dim=-1) @ value
            return self.output(mixed.transpose(1, 2).reshape(batch, tokens, width))

        def forward(self, x):
            x = x + self.attend(self.norm1(x))
            gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
            return x + self.down(functional.silu(gate) * up)

    class Llama(nn.Module):
        def __init__(self, a):
            super().__init__()
            self.tokens = nn.Embedding(a.vocabulary, a.width)
            self.blocks = nn.ModuleList(Block(a) for _ in range(a.layers))
            self.norm = RmsNorm(a.width, a.norm_epsilon)
            self.head = nn.Linear(a.width, a.vocabulary, bias=False)
            if a.tied_head:
                self.head.weight = self.tokens.weight
            for name, parameter in self.named_parameters():
                if parameter.dim() == 2:
                    residual = name.endswith(("output.weight", "down.weight"))
                    nn.init.normal_(parameter, 0.0, 0.02 / math.sqrt(2 * a.layers) if residual else 0.02)

        def forward(self, inputs, targets):
            x = self.tokens(inputs)
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.norm(x))
            return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))

    return Llama


if __name__ == "__main__":
    torch_step.drive(parse_arguments(), make_model_class)
