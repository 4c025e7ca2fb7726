#!/usr/bin/env python3
"""Compares greedy tokens of tandem with those of llama.cpp on small GGUF models, in float32 on this machine.

    VENV/bin/pip install -r scripts/golden/requirements.txt gguf==0.19.0 llama-cpp-python==0.3.36
    VENV/bin/python scripts/check-llama-cpp.py [--tools BIN]

llama.cpp reads the same numbers in F32 and keeps its KV cache in F32. It takes Phi-3's long factors at any
length, so tandem gets a limit beyond the original context there. Exit status: 0 all equal, 1 some part.
"""
import argparse
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tools", type=Path, default=ROOT / "build" / "bin", help="folder of pig-generate")
    args = parser.parse_args()
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
