"""A mixer over tokens as a chain of torch.nn modules, for tools/export_modules; trained by examples/modules.toml."""
import torch
from torch import nn

VOCABULARY, CONTEXT, WIDTH, BLOCKS = 256, 64, 96, 4


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))

    def forward(self, tokens):
        return self.token(tokens) + self.position


class Mixer(nn.Module):
    """Mixes along tokens, each with those before it, then along channels."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.tokens = nn.Parameter(0.02 * torch.randn(CONTEXT, CONTEXT))
        self.channels = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + torch.matmul(torch.tril(self.tokens), self.norm(x))
        return x + self.channels(x)


def blocks():
    torch.manual_seed(1337)
    chain = [("embedding", Embedding())]
    chain += [(f"mixer.{i}", Mixer()) for i in range(BLOCKS)]
    return chain + [("head", nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)))]
