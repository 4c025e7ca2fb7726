#!/usr/bin/env python3
"""Checks that PEFT and tandem read each other's folders of LoRA, and make the same model of them.

    check-peft.py [--tools BIN] [--rank K] BASE_MODEL [ADAPTER[=WEIGHT]...]

BASE_MODEL is a folder that transformers loads, an ADAPTER a run of s2ft-train or its adapter (slices
or LoRA). s2ft-adapter --to lora writes each as exact factors, as the best of rank K (8), and all of
them together at their weights. PEFT must load each folder without a missing or unexpected key, and
its logits in f32 must be within 1e-5 of their largest from those of the model that s2ft-adapter
merges: out of the adapters themselves, of rank K out of the folder. Then PEFT writes a folder with
ranks that vary, which s2ft-adapter merges, and one folder of every other kind that tandem reads (see
KINDS): adapters of embedding and head, saved modules, trainable tokens, biases, targets that the model
lacks. These are made for BASE_MODEL, for a copy with the head untied, and for a small Qwen2 with
biases; logits of PEFT's unmerged model must be within 1e-5 of those of the merged folder. Prints one
JSON line a folder. Needs torch, transformers, peft, safetensors. Exit status: 0, 1 a check failed.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).parent / "bench"))
import peer_peft_load as peer  # noqa: E402

MOST = 1e-5


def stored_names(arguments, base):
    """Arguments of LoraConfig with names of modules as a base holds them: Phi has qkv_proj and gate_up_proj."""
    if not any(name.endswith("qkv_proj") for name, _ in base.named_modules()):
        return arguments

    def stored(value):
        if isinstance(value, dict):
            return {stored(key): stored(of) for key, of in value.items()}
        if isinstance(value, list):
            return list(dict.fromkeys(map(stored, value)))
        return re.sub(r"\b[qkv]_proj", "qkv_proj", re.sub(r"\bup_proj", "gate_up_proj", value)) \
            if isinstance(value, str) else value

    return stored(arguments)


def write_by_peft(base_path, folder):
    import peft
    import torch

    torch.manual_seed(1)
    base = peer.load_base(base_path)
    names = {"target_modules": ["q_proj", "down_proj"], "alpha_pattern": {"q_proj": 9},
             "rank_pattern": {"layers.1.mlp.down_proj": 2, "q_proj": 3}}
    config = peft.LoraConfig(r=4, lora_alpha=6, init_lora_weights=False, task_type="CAUSAL_LM",
                             **stored_names(names, base))
    peft.get_peft_model(base, config).save_pretrained(folder)


Q = ["q_proj"]
# Arguments of LoraConfig; "saved along" stores changed embeddings with the adapter.
KINDS = {
    "names that the model lacks": {"target_modules": ["q_proj", "W_pack", "query_key_value"]},
    "all-linear": {"target_modules": "all-linear"},
    "an expression": {"target_modules": r".*\.(?:q_proj|down_proj)"},
    "some layers": {"target_modules": Q, "layers_to_transform": [1], "layers_pattern": "layers"},
    "a list of layer patterns": {"target_modules": Q, "layers_to_transform": 0, "layers_pattern": ["h", "layers"]},
    "excluded": {"target_modules": ["q_proj", "v_proj"], "exclude_modules": r".*\.1\..*q_proj"},
    "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
    "embedding, ranks": {"target_modules": ["q_proj", "embed_tokens"], "rank_pattern": {"embed_tokens": 2},
                         "alpha_pattern": {"embed_tokens": 5}, "use_rslora": True},
    "head": {"target_modules": ["q_proj", "lm_head"]},
    "head, DoRA": {"target_modules": ["q_proj", "lm_head"], "use_dora": True},
    "embedding and head": {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
    "embedding and head, tied": {"target_modules": ["q_proj", "embed_tokens", "lm_head"], "ensure_weight_tying": True},
    "only the head, tied": {"target_modules": ["q_proj", "lm_head"], "ensure_weight_tying": True},
    "saved embedding": {"target_modules": Q, "modules_to_save": ["embed_tokens"]},
    "saved head": {"target_modules": Q, "modules_to_save": ["lm_head"]},
    "saved embedding and head": {"target_modules": Q, "modules_to_save": ["embed_tokens", "lm_head"]},
    "saved embedding and head, tied": {"target_modules": Q, "modules_to_save": ["embed_tokens", "lm_head"],
                                       "ensure_weight_tying": True},
    "saved norms": {"target_modules": Q, "modules_to_save": ["norm", "input_layernorm"]},
    "saved matrices": {"target_modules": ["q_proj", "down_proj"], "modules_to_save": ["mlp"]},
    "embeddings saved along": {"target_modules": Q, "saved along": True},
    "embeddings saved along, LoRA": {"target_modules": ["q_proj", "embed_tokens"], "saved along": True},
    "tokens": {"target_modules": Q, "trainable_token_indices": [5, 3, 9]},
    "tokens, embeddings saved along": {"target_modules": Q, "trainable_token_indices": [5, 3], "saved along": True},
    "tokens of both": {"target_modules": Q, "trainable_token_indices": {"embed_tokens": [5, 3], "lm_head": [5, 3]}},
    "tokens of each": {"target_modules": Q, "trainable_token_indices": {"embed_tokens": [5, 3], "lm_head": [7]}},
    "all biases": {"target_modules": ["q_proj", "up_proj"], "bias": "all"},
    "biases of targets": {"target_modules": ["q_proj", "v_proj"], "bias": "lora_only"},
    "a gaussian init": {"target_modules": Q, "init_lora_weights": "gaussian"},
    "an orthogonal init": {"target_modules": Q, "init_lora_weights": "orthogonal"},
    "fan_in_fan_out": {"target_modules": Q, "fan_in_fan_out": True},
}
QWEN_KINDS = {"biases of factors": {"target_modules": ["q_proj", "v_proj"], "lora_bias": True}}


def write_kind(base_path, arguments, folder):
    """A folder by PEFT in which everything that it trains has changed."""
    import peft
    import torch

    torch.manual_seed(1)
    arguments = dict(arguments)
    along = arguments.pop("saved along", False)
    model = peer.load_base(base_path)
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=6, task_type="CAUSAL_LM",
                                                       **stored_names(arguments, model)))
    with torch.no_grad():
        for name, values in model.named_parameters():
            if values.requires_grad or along and ("embed_tokens" in name or "lm_head" in name):
                values += 0.02 * torch.randn_like(values)
    model.save_pretrained(folder, **({"save_embedding_layers": True} if along else {}))


def make_bases(base_path, scratch):
    """BASE_MODEL, the same with a separate head, and a small model with biases."""
    import torch
    import transformers

    torch.manual_seed(2)
    untied = peer.load_base(base_path)
    untied.config.tie_word_embeddings = False
    untied.lm_head.weight = torch.nn.Parameter(untied.lm_head.weight + 0.02 * torch.randn_like(untied.lm_head.weight))
    untied.save_pretrained(scratch / "untied")
    shape = transformers.Qwen2Config(vocab_size=300, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                     num_attention_heads=4, num_key_value_heads=2, eos_token_id=1, bos_token_id=0)
    qwen = transformers.Qwen2ForCausalLM(shape)
    with torch.no_grad():
        for name, values in qwen.named_parameters():
            if name.endswith("bias"):
                values += 0.1 * torch.randn_like(values)
    qwen.save_pretrained(scratch / "qwen2")
    return {"": base_path, "untied: ": str(scratch / "untied"), "Qwen2: ": str(scratch / "qwen2")}


def compare_kind(base_path, folder, merged):
    """How far the logits of PEFT's unmerged model and of the merged one are apart, and from the base's."""
    import peft
    import torch

    base = peer.load_base(base_path)
    ids = torch.randint(base.config.vocab_size, (2, 33), generator=torch.Generator().manual_seed(1))
    ids[0, :4] = torch.tensor([3, 5, 7, 9])  # trained tokens
    before = peer.logits_of(base, ids)
    theirs = peer.logits_of(peft.PeftModel.from_pretrained(base, folder).eval(), ids)
    return {"logits": peer.relative(peer.logits_of(peer.load_base(merged), ids), theirs),
            "change": peer.relative(theirs, before)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=pathlib.Path, help="folder of s2ft-adapter; default: found by PATH")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("base")
    parser.add_argument("adapters", nargs="*")
    args = parser.parse_args()
    peer.transformers.utils.logging.disable_progress_bar()
    tool = str(args.tools / "s2ft-adapter") if args.tools else "s2ft-adapter"
    failed = False

    def adapter_tool(adapters, *more, base=args.base):
        given = [part for a in adapters for part in ("--adapter", str(a))]
        subprocess.run([tool, "-m", base, *given, *more, "--verify", "--no-progress"], check=True,
                       stdout=subprocess.DEVNULL)

    def compare(name, folder, merged_from):
        nonlocal failed
        merged = folder.with_name(folder.name + "-merged")
        adapter_tool(merged_from, "--to", "model", "-s", "output.weights=f32", "-o", str(merged))
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
        for prefix, base in make_bases(args.base, pathlib.Path(scratch)).items():
            for name, arguments in (KINDS | (QWEN_KINDS if prefix == "Qwen2: " else {})).items():
                n += 1
                folder, merged = (pathlib.Path(scratch) / f"{of}-{n}" for of in ("kind", "merged"))
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # PEFT's, about tied weights
                    write_kind(base, arguments, folder)
                    adapter_tool([folder], "--to", "model", "-s", "output.weights=f32", "-o", str(merged), base=base)
                    result = compare_kind(base, folder, merged)
                bad = result["change"] == 0 or not result["logits"] <= MOST
                failed = failed or bad
                failures = ["logits"] if bad else []
                print(json.dumps({"folder": prefix + name, **result, "failures": failures}), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
