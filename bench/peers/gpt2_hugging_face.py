"""GPT-2 as Hugging Face defines it, written again in PyTorch, to check `strait convert` against.

  gpt2_hugging_face.py make FOLDER              a small random model: config.json, model.safetensors,
                                                tokenizer.json, and expected.safetensors with `tokens` [T] and
                                                `logits` [T, V] (computed in float64)
  gpt2_hugging_face.py logits FOLDER TOKENS OUT reads such a folder, whoever wrote it, and writes `tokens` and
                                                `logits` of the comma-separated TOKENS to OUT

Only PyTorch is needed. safetensors is read and written by the few lines below.
"""

import json
import math
import os
import struct
import sys

import torch

DTYPES = {"F64": torch.float64, "F32": torch.float32, "I64": torch.int64}
SMALL = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 300, "n_positions": 16,
         "n_ctx": 16, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_inner": 80, "activation_function": "gelu_new",
         "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
         "scale_attn_weights": True, "tie_word_embeddings": True, "torch_dtype": "float32"}


def read_safetensors(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = torch.frombuffer(bytearray(data[begin:end]), dtype=DTYPES[entry["dtype"]])
        tensors[name] = raw.reshape(entry["shape"])
    return tensors


def write_safetensors(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        word = next(word for word, dtype in DTYPES.items() if dtype == tensor.dtype)
        raw = tensor.contiguous().numpy().tobytes()
        header[name] = {"dtype": word, "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def gelu_new(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def forward(config, weights, tokens):
    """Logits [T, V] in float64 of one sequence."""
    w = {name.removeprefix("transformer."): tensor.double() for name, tensor in weights.items()}
    heads, width, eps = config["n_head"], config["n_embd"], config["layer_norm_epsilon"]

    def norm(x, name):
        return torch.nn.functional.layer_norm(x, (width,), w[name + ".weight"], w[name + ".bias"], eps)

    def conv1d(x, name):  # the weight is [in, out]
        return x @ w[name + ".weight"] + w[name + ".bias"]

    count = len(tokens)
    x = w["wte.weight"][tokens] + w["wpe.weight"][:count]
    hidden = torch.triu(torch.ones(count, count, dtype=torch.bool), diagonal=1)
    for layer in range(config["n_layer"]):
        h = f"h.{layer}."
        query, key, value = conv1d(norm(x, h + "ln_1"), h + "attn.c_attn").split(width, dim=-1)
        query, key, value = (t.view(count, heads, width // heads).transpose(0, 1) for t in (query, key, value))
        scores = query @ key.transpose(-2, -1) / math.sqrt(width // heads)
        mixed = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1) @ value
        x = x + conv1d(mixed.transpose(0, 1).reshape(count, width), h + "attn.c_proj")
        x = x + conv1d(gelu_new(conv1d(norm(x, h + "ln_2"), h + "mlp.c_fc")), h + "mlp.c_proj")
    head = w["wte.weight"] if config["tie_word_embeddings"] else w["lm_head.weight"]
    return norm(x, "ln_f") @ head.T


def random_weights(config):
    """Larger than real initial values, so that no parameter is without effect on the logits."""
    width, inner = config["n_embd"], config["n_inner"]
    shapes = {"wte.weight": (config["vocab_size"], width), "wpe.weight": (config["n_positions"], width)}
    for layer in range(config["n_layer"]):
        for name, shape in (("ln_1", (width,)), ("attn.c_attn", (width, 3 * width)), ("attn.c_proj", (width, width)),
                            ("ln_2", (width,)), ("mlp.c_fc", (width, inner)), ("mlp.c_proj", (inner, width))):
            shapes[f"h.{layer}.{name}.weight"] = shape
            shapes[f"h.{layer}.{name}.bias"] = shape[-1:]
    shapes["ln_f.weight"] = shapes["ln_f.bias"] = (width,)
    weights = {}
    for name, shape in shapes.items():
        centre = 1.0 if ".ln_" in "." + name and name.endswith("weight") else 0.0
        weights["transformer." + name] = centre + 0.3 * torch.randn(shape)
    return weights


def byte_letters():
    """GPT-2's visible letter of each byte."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, others = {byte: chr(byte) for byte in visible}, 0
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(256 + others)
            others += 1
    return letters


def tokenizer(size):
    """Byte-level BPE: 256 bytes, merges of frequent pairs until `size` - 1 tokens, and the end of a document."""
    letters = byte_letters()
    vocabulary = {letters[byte]: byte for byte in range(256)}
    merges = []
    for left in " etaoinshr":
        for right in "etaoinshr":
            pair = [letters[ord(left)], letters[ord(right)]]
            if len(vocabulary) == size - 1 or "".join(pair) in vocabulary:
                break
            vocabulary["".join(pair)] = len(vocabulary)
            merges.append(" ".join(pair))
    end = {"id": size - 1, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocabulary["<|endoftext|>"] = size - 1
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None,
            "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary,
                      "merges": merges}}


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False)
        file.write("\n")


def write_logits(path, config, weights, tokens):
    write_safetensors(path, {"logits": forward(config, weights, tokens), "tokens": tokens})


def make(folder):
    torch.manual_seed(1337)
    os.makedirs(folder, exist_ok=True)
    weights = random_weights(SMALL)
    write_json(f"{folder}/config.json", SMALL)
    write_json(f"{folder}/tokenizer.json", tokenizer(SMALL["vocab_size"]))
    write_safetensors(f"{folder}/model.safetensors", weights)
    tokens = torch.randint(SMALL["vocab_size"], (SMALL["n_positions"],))
    write_logits(f"{folder}/expected.safetensors", SMALL, weights, tokens)


def logits(folder, tokens, out):
    with open(f"{folder}/config.json", encoding="utf-8") as file:
        config = json.load(file)
    if config["activation_function"] != "gelu_new":
        sys.exit("this model computes gelu_new only")
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
