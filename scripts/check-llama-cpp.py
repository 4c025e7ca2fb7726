#!/usr/bin/env python3
"""Compares greedy tokens of tandem with those of llama.cpp on small GGUF models, in float32 on this machine.

    VENV/bin/pip install -r scripts/golden/requirements.txt gguf==0.19.0 llama-cpp-python==0.3.36
    VENV/bin/python scripts/check-llama-cpp.py [--tools BIN] [--smollm2 FILE.gguf]

llama.cpp reads the same numbers in F32 and keeps its KV cache in F32. It takes Phi-3's long factors at any
length, so tandem gets a limit beyond the original context there.

With --smollm2 it compares texts of the Q4_1 file that scripts/get-smollm2.sh downloads. Both programs round
activations to int8 there. At least 15 of 20 texts must be equal. Where a text parts, the two best logits of the
weights in float32 must lie within 0.05. Exit status: 0 the bars hold, 1 they do not.
"""
import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from llama_cpp import Llama

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts" / "golden"))
import gguf_models  # noqa: E402

PROMPTS = [
    "The capital of France is", "Water boils at", "Once upon a time there was a fox who", "To bake bread you need",
    "The largest planet of the solar system is", "In 1969, two men", "A prime number is", "The opposite of hot is",
    "My favourite season is autumn because", "def factorial(n):", "Dear Sir or Madam,", "The recipe needs three eggs,",
    "Photosynthesis is the process by which", "The train to Edinburgh leaves at", "She opened the letter and",
    "The three primary colours are", "An isosceles triangle has", "To be or not to be,", "The river Nile flows",
    "Yesterday the weather was"]
LEAST_EQUAL, CLOSE = 15, 0.05
STRICT = ["model.compute=f32", "model.weights=f32"]  # decoded weights, no rounding of activations
IDS, N_NEW, F32 = [5, 17, 9, 40, 88, 3, 12], 24, 0


def llama_cpp_tokens(path):
    model = Llama(str(path), n_ctx=128, n_threads=1, logits_all=True, verbose=False, type_k=F32, type_v=F32)
    model.eval(IDS)
    tokens = []
    for _ in range(N_NEW):
        tokens.append(int(np.argmax(model.scores[model.n_tokens - 1])))
        model.eval(tokens[-1:])
    return tokens


def tandem_tokens(tools, path, ids, n):
    run = subprocess.run([tools / "pig-generate", "-m", path, "--prompt-ids", ids, "-n", str(n), "-q",
                          "--device", "cpu", "-s", "model.compute=f32"], capture_output=True, text=True, check=True)
    return [int(token) for token in run.stdout.split()][:N_NEW]


def token_events(lines):
    return [event for event in map(json.loads, lines.splitlines()) if event["event"] == "token"]


def text_of(tools, path, ids, n, settings):
    run = subprocess.run([tools / "pig-generate", "-m", path, "--prompt-ids", ids, "-n", str(n), "-q", "--device",
                          "cpu", "--format", "jsonl"] + [word for s in settings for word in ("-s", s)],
                         capture_output=True, text=True, check=True)
    return [event for event in map(json.loads, run.stdout.splitlines()) if event["event"] == "token"]


def llama_cpp_text(model, ids, n):
    model.reset()
    tokens = []
    for token in model.generate(ids, temp=0, repeat_penalty=1.0):
        if token == model.token_eos() or len(tokens) == n:
            return tokens
        tokens.append(token)


def first_difference(a, b):
    return next((i for i, (x, y) in enumerate(itertools.zip_longest(a, b)) if x != y), None)


def compare_smollm2(tools, path):
    model = Llama(str(path), n_ctx=256, n_threads=2, verbose=False)
    equal = {"tandem and llama.cpp": 0, "tandem and float32": 0, "llama.cpp and float32": 0}
    far = 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ids.json"
        for prompt in PROMPTS:
            ids = model.tokenize(prompt.encode(), add_bos=False, special=False)
            file.write_text(json.dumps(ids))
            texts = {"llama.cpp": llama_cpp_text(model, ids, 32),
                     "tandem": [e["id"] for e in text_of(tools, path, file, 32, ["model.compute=f32"])],
                     "float32": [e["id"] for e in text_of(tools, path, file, 32, STRICT)]}
            for pair in equal:
                one, other = pair.split(" and ")
                equal[pair] += first_difference(texts[one], texts[other]) is None
            first = first_difference(texts["tandem"], texts["llama.cpp"])
            if first is None:
                continue
            file.write_text(json.dumps(ids + texts["tandem"][:first]))
            (_, best), (_, second) = text_of(tools, path, file, 1, STRICT + ["output.top_logprobs=2"])[0]["top"]
            far += best - second > CLOSE
            print(f"parts after {first} tokens, logits {best - second:.4f} apart: {prompt}")
    print(", ".join(f"{pair}: {n} of {len(PROMPTS)} equal" for pair, n in equal.items()))
    print(f"{far} part where the best logits are more than {CLOSE} apart")
    return equal["tandem and llama.cpp"] < LEAST_EQUAL or far > 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tools", type=Path, default=ROOT / "build" / "bin", help="folder of pig-generate")
    parser.add_argument("--smollm2", type=Path, metavar="FILE", help="compare texts of this model")
    args = parser.parse_args()
    if args.smollm2:
        return compare_smollm2(args.tools, args.smollm2)
    n_parts = 0
    with tempfile.TemporaryDirectory() as folder:
        ids = Path(folder) / "ids.json"
        ids.write_text(json.dumps(IDS))
        for name, (arch, pairs) in gguf_models.MODELS.items():
            gguf_models.write(name, arch, pairs, folder, plain=True)
            path = Path(folder) / f"{name}.gguf"
            theirs = llama_cpp_tokens(path)
            ours = tandem_tokens(args.tools, path, ids, 40 if arch == "phi3" else N_NEW)
            same = ours == theirs
            n_parts += not same
            print(f"{name:16} {'equal' if same else f'parts: tandem {ours}, llama.cpp {theirs}'}")
    return n_parts > 0


if __name__ == "__main__":
    sys.exit(main())
