"""What a golden case records of a transformers model: logits, NLL and greedy text, all in f32."""

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def load(folder, attention):
    """The model of a folder, its weights upcast to f32; every tensor of the checkpoint must be used."""
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention, output_loading_info=True)
    unused = {kind: names for kind, names in info.items() if names}
    if unused:
        raise SystemExit(f"{folder}: transformers did not load all weights of the checkpoint: {unused}")
    return model.eval()


def numbers(values):
    """Floats as the shortest decimals that read back as the same f32."""
    return [float(str(np.float32(x))) for x in values]


@torch.no_grad()
def logits_of(model, ids):
    """[T, V] f32: row i predicts token i + 1."""
    return model(torch.tensor([ids]), use_cache=False).logits[0].float()


def mean_nll(logits, ids):
    """Mean over the tokens after the first of -ln p(token | those before); None for one token."""
    if len(ids) < 2:
        return None
    targets = torch.tensor(ids[1:])
    return torch.nn.functional.cross_entropy(logits[:-1].double(), targets).item()


@torch.no_grad()
def greedy(model, ids, n_tokens):
    """(tokens, gaps): argmax continuation that ignores stop ids, and best minus second-best logit."""
    step, cache, tokens, gaps = torch.tensor([ids]), None, [], []
    for _ in range(n_tokens):
        out = model(step, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = out.past_key_values
        best = out.logits[0, -1].float().topk(2)
        tokens.append(int(best.indices[0]))
        gaps.append(best.values[0] - best.values[1])
        step = torch.tensor([tokens[-1:]])
    return tokens, numbers(gaps)
