"""GPT-2 training steps in eager PyTorch, driven line by line, as a peer of `strait bench step`.

Function as in nanoGPT: learned positions, pre-norm blocks, tanh-GELU, no dropout, tied head. Protocol: torch_step.py.
"""

import math
import sys

sys.dont_write_bytecode = True
import torch_step  # noqa: E402


def parse_arguments():
    parser = torch_step.make_parser(__doc__)
    parser.add_argument("--positions", type=int, default=1024)
    parser.add_argument("--no-bias", action="store_true")
    return parser.parse_args()


def make_model_class(torch):
    functional, nn = torch.nn.functional, torch.nn

    class LayerNorm(nn.Module):
        """torch 1.13's own LayerNorm cannot leave the bias out."""

        def __init__(self, width, bias):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))
            self.bias = nn.Parameter(torch.zeros(width)) if bias else None

        def forward(self, x):
            return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)

    def gelu(x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))

    class Block(nn.Module):
        def __init__(self, a):
            super().__init__()
            bias = not a.no_bias
            self.heads = a.heads
            self.norm1, self.norm2 = LayerNorm(a.width, bias), LayerNorm(a.width, bias)
            self.qkv = nn.Linear(a.width, 3 * a.width, bias=bias)
            self.output = nn.Linear(a.width, a.width, bias=bias)
            self.up = nn.Linear(a.width, 4 * a.width, bias=bias)
            self.down = nn.Linear(4 * a.width, a.width, bias=bias)
            ones = torch.ones(a.positions, a.positions, dtype=torch.bool)
            self.register_buffer("hidden", torch.triu(ones, diagonal=1), persistent=False)

        def attend(self, x):
            batch, tokens, width = x.shape
            split = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
            query, key, value = split.permute(2, 0, 3, 1, 4)
            scores = query @ key.transpose(-2, -1) / math.sqrt(width // self.heads)
            scores = scores.masked_fill(self.hidden[:tokens, :tokens], float("-inf"))
            mixed = functional.softmax(scores, dim=-1) @ value
            return self.output(mixed.transpose(1, 2).reshape(batch, tokens, width))

        def forward(self, x):
            x = x + self.attend(self.norm1(x))
            return x + self.down(gelu(self.up(self.norm2(x))))

    class Gpt2(nn.Module):
        def __init__(self, a):
            super().__init__()
            self.tokens = nn.Embedding(a.vocabulary, a.width)
            self.positions = nn.Embedding(a.positions, a.width)
            self.blocks = nn.ModuleList(Block(a) for _ in range(a.layers))
            self.norm = LayerNorm(a.width, not a.no_bias)
            self.head = nn.Linear(a.width, a.vocabulary, bias=False)
            self.head.weight = self.tokens.weight
            for name, parameter in self.named_parameters():
                if parameter.dim() == 2:
                    residual = name.endswith(("output.weight", "down.weight"))
                    nn.init.normal_(parameter, 0.0, 0.02 / math.sqrt(2 * a.layers) if residual else 0.02)
                elif name.endswith("bias"):
                    nn.init.zeros_(parameter)

        def forward(self, inputs, targets):
            x = self.tokens(inputs) + self.positions(torch.arange(inputs.shape[1]))
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.norm(x))
            return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))

    return Gpt2


if __name__ == "__main__":
    torch_step.drive(parse_arguments(), make_model_class)
