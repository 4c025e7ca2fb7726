#!/usr/bin/env python3
"""Checks that PEFT and tandem read each other's folders of LoRA, and make the same model of them.

    check-peft.py [--tools BIN] [--rank K] BASE_MODEL ADAPTER[=WEIGHT]...

BASE_MODEL is a folder that transformers loads, an ADAPTER a run of s2ft-train or its adapter (slices
or LoRA). s2ft-adapter --to lora writes each as exact factors, as the best of rank K (8), and all of
them together at their weights. PEFT must load each folder without a missing or unexpected key, and
its logits in f32 must be within 1e-5 of their largest from those of the model that s2ft-adapter
merges: out of the adapters themselves, of rank K out of the folder. Then PEFT writes a folder with
ranks that vary, which s2ft-adapter merges. Prints one JSON line a folder. Needs torch, transformers,
peft, safetensors. Exit status: 0, 1 a check failed.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent / "bench"))
import peer_peft_load as peer  # noqa: E402

MOST = 1e-5


def write_by_peft(base_path, folder):
    import peft
    import torch

    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj", "down_proj"], init_lora_weights=False,
                             rank_pattern={"layers.1.mlp.down_proj": 2, "q_proj": 3}, alpha_pattern={"q_proj": 9},
                             task_type="CAUSAL_LM")
    peft.get_peft_model(peer.load_base(base_path), config).save_pretrained(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=pathlib.Path, help="folder of s2ft-adapter; default: found by PATH")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("base")
    parser.add_argument("adapters", nargs="+")
    args = parser.parse_args()
    peer.transformers.utils.logging.disable_progress_bar()
    tool = str(args.tools / "s2ft-adapter") if args.tools else "s2ft-adapter"
    failed = False

    def adapter_tool(adapters, *more):
        given = [part for a in adapters for part in ("--adapter", str(a))]
        subprocess.run([tool, "-m", args.base, *given, *more, "--verify", "--no-progress"], check=True,
                       stdout=subprocess.DEVNULL)

    def compare(name, folder, merged_from):
        nonlocal failed
        merged = folder.with_name(folder.name + "-merged")
        adapter_tool(merged_from, "--to", "model", "-s", "output.dtype=f32", "-o", str(merged))
        result, failures = peer.check(args.base, folder, merged, MOST)
        failed = failed or bool(failures)
        print(json.dumps({"folder": name, **result, "failures": failures}), flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        n = 0

        def export(name, adapters, *more, merged_from=None):
            nonlocal n
            n += 1
            folder = pathlib.Path(scratch) / f"peft-{n}"
            adapter_tool(adapters, "--to", "lora", "-o", str(folder), *more)
            compare(name, folder, [folder] if merged_from is None else merged_from)

        for adapter in args.adapters:
            export(f"exact: {adapter}", [adapter], merged_from=[adapter])
            export(f"rank {args.rank}: {adapter}", [adapter], "--rank", str(args.rank))
        if len(args.adapters) > 1:
            export("exact: all", args.adapters, merged_from=args.adapters)
            export(f"rank {args.rank}: all", args.adapters, "--rank", str(args.rank))
        folder = pathlib.Path(scratch) / "by-peft"
        write_by_peft(args.base, folder)
        compare("written by PEFT", folder, [folder])
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
