#!/usr/bin/env python3
"""Checks that PEFT loads an adapter/ folder that a run of s2ft-train with method lora or dora has
written, and that its model is the run's merged one (of a run with -s model.compute=f32: else that is
rounded to bf16).

    peer_peft_load.py BASE_MODEL RUN/adapter [--merged RUN/model]

Loads the base model and the adapter with transformers and PEFT in f32 on the CPU. Fails on a missing,
unexpected or mismatched key, on parameters that keep their values of before, and with --merged where
logits of the two differ by more than 1e-3 of their largest, or PEFT's merge_and_unload from its
merged weights by more than 1e-5 of the largest weight. Prints one JSON line. Needs torch, transformers,
peft, safetensors. Exit status: 0, 1 a check failed.
"""
import argparse
import json
import pathlib
import sys
import warnings

import peft
import safetensors.torch
import torch
import transformers


def logits_of(model, ids):
    with torch.no_grad():
        return model(ids).logits.float()


def relative(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


def load_base(path):
    return transformers.AutoModelForCausalLM.from_pretrained(path, torch_dtype=torch.float32)


def check(base_path, adapter, merged_path=None, most_logits=1e-3):
    """Figures of an adapter that PEFT loads, and the list of its failures."""
    base = load_base(base_path)
    ids = torch.randint(base.config.vocab_size, (2, 33), generator=torch.Generator().manual_seed(1))
    before = logits_of(base, ids)
    stored = safetensors.torch.load_file(adapter / "adapter_model.safetensors")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = peft.PeftModel.from_pretrained(base, adapter)
    failures = [str(w.message) for w in told if "adapter" in str(w.message) or "key" in str(w.message)]
    loaded = peft.get_peft_model_state_dict(model)
    failures += [f"missing in the file: {k}" for k in sorted(loaded.keys() - stored.keys())]
    failures += [f"unexpected in the file: {k}" for k in sorted(stored.keys() - loaded.keys())]
    failures += [f"not as in the file: {k}" for k in sorted(loaded.keys() & stored.keys())
                 if loaded[k].shape != stored[k].shape or not torch.equal(loaded[k].float(), stored[k].float())]
    model.eval()
    with_adapter = logits_of(model, ids)
    result = {"peft": peft.__version__, "tensors": len(stored), "change": relative(with_adapter, before)}
    if result["change"] == 0:
        failures.append("logits are the base model's")
    if merged_path:
        merged = load_base(merged_path)
        result["logits"] = relative(with_adapter, logits_of(merged, ids))
        ours, theirs = merged.state_dict(), model.merge_and_unload().state_dict()
        apart = [relative(ours[k].float(), theirs[k].float()) for k in ours]
        result["weights"] = max(apart)
        if not result["logits"] <= most_logits:  # also NaN
            failures.append("logits differ from those of the merged model")
        if not all(a <= 1e-5 for a in apart):
            failures.append("weights differ from those that PEFT merges")
    return result, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("adapter", type=pathlib.Path)
    parser.add_argument("--merged", type=pathlib.Path)
    args = parser.parse_args()
    result, failures = check(args.base, args.adapter, args.merged)
    print(json.dumps({**result, "failures": failures}))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
