#!/usr/bin/env python3
"""Writes the weights of SmolLM2's GGUF file as a Hugging Face folder in bf16, for programs and methods that need one.

    smollm2-folder.py "$(scripts/get-smollm2.sh)" FOLDER

The values are dequantized from 4 bits: they are not those of the original checkpoint. Needs numpy and gguf.
"""
import json
import pathlib
import struct
import sys

import gguf
import numpy as np

NAMES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
OUTER = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}
CONTROL = 3  # type of special tokens


def name_of(tensor):
    block, *rest = tensor.removesuffix(".weight").split(".")
    return f"model.layers.{rest[0]}.{NAMES[rest[1]]}.weight" if rest else OUTER[block]


def bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def write_weights(reader, heads, path):
    """A safetensors file. GGUF keeps the rotary pairs of q and k as neighbours; the folder, half a head apart."""
    header, at, tensors = {}, 0, []
    for t in reader.tensors:
        x = gguf.dequantize(t.data, t.tensor_type)
        if (n := heads.get(t.name.split(".")[-2])) is not None:
            x = x.reshape(n, x.shape[0] // n // 2, 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
        x = bf16(x)
        header[name_of(t.name)] = {"dtype": "BF16", "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
        tensors.append(x)
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for x in tensors:
            file.write(x.tobytes())


def tokenizer_of(tokens, kinds, merges):
    special = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": True} for i, token in enumerate(tokens) if kinds[i] == CONTROL]
    split = [{"type": "Digits", "individual_digits": True},
             {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": split}, "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges}}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    reader, folder = gguf.GGUFReader(sys.argv[1]), pathlib.Path(sys.argv[2])
    value = lambda name: reader.fields[name].contents()
    llama = lambda name: value("llama." + name)
    width, n_heads, n_kv_heads = llama("embedding_length"), llama("attention.head_count"), llama("attention.head_count_kv")
    tokens = value("tokenizer.ggml.tokens")
    end = value("tokenizer.ggml.eos_token_id")
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": width,
            "intermediate_size": llama("feed_forward_length"), "num_hidden_layers": llama("block_count"),
            "num_attention_heads": n_heads, "num_key_value_heads": n_kv_heads, "head_dim": width // n_heads,
            "vocab_size": len(tokens), "max_position_embeddings": llama("context_length"),
            "rope_theta": llama("rope.freq_base"), "rms_norm_eps": round(llama("attention.layer_norm_rms_epsilon"), 8),
            "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "torch_dtype": "bfloat16",
            "bos_token_id": value("tokenizer.ggml.bos_token_id"), "eos_token_id": end},
        "tokenizer.json": tokenizer_of(tokens, value("tokenizer.ggml.token_type"), value("tokenizer.ggml.merges")),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": llama("context_length"),
            "eos_token": tokens[end], "bos_token": tokens[value("tokenizer.ggml.bos_token_id")],
            "chat_template": value("tokenizer.chat_template")}}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    write_weights(reader, {"attn_q": n_heads, "attn_k": n_kv_heads}, folder / "model.safetensors")


if __name__ == "__main__":
    main()
