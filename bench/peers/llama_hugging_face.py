"""Llama as Hugging Face defines it, written again in PyTorch, to check `strait convert` against.

  llama_hugging_face.py make FOLDER              a small random model: config.json, model.safetensors,
                                                 tokenizer.json of Llama 3's kind, and expected.safetensors with
                                                 `tokens` [T] and `logits` [T, V] (computed in float64)
  llama_hugging_face.py logits FOLDER TOKENS OUT reads such a folder, whoever wrote it, and writes `tokens` and
                                                 `logits` of the comma-separated TOKENS to OUT

Only PyTorch is needed.
"""

import json
import math
import os
import sys

import torch

sys.dont_write_bytecode = True
from gpt2_hugging_face import byte_letters, read_safetensors, write_json, write_safetensors  # noqa: E402

SMALL = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 300,
         "max_position_embeddings": 20, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "hidden_act": "silu",
         "rms_norm_eps": 1e-6, "rope_theta": 500.0,
         "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                          "original_max_position_embeddings": 16},
         "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0, "tie_word_embeddings": False,
         "torch_dtype": "float32"}
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
           r"\s*[\r\n]+|\s+(?!\S)|\s+")


def frequencies(config, width):
    """Radians per position of each pair, as transformers' modeling_rope_utils states them."""
    plain = [config["rope_theta"] ** (-2 * i / width) for i in range(width // 2)]
    scaling = config.get("rope_scaling")
    if scaling is None:
        return plain
    context = scaling["original_max_position_embeddings"]
    low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
    result = []
    for frequency in plain:
        wave = 2 * math.pi / frequency
        if wave < context / high:
            result.append(frequency)
        elif wave > context / low:
            result.append(frequency / factor)
        else:
            smooth = (context / wave - low) / (high - low)
            result.append((1 - smooth) * frequency / factor + smooth * frequency)
    return result


def rotate(x, angles):
    """x [heads, T, width] times cos plus the half-rotated x times sin; angles [T, width / 2]."""
    both = torch.cat((angles, angles), dim=-1)
    low, high = x.chunk(2, dim=-1)
    return x * both.cos() + torch.cat((-high, low), dim=-1) * both.sin()


def forward(config, weights, tokens):
    """Logits [T, V] in float64 of one sequence."""
    w = {name.removeprefix("model."): tensor.double() for name, tensor in weights.items()}
    heads, shared = config["num_attention_heads"], config["num_key_value_heads"]
    count, width = len(tokens), config["hidden_size"] // heads
    positions = torch.arange(count, dtype=torch.float64)
    angles = positions[:, None] * torch.tensor(frequencies(config, width), dtype=torch.float64)
    hidden = torch.triu(torch.ones(count, count, dtype=torch.bool), diagonal=1)

    def norm(x, name):
        return x / torch.sqrt(x.square().mean(-1, keepdim=True) + config["rms_norm_eps"]) * w[name + ".weight"]

    def linear(x, name):
        y = x @ w[name + ".weight"].T
        return y + w[name + ".bias"] if name + ".bias" in w else y

    def split(x):
        return x.view(count, -1, width).transpose(0, 1)

    x = w["embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        h = f"layers.{layer}."
        normed = norm(x, h + "input_layernorm")
        query, key, value = (split(linear(normed, f"{h}self_attn.{part}_proj")) for part in "qkv")
        query, key = rotate(query, angles), rotate(key, angles)
        key, value = (t.repeat_interleave(heads // shared, dim=0) for t in (key, value))
        scores = query @ key.transpose(-2, -1) / math.sqrt(width)
        mixed = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1) @ value
        x = x + linear(mixed.transpose(0, 1).reshape(count, -1), h + "self_attn.o_proj")
        normed = norm(x, h + "post_attention_layernorm")
        gate = linear(normed, h + "mlp.gate_proj")
        x = x + linear(gate * torch.sigmoid(gate) * linear(normed, h + "mlp.up_proj"), h + "mlp.down_proj")
    head = w["embed_tokens.weight"] if config["tie_word_embeddings"] else w["lm_head.weight"]
    return norm(x, "norm") @ head.T


def random_weights(config):
    """Larger than real initial values, so that no parameter is without effect on the logits."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    narrow = config["head_dim"] * config["num_key_value_heads"]
    shapes = {"model.embed_tokens": (config["vocab_size"], width)}
    for layer in range(config["num_hidden_layers"]):
        for name, shape in (("input_layernorm", (width,)), ("self_attn.q_proj", (width, width)),
                            ("self_attn.k_proj", (narrow, width)), ("self_attn.v_proj", (narrow, width)),
                            ("self_attn.o_proj", (width, width)), ("post_attention_layernorm", (width,)),
                            ("mlp.gate_proj", (inner, width)), ("mlp.up_proj", (inner, width)),
                            ("mlp.down_proj", (width, inner))):
            shapes[f"model.layers.{layer}.{name}"] = shape
    shapes |= {"model.norm": (width,), "lm_head": (config["vocab_size"], width)}
    return {name + ".weight": ("norm" in name) + 0.3 * torch.randn(shape) for name, shape in shapes.items()}


def tokenizer(size):
    """Byte-level BPE in the shape in which Llama 3's is published; some tokens are whole pieces without merges."""
    letters = byte_letters()
    vocabulary = {letters[byte]: byte for byte in range(256)}
    merges = []
    for left in " theisa":
        for right in "heinrst":
            pair = [letters[ord(left)], letters[ord(right)]]
            if "".join(pair) not in vocabulary and len(vocabulary) < size - 6:
                vocabulary["".join(pair)] = len(vocabulary)
                merges.append(" ".join(pair))
    for whole in ("Ġstrait", "!!!", "ship", "123"):
        vocabulary[whole] = len(vocabulary)
    special = [{"id": len(vocabulary) + i, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True} for i, content in enumerate(("<|begin_of_text|>",
                                                                                   "<|end_of_text|>"))]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    begin, text = {"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    frame = {"type": "TemplateProcessing", "single": [begin, text],
             "pair": [begin, text, begin, {"Sequence": {"id": "B", "type_id": 1}}],
             "special_tokens": {"<|begin_of_text|>": {"id": "<|begin_of_text|>", "ids": [special[0]["id"]],
                                                      "tokens": ["<|begin_of_text|>"]}}}
    around = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
            "post_processor": {"type": "Sequence", "processors": [around, frame]}, "decoder": around,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                      "vocab": vocabulary, "merges": merges}}


def write_logits(path, config, weights, tokens):
    write_safetensors(path, {"logits": forward(config, weights, tokens), "tokens": tokens})


def make(folder):
    torch.manual_seed(1337)
    os.makedirs(folder, exist_ok=True)
    weights = random_weights(SMALL)
    write_json(f"{folder}/config.json", SMALL)
    write_json(f"{folder}/tokenizer.json", tokenizer(SMALL["vocab_size"]))
    write_safetensors(f"{folder}/model.safetensors", weights)
    tokens = torch.randint(SMALL["vocab_size"], (SMALL["max_position_embeddings"],))
    write_logits(f"{folder}/expected.safetensors", SMALL, weights, tokens)


def logits(folder, tokens, out):
    with open(f"{folder}/config.json", encoding="utf-8") as file:
        config = json.load(file)
    if config["model_type"] != "llama" or config["hidden_act"] != "silu":
        sys.exit("this model computes Llama with silu only")
    weights = read_safetensors(f"{folder}/model.safetensors")
    write_logits(out, config, weights, torch.tensor([int(token) for token in tokens.split(",")]))


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "make":
        make(sys.argv[2])
    elif len(sys.argv) == 5 and sys.argv[1] == "logits":
        logits(*sys.argv[2:])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
