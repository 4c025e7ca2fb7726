#!/usr/bin/env python3
"""Writes tests/data/gguf: models of tests/data/models as GGUF files.

    VENV/bin/pip install gguf==0.19.0
    VENV/bin/python scripts/golden/gguf_models.py

Matrices keep their numbers in BF16, so that a GGUF file has the logits of its folder. Names, order of rows and
metadata follow llama.cpp's converter.
"""

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

DATA = Path(__file__).resolve().parents[2] / "tests" / "data"
# folder: (architecture, q and k turn in pairs)
MODELS = {"mistral-plain": ("llama", True), "llama-3.1": ("llama", True), "qwen2-tied": ("qwen2", False),
          "qwen3-tied": ("qwen3", False), "gemma3": ("gemma3", False), "phi3": ("phi3", False),
          "granite": ("granite", True), "smollm3": ("smollm3", True), "olmo2": ("olmo2", False)}
NAMES = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
         "lm_head.weight": "output.weight"}
LAYER = {"input_layernorm.weight": "attn_norm.weight", "post_attention_layernorm.weight": "ffn_norm.weight",
         "mlp.gate_proj.weight": "ffn_gate.weight", "mlp.up_proj.weight": "ffn_up.weight",
         "mlp.down_proj.weight": "ffn_down.weight", "mlp.gate_up_proj.weight": "ffn_up.weight",
         "self_attn.qkv_proj.weight": "attn_qkv.weight", "self_attn.o_proj.weight": "attn_output.weight",
         "self_attn.q_norm.weight": "attn_q_norm.weight", "self_attn.k_norm.weight": "attn_k_norm.weight",
         **{f"self_attn.{m}_proj.{p}": f"attn_{m}.{p}" for m in "qkv" for p in ("weight", "bias")}}
POST = {"post_attention_layernorm.weight": "post_attention_norm.weight",
        "pre_feedforward_layernorm.weight": "ffn_norm.weight",
        "post_feedforward_layernorm.weight": "post_ffw_norm.weight"}


def gguf_name(name, arch):
    if name in NAMES:
        return NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    names = LAYER | POST if arch in ("gemma3", "olmo2") else LAYER
    return f"blk.{layer}.{names[rest]}"


def in_pairs(rows, heads):
    """Rows of each head as ggml turns them: neighbours are a pair."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write_keys(writer, config, arch):
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads", heads))
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config.get("rope_parameters") or {}
    writer.add_rope_freq_base(float(config.get("rope_theta", rope.get("rope_theta", 10000.0))))
    writer.add_rope_dimension_count(int(head_dim * config.get("partial_rotary_factor", 1)))
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    if arch == "gemma3":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_uint32("gemma3.attention.sliding_window_pattern", config["sliding_window_pattern"])
    if arch == "phi3":
        writer.add_sliding_window(config["sliding_window"])
    if arch == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    return head_dim


def write_scaling(writer, config, head_dim):
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling["factor"])
    elif kind == "llama3":
        half = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
        wavelength = 2 * np.pi * config["rope_theta"] ** half
        low, high, old = (scaling[k] for k in
                          ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
        smooth = np.clip((old / wavelength - low) / (high - low), 0, 1)
        writer.add_tensor("rope_freqs.weight",
                          (1 / ((1 - smooth) / scaling["factor"] + smooth)).astype(np.float32))
    elif kind:  # longrope and its older names
        context = config["original_max_position_embeddings"]
        longer = config["max_position_embeddings"] / context
        writer.add_rope_scaling_orig_ctx_len(context)
        writer.add_rope_scaling_attn_factors((1 + np.log(longer) / np.log(context)) ** 0.5 if longer > 1 else 1.0)
        for key in ("long", "short"):
            writer.add_tensor(f"rope_factors_{key}.weight", np.array(scaling[key + "_factor"], np.float32))


def write(name, arch, pairs, to=DATA / "gguf", plain=False):
    """plain: every tensor in F32 and a vocabulary without text, as llama.cpp compares best."""
    folder = DATA / "models" / name
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(Path(to) / f"{name}.gguf", arch)
    head_dim = write_keys(writer, config, arch)
    write_scaling(writer, config, head_dim)
    for key, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.to(torch.float32).numpy()
        if pairs and any(f"self_attn.{m}_proj" in key for m in "qk"):
            values = in_pairs(values, values.shape[0] // head_dim)
        if arch == "gemma3" and key.endswith("norm.weight"):
            values = values + 1
        if plain or values.ndim == 1:
            writer.add_tensor(gguf_name(key, arch), values)
        else:
            numbers = torch.from_numpy(values.copy())
            kind = torch.float16 if tensor.dtype == torch.float16 else torch.bfloat16
            raw = numbers.to(kind).view(torch.uint8).numpy()
            writer.add_tensor(gguf_name(key, arch), raw, raw_dtype=(
                gguf.GGMLQuantizationType.F16 if kind == torch.float16 else gguf.GGMLQuantizationType.BF16))
    if plain:
        writer.add_tokenizer_model("no_vocab")
        writer.add_vocab_size(config["vocab_size"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    (DATA / "gguf").mkdir(exist_ok=True)
    for name, (arch, pairs) in MODELS.items():
        write(name, arch, pairs)


if __name__ == "__main__":
    main()
