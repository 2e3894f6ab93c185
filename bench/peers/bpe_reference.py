"""Byte-level BPE as tokenizer.json states it, the kinds of GPT-2, Llama 3, Qwen 2 and SmolLM2, written again
without regular expressions, to check our tokenizer against.

  bpe_reference.py encode TOKENIZER.json TEXT OUT   reads any bytes and writes the tokens as 32-bit integers

Needs the standard library alone. Letters, numbers and white space are those of `unicodedata`. Bytes that are not
UTF-8 form pieces of their own, and what stands on either side is split as if it stood alone. Text never becomes a
special token.
"""

import array
import json
import sys
import unicodedata

CONTRACTIONS = ("s", "t", "re", "ve", "m", "ll", "d")
LINE_ENDS = "\r\n"


def is_letter(c):
    return unicodedata.category(c)[0] == "L"


def is_number(c):
    return unicodedata.category(c)[0] == "N"


def is_space(c):
    return c in "\t\n\v\f\r\x85" or unicodedata.category(c)[0] == "Z"


def is_sign(c):
    return not (is_letter(c) or is_number(c) or is_space(c))


def run_end(text, start, inside, most=None):
    end = start
    while end < len(text) and inside(text[end]) and (most is None or end - start < most):
        end += 1
    return end


def contraction_end(text, start, fold):
    """Behind a contraction's apostrophe; `start` where there is none."""
    if text[start] != "'":
        return start
    for letters in CONTRACTIONS:
        found = [fold(c) for c in text[start + 1:start + 1 + len(letters)]]
        if found == list(letters):
            return start + 1 + len(letters)
    return start


def space_end(text, start):
    """White space; the last of several signs of it is left to what follows."""
    end = run_end(text, start, is_space)
    return end - 1 if end < len(text) and end - start > 1 else end


def gpt2_end(text, start):
    end = contraction_end(text, start, lambda c: c)
    if end > start:
        return end
    for kind in (is_letter, is_number, is_sign):
        first = start + 1 if text[start] == " " else start
        end = run_end(text, first, kind)
        if end > first:
            return end
    return space_end(text, start)


def llama3_end(text, start, most_digits=3):
    end = contraction_end(text, start, str.casefold)
    if end > start:
        return end
    c = text[start]
    if not is_letter(c) and not is_number(c) and c not in LINE_ENDS:
        end = run_end(text, start + 1, is_letter)
        if end > start + 1:
            return end
    for kind, most in ((is_letter, None), (is_number, most_digits)):
        end = run_end(text, start, kind, most)
        if end > start:
            return end
    first = start + 1 if c == " " else start
    end = run_end(text, first, is_sign)
    if end > first:
        return run_end(text, end, lambda c: c in LINE_ENDS)
    end = run_end(text, start, is_space)
    last = max(text.rfind("\n", start, end), text.rfind("\r", start, end))
    return last + 1 if last >= 0 else space_end(text, start)


def qwen2_end(text, start):
    return llama3_end(text, start, 1)


def pieces_by(piece_end, text):
    start = 0
    while start < len(text):
        end = piece_end(text, start)
        yield text[start:end]
        start = end


def pieces_between_digits(text):
    """Each digit alone, and GPT-2's pieces of what is between them."""
    start = 0
    while start < len(text):
        end = start + 1 if is_number(text[start]) else run_end(text, start, lambda c: not is_number(c))
        yield from [text[start:end]] if is_number(text[start]) else pieces_by(gpt2_end, text[start:end])
        start = end


def splitter(pre_tokenizer):
    if pre_tokenizer["type"] == "ByteLevel":
        return lambda text: pieces_by(gpt2_end, text)
    first = pre_tokenizer["pretokenizers"][0]
    if first["type"] == "Digits":
        return pieces_between_digits
    end = llama3_end if "{1,3}" in first["pattern"]["Regex"] else qwen2_end
    return lambda text: pieces_by(end, text)


def valid_length(data, at):
    """Bytes of the character that begins at `at`, 0 where none does."""
    for length in (1, 2, 3, 4):
        try:
            if len(data[at:at + length].decode("utf-8")) == 1:
                return length
        except UnicodeDecodeError:
            pass
    return 0


def stretches(data):
    """(is text, bytes) of alternating text and bad bytes."""
    at, begin, good = 0, 0, True
    while at < len(data):
        length = valid_length(data, at)
        if (length > 0) != good:
            if at > begin:
                yield good, data[begin:at]
            begin, good = at, not good
        at += max(length, 1)
    if at > begin:
        yield good, data[begin:]


def byte_letters():
    """GPT-2's visible letter of each byte."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in visible)
    return {**{byte: chr(byte) for byte in visible}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


class Tokenizer:
    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            described = json.load(file)
        model = described["model"]
        self.vocabulary = model["vocab"]
        self.ignore_merges = model.get("ignore_merges", False)
        pairs = (tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"])
        self.ranks = {pair: rank for rank, pair in enumerate(pairs)}
        self.split = splitter(described["pre_tokenizer"])
        self.normal_form = (described.get("normalizer") or {}).get("type")
        self.added = {token["content"].encode("utf-8"): token["id"]
                      for token in described.get("added_tokens", []) if not token["special"]}
        self.letters = byte_letters()
        self.known = {}

    def pieces(self, data):
        for good, part in stretches(data):
            if not good:
                yield part
                continue
            text = part.decode("utf-8")
            if self.normal_form:
                text = unicodedata.normalize(self.normal_form, text)
            for piece in self.split(text):
                yield piece.encode("utf-8")

    def merged(self, piece):
        parts = [self.letters[byte] for byte in piece]
        whole = "".join(parts)
        if self.ignore_merges and whole in self.vocabulary:
            return [self.vocabulary[whole]]
        while True:
            ranks = [self.ranks.get(pair, len(self.ranks)) for pair in zip(parts, parts[1:])]
            if not ranks or min(ranks) == len(self.ranks):
                return [self.vocabulary[part] for part in parts]
            at = ranks.index(min(ranks))
            parts[at:at + 2] = [parts[at] + parts[at + 1]]

    def encode(self, data):
        tokens, begin, at = [], 0, 0
        while self.added and at < len(data):
            found = [text for text in self.added if data.startswith(text, at)]
            if not found:
                at += 1
                continue
            longest = max(found, key=len)
            tokens += self.encode_stretch(data[begin:at]) + [self.added[longest]]
            begin = at = at + len(longest)
        return tokens + self.encode_stretch(data[begin:])

    def encode_stretch(self, data):
        tokens = []
        for piece in self.pieces(data):
            if piece not in self.known:
                self.known[piece] = self.merged(piece)
            tokens += self.known[piece]
        return tokens


def main():
    if len(sys.argv) != 5 or sys.argv[1] != "encode":
        sys.exit(__doc__)
    with open(sys.argv[3], "rb") as file:
        tokens = Tokenizer(sys.argv[2]).encode(file.read())
    with open(sys.argv[4], "wb") as file:
        array.array("i", tokens).tofile(file)


if __name__ == "__main__":
    main()
