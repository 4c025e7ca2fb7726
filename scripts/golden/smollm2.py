#!/usr/bin/env python3
"""Writes tests/data/golden/smollm2.json: SmolLM2-135M-Instruct as transformers computes it.

    VENV/bin/pip install -r scripts/golden/requirements.txt gguf==0.19.0
    VENV/bin/python scripts/golden/smollm2.py "$(scripts/get-smollm2.sh)"

Weights are dequantised from Q4_1 to float32. Texts have no digits: when
transformers reads a GGUF file, it does not split digits, as the model's own tokenizer does.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "data" / "golden" / "smollm2.json"
N_TOP, N_GREEDY = 20, 16
TEXTS = ["The lighthouse keeper", "Once upon a time there was", "def area(width, height):\n    return",
         "Die Stadt am Fluss hat ein Tor; na\u00efve \u6f22\u5b57 \U0001f600 runs   of spaces,\n\nand lines"]


def main():
    file = Path(sys.argv[1])
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32,
                                                 attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    cases = []
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1].double()
            all_ids, gaps = list(ids), []
            for _ in range(N_GREEDY):
                best = model(torch.tensor([all_ids])).logits[0, -1].topk(2)
                all_ids.append(best.indices[0].item())
                gaps.append(round((best.values[0] - best.values[1]).item(), 5))
        top = logits.topk(N_TOP)
        cases.append({"text": text, "ids": ids, "top_ids": top.indices.tolist(),
                      "top_logits": [round(x, 6) for x in top.values.tolist()],
                      "greedy_ids": all_ids[len(ids):], "top1_minus_top2": gaps})
    GOLDEN.write_text("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")


if __name__ == "__main__":
    main()
