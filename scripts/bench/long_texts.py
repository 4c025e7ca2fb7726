#!/usr/bin/env python3
"""Writes long texts that are hard to tokenize, or compares our ids of them with Hugging Face's.

    long_texts.py FOLDER [BYTES]           writes the texts, of 10 MB
    long_texts.py --compare MODEL_FOLDER   of 1 MB each: text_ids of the build and the package tokenizers
                                           (scripts/golden/requirements.txt) on MODEL_FOLDER/tokenizer.json
"""

import random
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What patterns of words distinguish, and what looks like it.
PARTS = ["'", "'s", "'S", "'\u017f", "'LL", "'Re", "a", "the", "\u017f", "K", "\u212a", "\u00e9", "e\u0301", "\u0903",
         "\u4e2d", "1", "12", "\u0663", "\u2167", "\u00bd", " ", "  ", "\t", "\r", "\n", "\r\n", "\x85", "\xa0", "\u2003",
         "\u180e", "\u200b", "\u2028", "\u3000", ".", "!?", "_", "$", "\U0001f469\u200d", "\U0010ffff", "don't", "I'M"]


def filled(n_bytes, part):
    """Whole parts, up to n_bytes."""
    parts, size = [], 0
    while True:
        text = part()
        size += len(text.encode())
        if size > n_bytes:
            return "".join(parts)
        parts.append(text)


def character(rng):
    c = rng.randrange(0x110000 - 0x800)
    return chr(c if c < 0xD800 else c + 0x800)


def texts(n_bytes):
    rng = random.Random(1)
    words = ["".join(rng.choice("etaoinshrdlucmfwypvb") for _ in range(rng.randint(1, 10))) for _ in range(5000)]
    yield "blanks", " " * n_bytes
    yield "letter", "a" * n_bytes
    yield "newlines", "\n" * n_bytes
    yield "words", filled(n_bytes, lambda: rng.choice(words) + rng.choice(["", "", "", ",", ".", "\n"]) + " ")
    yield "characters", filled(n_bytes, lambda: character(rng))


def hard_texts(n_bytes):
    """Of use for comparing ids."""
    rng = random.Random(5)
    yield "mixed", filled(n_bytes, lambda: rng.choice(PARTS) * (1 if rng.random() > 0.05 else rng.randrange(60)))
    yield "letters", "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(n_bytes))
    yield "periodic", filled(n_bytes, lambda: ("theabcing" * 7)[:50] + ("x" if rng.random() < 0.01 else ""))


def write(path, text):
    path.write_bytes(text.encode())


def compare(model):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    n_wrong = 0
    with tempfile.TemporaryDirectory() as work:
        path, ids_path = Path(work) / "text", Path(work) / "ids"
        for name, text in [*texts(1_000_000), *hard_texts(1_000_000)]:
            write(path, text)
            subprocess.run([ROOT / "build/bin/text_ids", model, path, ids_path], check=True, stdout=subprocess.DEVNULL)
            ours, theirs = array("i", ids_path.read_bytes()), tokenizer.encode(text, add_special_tokens=False).ids
            same = ours.tolist() == theirs
            n_wrong += not same
            print(f"{name:11} {len(theirs):8} ids  {'same' if same else f'{len(ours)} of ours differ'}")
    return 1 if n_wrong else 0


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--compare":
        return compare(sys.argv[2])
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    for name, text in texts(int(sys.argv[2]) if len(sys.argv) == 3 else 10_000_000):
        write(Path(sys.argv[1]) / name, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
