"""Random-weight models of every supported architecture, a few thousand parameters each."""

import json

import numpy as np
import torch
from safetensors.torch import save_file

import forward

LENGTHS = [1, 5, 40, 150]
N_GREEDY = 24
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
LLAMA, MISTRAL, QWEN2, QWEN3, PHI3, SMOLLM3 = (
    {"architectures": [a + "ForCausalLM"], "model_type": a.lower(), "hidden_act": "silu"}
    for a in ("Llama", "Mistral", "Qwen2", "Qwen3", "Phi3", "SmolLM3"))
# Its bands meet the wavelengths of a small head within 150 tokens: kept, blended and stretched.
LLAMA3_SCALING = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                  "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def shape(dim, layers, heads, kv_heads, ffn, vocab, head_dim=None):
    config = {"hidden_size": dim, "num_hidden_layers": layers, "num_attention_heads": heads,
              "intermediate_size": ffn, "vocab_size": vocab, "max_position_embeddings": 512,
              "bos_token_id": 1, "eos_token_id": 2}
    if kv_heads:
        config["num_key_value_heads"] = kv_heads
    if head_dim:
        config["head_dim"] = head_dim
    return config


# name: (stored dtype, shards, config). The spellings are those met in published checkpoints; a key
# left out (Llama 2: rope_theta, head_dim, num_key_value_heads) exercises its default.
MODELS = {
    "llama-2": ("f16", 1, LLAMA | shape(48, 2, 3, None, 104, 320) | {
        "rms_norm_eps": 1e-5, "rope_scaling": None, "tie_word_embeddings": False,
        "torch_dtype": "float16"}),
    "llama-3.1": ("bf16", 1, LLAMA | shape(64, 3, 4, 2, 112, 384) | {
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "rope_scaling": LLAMA3_SCALING,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16"}),
    "llama-3.2-tied": ("bf16", 1, LLAMA | shape(48, 3, 6, 2, 96, 512, 16) | {
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "dtype": "bfloat16",
        "rope_parameters": LLAMA3_SCALING | {"rope_theta": 500000.0}}),
    "llama-linear": ("f32", 1, LLAMA | shape(56, 2, 7, 1, 72, 256, 16) | {
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "rope_scaling": {"type": "linear", "factor": 4.0},
        "tie_word_embeddings": False, "torch_dtype": "float32"}),
    "llama-odd": ("f16", 1, LLAMA | shape(40, 2, 5, 1, 68, 257, 10) | {
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "dtype": "float16",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    "mistral-window": ("bf16", 1, MISTRAL | shape(64, 3, 4, 2, 128, 320) | {
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "sliding_window": 32,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16"}),
    "mistral-plain": ("f16", 1, MISTRAL | shape(40, 2, 4, 2, 80, 320, 24) | {
        "rms_norm_eps": 1e-5, "sliding_window": None, "tie_word_embeddings": False,
        "dtype": "float16", "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}),
    # The window of Qwen2 counts only with use_sliding_window; here it must be ignored.
    "qwen2-tied": ("bf16", 1, QWEN2 | shape(48, 3, 6, 2, 96, 512) | {
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "sliding_window": 32,
        "use_sliding_window": False, "max_window_layers": 2, "tie_word_embeddings": True,
        "torch_dtype": "bfloat16"}),
    "qwen2-untied-sharded": ("bf16", 2, QWEN2 | shape(56, 3, 7, 1, 96, 512) | {
        "rms_norm_eps": 1e-6, "use_sliding_window": False, "sliding_window": None,
        "tie_word_embeddings": False, "dtype": "bfloat16",
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}),
    "qwen3-tied": ("bf16", 1, QWEN3 | shape(48, 3, 6, 2, 96, 512, 16) | {
        "rms_norm_eps": 1e-6, "rope_theta": 1000000, "rope_scaling": None, "attention_bias": False,
        "sliding_window": None, "use_sliding_window": False, "max_window_layers": 3,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16"}),
    "qwen3-untied-sharded": ("bf16", 2, QWEN3 | shape(64, 2, 2, 1, 96, 384) | {
        "rms_norm_eps": 1e-6, "use_sliding_window": False, "sliding_window": None,
        "tie_word_embeddings": False, "dtype": "bfloat16",
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}),
    "qwen3-odd": ("f16", 1, QWEN3 | shape(40, 3, 5, 1, 68, 257, 10) | {
        "rms_norm_eps": 1e-5, "attention_bias": True, "sliding_window": 32,
        "use_sliding_window": True, "max_window_layers": 1, "tie_word_embeddings": False,
        "dtype": "float16", "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    # Phi-4 14B: q, k, v in one tensor, and gate, up; no long RoPE.
    "phi4": ("bf16", 1, PHI3 | shape(80, 3, 5, 1, 104, 384) | {
        "rms_norm_eps": 1e-5, "rope_theta": 250000, "rope_scaling": None, "attention_bias": False,
        "sliding_window": None, "original_max_position_embeddings": 512, "pad_token_id": 2,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16"}),
    # Layers that see all tokens before, between and after those with a window.
    "qwen2-layer-types": ("bf16", 1, QWEN2 | shape(40, 5, 4, 2, 72, 320) | {
        "rms_norm_eps": 1e-6, "use_sliding_window": True, "sliding_window": 24,
        "max_window_layers": 5, "layer_types": [
            "full_attention", "sliding_attention", "sliding_attention", "full_attention",
            "sliding_attention"], "tie_word_embeddings": False, "dtype": "bfloat16",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    # Layers without RoPE slide.
    "smollm3-window": ("bf16", 1, SMOLLM3 | shape(48, 4, 6, 2, 88, 320, 8) | {
        "rms_norm_eps": 1e-6, "rope_theta": 50000.0, "no_rope_layers": [1, 0, 1, 0],
        "use_sliding_window": True, "sliding_window": 24, "tie_word_embeddings": True,
        "attention_bias": False, "mlp_bias": False, "pad_token_id": 2, "torch_dtype": "bfloat16"}),
}
FUSED = {"self_attn.qkv_proj.weight": [f"self_attn.{m}_proj.weight" for m in "qkv"],
         "mlp.gate_up_proj.weight": ["mlp.gate_proj.weight", "mlp.up_proj.weight"]}


def fused(tensors):
    """The same weights as Phi-3 stores them."""
    out = dict(tensors)
    for name in tensors:
        for whole, parts in FUSED.items():
            if name.endswith(parts[0]):
                prefix = name.removesuffix(parts[0])
                out[prefix + whole] = np.concatenate([out.pop(prefix + part) for part in parts])
    return out


def weights(config, seed):
    """Tensors by checkpoint name, f32. Scales keep attention and output away from uniform: scores
    and logits have a standard deviation of about 2 to 3."""
    rng = np.random.default_rng(seed)
    dim, ffn, vocab = (config[k] for k in ("hidden_size", "intermediate_size", "vocab_size"))
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    qwen3 = config["model_type"] == "qwen3"
    head_dim = config.get("head_dim", 128 if qwen3 else dim // heads)
    has_bias = config["model_type"] == "qwen2" or config.get("attention_bias", False)

    def matrix(rows, columns, gain):
        return rng.standard_normal((rows, columns)) * gain / columns ** 0.5

    def norm():
        return rng.uniform(0.5, 1.5, dim)

    out = {"model.embed_tokens.weight": matrix(vocab, dim, 3.0), "model.norm.weight": norm()}
    if not config["tie_word_embeddings"]:
        out["lm_head.weight"] = matrix(vocab, dim, 3.0)
    for i in range(config["num_hidden_layers"]):
        layer, attn, mlp = (f"model.layers.{i}." + part for part in ("", "self_attn.", "mlp."))
        out[layer + "input_layernorm.weight"] = norm()
        out[layer + "post_attention_layernorm.weight"] = norm()
        for name, rows, gain in (("q", heads, 1.5), ("k", kv_heads, 1.5), ("v", kv_heads, 1.0)):
            out[attn + name + "_proj.weight"] = matrix(rows * head_dim, dim, gain)
            if has_bias:
                out[attn + name + "_proj.bias"] = rng.standard_normal(rows * head_dim) * 0.5
            if qwen3 and name != "v":
                out[attn + name + "_norm.weight"] = rng.uniform(1.0, 2.0, head_dim)
        out[attn + "o_proj.weight"] = matrix(dim, heads * head_dim, 1.0)
        if qwen3 and has_bias:
            out[attn + "o_proj.bias"] = rng.standard_normal(dim) * 0.5
        out[mlp + "gate_proj.weight"] = matrix(ffn, dim, 1.5)
        out[mlp + "up_proj.weight"] = matrix(ffn, dim, 1.0)
        out[mlp + "down_proj.weight"] = matrix(dim, ffn, 1.0)
    return fused(out) if config["model_type"] == "phi3" else out


def save(folder, config, tensors, dtype, n_shards):
    """config.json and model.safetensors, or numbered shards with their index, as transformers does."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    stored = {name: torch.from_numpy(t).to(DTYPES[dtype]) for name, t in tensors.items()}
    names, file_of = list(stored), {}
    for i in range(n_shards):
        part = names[i * len(names) // n_shards:(i + 1) * len(names) // n_shards]
        number = f"-{i + 1:05d}-of-{n_shards:05d}" if n_shards > 1 else ""
        file = folder / f"model{number}.safetensors"
        save_file({name: stored[name] for name in part}, file, {"format": "pt"})
        file.chmod(0o644)  # the library creates it readable by its owner only
        file_of |= dict.fromkeys(part, file.name)
    if n_shards == 1:
        return
    total = sum(t.numel() * t.element_size() for t in stored.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(file_of.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def golden(folder, vocab, seed):
    model = forward.load(folder, "eager")
    rng = np.random.default_rng(seed)
    cases = []
    for length in LENGTHS:
        ids = rng.integers(0, vocab, length).tolist()
        logits = forward.logits_of(model, ids)
        positions = sorted({0, length // 3, 2 * length // 3, length - 1})
        tokens, gaps = forward.greedy(model, ids, N_GREEDY)
        cases.append({
            "ids": ids,
            "positions": positions,
            "logits": [forward.numbers(logits[p]) for p in positions],
            "mean_nll": forward.mean_nll(logits, ids),
            "greedy_ids": tokens,
            "top1_minus_top2": gaps,
        })
    return cases


def build(folder, seed, names):
    """Writes folders of the models; returns {file name: content} of their golden cases."""
    files = {}
    for i, (name, (dtype, n_shards, config)) in enumerate(MODELS.items()):
        if name not in names:
            continue
        save(folder / name, config, weights(config, [seed, i, 0]), dtype, n_shards)
        files[f"{name}.json"] = golden(folder / name, config["vocab_size"], [seed, i, 1])
    return files
