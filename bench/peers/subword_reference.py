"""Tokenizers beyond byte-level BPE as Hugging Face's `tokenizers` makes them, to check ours against.

  subword_reference.py make FOLDER [BYTES]   trains small tokenizers of every supported kind on mixed text and writes
                                             NAME.json, text (BYTES of it, 1,000,000 unless told) and NAME.tokens,
                                             the tokens of the text as 32-bit integers
  subword_reference.py fixture FILE [CHARACTERS]  the same in one JSON file, with tiny vocabularies
  subword_reference.py compare EXPECTED FOUND     two files of tokens: equal, or the first that differs

Needs `pip install tokenizers sentencepiece`. The text is generated and the same every time.
"""

import array
import base64
import io
import json
import os
import random
import sys
import tempfile

SCRIPTS = [(0x41, 0x5a), (0x61, 0x7a), (0x61, 0x7a), (0xc0, 0xff), (0x100, 0x17f), (0x391, 0x3c9), (0x410, 0x44f),
           (0x5d0, 0x5ea), (0x627, 0x63a), (0x905, 0x939), (0xe01, 0xe2e), (0x3041, 0x3096), (0x30a1, 0x30fa),
           (0x4e00, 0x4eff), (0x3400, 0x3420), (0xac00, 0xacff), (0xff21, 0xff5a), (0xff71, 0xff9d), (0x1e00, 0x1eff),
           (0x2160, 0x216b), (0xb2, 0xb3), (0xfb00, 0xfb06), (0x1f300, 0x1f320), (0x20000, 0x20020), (0x1d400, 0x1d454),
           (0x660, 0x669), (0x2190, 0x21ff), (0x2460, 0x2473), (0xf900, 0xf920)]
GAPS = [" "] * 12 + ["  ", "   ", "\n", "\n\n", "\t", "\r\n", "", "", "\u00a0", "\u2028", "\u3000", "\u200b", "\u0007"]
SIGNS = list(".,;:!?'\"()[]{}<>$^+=`~|\\/-_#@&%*") + ["\u2581", "\u2014", "\u00bf", "\u3002", "\u0130", "\u00ad",
                                                        "\ufeff"]
EMOJI = ["\U0001f468\u200d\U0001f469\u200d\U0001f466", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea", "e\u0301",
         "a\u0323\u0302", "\u0915\u094d\u0937", "\u1112\u1161\u11ab", "\u0e01\u0e33"]
ENGLISH = ("the links between the devices are narrow and a step of the optimizer waits for every byte that moves "
           "over them so we count the bytes hide them under the backward pass and move fewer of them").split()


def mixed_text(size, seed=1):
    """Words of one script each, English, digits, signs, clusters of several characters, all kinds of gaps."""
    draw = random.Random(seed)
    parts, length = [], 0
    while length < size:
        kind = draw.randrange(10)
        if kind < 5:
            word = draw.choice(ENGLISH)
            word = word.capitalize() if draw.randrange(6) == 0 else word
        elif kind < 8:
            first, last = draw.choice(SCRIPTS)
            word = "".join(chr(draw.randint(first, last)) for _ in range(draw.randint(1, 7)))
        else:
            word = draw.choice([str(draw.randrange(10 ** 6)), draw.choice(SIGNS) * draw.randint(1, 3),
                                draw.choice(EMOJI)])
        word += draw.choice(SIGNS) if draw.randrange(8) == 0 else ""
        parts.append(word + draw.choice(GAPS))
        length += len(parts[-1].encode("utf-8"))
    return "".join(parts)


def ascii_of(text):
    """For small vocabularies of Unigram, which need a piece for every character."""
    return "".join(c for c in text if ord(c) < 0x80)


def special(first, texts):
    return [{"id": first + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True} for i, text in enumerate(texts)]


def described(model, **parts):
    """A tokenizer.json as text."""
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
             "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": model}
    return json.dumps({**whole, **parts}, ensure_ascii=False)


MARK = "\u2581"
METASPACE = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "always", "split": True}
PIECE_DECODER = {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}


def sentencepiece_unigram(text, size, byte_fallback, rules):
    """Pieces with scores, and the precompiled map of characters, of a model that SentencePiece trained."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    made = io.BytesIO()
    options = dict(normalization_rule_tsv=rules) if rules else dict(normalization_rule_name="nmt_nfkc")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for line in text.split("\n") if line), model_writer=made, vocab_size=size,
        model_type="unigram", byte_fallback=byte_fallback, character_coverage=0.98, hard_vocab_limit=False,
        minloglevel=2, num_threads=1, **options)
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(made.getvalue())
    charsmap = base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()
    return [[piece.piece, round(piece.score, 9)] for piece in model.pieces], charsmap


def sentencepiece_kinds(text, size, folder):
    """T5's kind (Precompiled, runs of spaces, WhitespaceSplit) and Unigram with tokens of bytes."""
    rules = None
    if size < 1000:  # SentencePiece's own map has 240 kB
        rules = os.path.join(folder, "rules.tsv")
        with open(rules, "w") as file:
            for line in ("FF21\t41", "FF22\t42", "FB01\t66 69", "A0\t20", "9\t20", "3000\t20", "65 301\tE9",
                         "2167\t56 49 49 49"):
                file.write(line + "\n")
    pieces, charsmap = sentencepiece_unigram(text, size, False, rules)
    normalizer = {"type": "Sequence", "normalizers": [
        {"type": "Precompiled", "precompiled_charsmap": charsmap},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]}
    cut = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE]}
    yield "unigram-t5", described({"type": "Unigram", "unk_id": 0, "vocab": pieces}, normalizer=normalizer,
                                  pre_tokenizer=cut, decoder=METASPACE,
                                  added_tokens=special(0, ["<unk>", "<s>", "</s>"]))
    pieces, charsmap = sentencepiece_unigram(text, size + 256, True, rules)
    yield "unigram-bytes", described(
        {"type": "Unigram", "unk_id": 0, "byte_fallback": True, "vocab": pieces},
        normalizer={"type": "Precompiled", "precompiled_charsmap": charsmap}, pre_tokenizer=METASPACE,
        decoder=PIECE_DECODER, added_tokens=special(0, ["<unk>", "<s>", "</s>"]))


def trained_kinds(text, size):
    """Unigram behind NFKC, and BERT's WordPiece with and without capitals."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    lines = text.split("\n")
    few_characters = ascii_of(text).split("\n") if size < 1000 else lines
    unigram = Tokenizer(models.Unigram())
    unigram.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip()])
    unigram.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(prepend_scheme="first"),
                                                     pre_tokenizers.Digits(individual_digits=True)])
    unigram.train_from_iterator(few_characters, trainers.UnigramTrainer(
        vocab_size=size, show_progress=False, unk_token="<unk>", special_tokens=["<unk>", "</s>"]))
    made = json.loads(unigram.to_str())
    # The library reads decimals of 17 digits with an error in the last bit, which decides between equal ways.
    made["model"]["vocab"] = [[piece, round(score, 9)] for piece, score in made["model"]["vocab"]]
    yield "unigram-nfkc", json.dumps(made, ensure_ascii=False)
    for name, lower in (("wordpiece-uncased", True), ("wordpiece-cased", False)):
        bert = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20 if lower else 100))
        bert.normalizer = normalizers.BertNormalizer(lowercase=lower)
        bert.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        bert.train_from_iterator(lines, trainers.WordPieceTrainer(
            vocab_size=size, show_progress=False, limit_alphabet=size // 4,
            special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
        made = json.loads(bert.to_str())
        made["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
        yield name, json.dumps(made, ensure_ascii=False)


def learnt_merges(text, size, cut):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    learner = Tokenizer(models.BPE())
    if cut:
        learner.pre_tokenizer = pre_tokenizers.Metaspace()
    else:
        learner.normalizer = normalizers.Replace(" ", MARK)
    learner.train_from_iterator(text.split("\n"), trainers.BpeTrainer(
        vocab_size=size, show_progress=False, limit_alphabet=size // 4))
    model = json.loads(learner.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), model["merges"]


def merge_kinds(text, size):
    """BPE over characters: Llama 2's kind in its old and new form, Gemma's, and one without tokens of bytes."""
    tokens, merges = learnt_merges(text, size, True)
    bytes_too = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    model = {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
             "vocab": {token: i for i, token in enumerate(bytes_too + tokens)}, "merges": merges}
    ends = special(0, ["<unk>", "<s>", "</s>"])
    to_mark = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    yield "bpe-llama2", described(
        model, added_tokens=ends, decoder=PIECE_DECODER,
        normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": MARK}, to_mark]})
    yield "bpe-mistral", described(model, added_tokens=ends, decoder=PIECE_DECODER,
                                   pre_tokenizer={**METASPACE, "prepend_scheme": "first", "split": False})
    for name, fused in (("bpe-unknown", False), ("bpe-fused", True)):
        bare = {**model, "byte_fallback": False, "fuse_unk": fused,
                "vocab": {token: i for i, token in enumerate(["<unk>"] + tokens)}}
        yield name, described(bare, added_tokens=special(0, ["<unk>"]), pre_tokenizer=METASPACE, decoder=METASPACE)
    tokens, merges = learnt_merges(text, size, False)  # which go over the borders of words
    tokens = bytes_too + tokens
    model = {**model, "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges}
    plain = [{**added, "special": False} for added in special(len(tokens), ["\n\n", "\n\n\n", "<h1>", "e by"])]
    yield "bpe-gemma", described(
        model, added_tokens=ends + plain, normalizer=to_mark, decoder=PIECE_DECODER,
        pre_tokenizer={"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False})


def kinds(text, size, folder):
    yield from sentencepiece_kinds(ascii_of(text) if size < 1000 else text, size, folder)
    yield from trained_kinds(text, size)
    yield from merge_kinds(text, size)


def tokens_of(described_tokenizer, text):
    from tokenizers import Tokenizer
    return Tokenizer.from_str(described_tokenizer).encode(text, add_special_tokens=False).ids


def make(folder, size):
    os.makedirs(folder, exist_ok=True)
    text = mixed_text(size)
    with open(os.path.join(folder, "text"), "w", encoding="utf-8", newline="") as file:
        file.write(text)
    for name, tokenizer in kinds(mixed_text(300_000, 2), 4000, folder):
        with open(os.path.join(folder, name + ".json"), "w", encoding="utf-8") as file:
            file.write(tokenizer)
        tokens = array.array("i", tokens_of(tokenizer, text))
        with open(os.path.join(folder, name + ".tokens"), "wb") as file:
            tokens.tofile(file)
        print(f"{name}: {len(tokens)} tokens")


def fixture(path, size):
    import tokenizers
    text = mixed_text(size, 3)
    made = {"library": f"tokenizers {tokenizers.__version__}", "text": text, "tokenizers": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name, tokenizer in kinds(mixed_text(20_000, 2), 320, folder):
            made["tokenizers"][name] = {"tokens": tokens_of(tokenizer, text), "json": json.loads(tokenizer)}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(made, file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n")


def compare(expected_path, found_path):
    read = []
    for path in (expected_path, found_path):
        tokens = array.array("i")
        with open(path, "rb") as file:
            tokens.frombytes(file.read())
        read.append(tokens)
    for at, (expected, found) in enumerate(zip(*read)):
        if expected != found:
            around = [tokens[max(at - 3, 0):at + 6].tolist() for tokens in read]
            sys.exit(f"token {at}: {expected} expected, {found} found; around it {around[0]} and {around[1]}")
    if len(read[0]) != len(read[1]):
        sys.exit(f"{len(read[0])} tokens expected, {len(read[1])} found")
    print(f"{len(read[0])} tokens equal")


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    if sys.argv[1] == "make":
        make(sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1_000_000)
    elif sys.argv[1] == "fixture":
        fixture(sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 6_000)
    elif sys.argv[1] == "compare" and len(sys.argv) == 4:
        compare(sys.argv[2], sys.argv[3])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
