#!/usr/bin/env python3
"""Times llama.cpp on the CPU on the shape that pig-bench times: random bf16 weights, one sequence,
decode on the cache that a prefill left. Prints one JSON line a measurement.

    peer_llama_cpp.py --shape llama-3.2-1b --threads 2 --prefill 512 2048 --context 512 2048
    peer_llama_cpp.py --shape llama-3.2-1b --gguf Q4_K_M.gguf --quantize Q4_K_M --context 512
    peer_llama_cpp.py --shape tiny-16m --gguf MODEL.gguf --context 512 --serve   # busy.py asks

Needs llama_cpp (llama-cpp-python) and gguf. The weights are random, so only time is compared. Each
measurement runs with flash attention off and on, the runs alternating; the median of the faster is
the line's figure, both are in "settings". The choice of the next token is not timed.
"""
import argparse
import ctypes
import json
import os
import statistics
import tempfile

from peer_common import SHAPES, clock, serve, timed

WARMUP_STEPS = 3


def rope_divisors(shape, np):
    """What llama.cpp divides each rotary frequency by: 1 for waves much shorter than the original
    context, the factor for longer ones, blended between (Llama 3's scaling)."""
    rope = shape["rope_scaling"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    half = np.arange(0, shape["head_dim"], 2) / shape["head_dim"]
    turns = rope["original_max_position_embeddings"] / (2 * np.pi * shape["rope_theta"] ** half)
    blend = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / (blend + (1 - blend) / rope["factor"])).astype(np.float32)


def write_model(path, shape):
    """One GGUF file: matrices bf16, random of size 2^-7 to 2^-5 (root mean square 0.019); norms
    f32, all ones; no vocabulary."""
    import gguf
    import numpy as np

    dim, ffn, layers, head_dim = (shape[k] for k in (
        "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim"))
    heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    q_dim, kv_dim = heads * head_dim, kv_heads * head_dim
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(shape["vocab_size"])
    writer.add_context_length(shape["max_position_embeddings"])
    writer.add_embedding_length(dim)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(shape["rope_theta"])
    writer.add_layer_norm_rms_eps(shape["rms_norm_eps"])

    matrices = {"attn_q": (q_dim, dim), "attn_k": (kv_dim, dim), "attn_v": (kv_dim, dim),
                "attn_output": (dim, q_dim), "ffn_gate": (ffn, dim), "ffn_up": (ffn, dim),
                "ffn_down": (dim, ffn)}
    ones = np.ones(dim, np.float32)
    tensors = [("token_embd.weight", (shape["vocab_size"], dim)), ("output_norm.weight", ones)]
    if not shape["tie_word_embeddings"]:
        tensors.append(("output.weight", (shape["vocab_size"], dim)))
    if "rope_scaling" in shape:
        tensors.append(("rope_freqs.weight", rope_divisors(shape, np)))
    for i in range(layers):
        tensors += [(f"blk.{i}.{name}.weight", size) for name, size in matrices.items()]
        tensors += [(f"blk.{i}.{name}.weight", ones) for name in ("attn_norm", "ffn_norm")]

    for name, t in tensors:
        if isinstance(t, tuple):
            writer.add_tensor_info(name, t, np.dtype(np.uint16), 2 * t[0] * t[1],
                                   gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor_info(name, t.shape, t.dtype, t.nbytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(0)
    for _, t in tensors:
        if isinstance(t, tuple):  # sign, mantissa and the exponent's last bit are random
            t = rng.integers(0, 1 << 16, t, np.uint16) & 0x80FF | 0x3C00
        writer.write_tensor_data(t)
    writer.close()


def quantize(path, to, kind, lib):
    """Writes the model at `path` as llama.cpp quantizes it."""
    params = lib.llama_model_quantize_default_params()
    params.ftype = getattr(lib, "LLAMA_FTYPE_MOSTLY_" + kind)
    if lib.llama_model_quantize(path.encode(), to.encode(), ctypes.byref(params)) != 0:
        raise SystemExit(f"llama.cpp cannot quantize the model as {kind}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.2-1b")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--prefill", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--context", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--decode-steps", type=int, default=32)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--ubatch", type=int, default=512, help="tokens computed at once")
    parser.add_argument("--kv", choices=["f16", "bf16"], default="f16", help="type of the KV cache")
    parser.add_argument("--load", choices=["mmap", "none"], default="mmap",
                        help="weights mapped from the file (llama.cpp's default) or copied")
    parser.add_argument("--gguf", metavar="FILE", help="keeps the model there; loads it where it exists")
    parser.add_argument("--quantize", metavar="KIND", help="of a new file: Q4_K_M, Q4_0, Q8_0, ...")
    parser.add_argument("--serve", action="store_true",
                        help="measures what lines of stdin ask for (peer_common.py), flash attention as "
                             "llama.cpp chooses, at most --prefill and --context tokens")
    parser.add_argument("--verbose", action="store_true", help="keep llama.cpp's own log")
    args = parser.parse_args()

    import gguf
    import llama_cpp as lib
    import numpy as np

    shape = SHAPES[args.shape]
    quiet = lib.llama_log_callback(lambda level, text, data: None)  # must outlive all calls
    if not args.verbose:
        lib.llama_log_set(quiet, ctypes.c_void_p(0))
    lib.llama_backend_init()

    with tempfile.TemporaryDirectory() as folder:
        path = args.gguf or os.path.join(folder, "model.gguf")
        if not os.path.exists(path):
            write_model(path + ".part", shape)
            if args.quantize:
                os.replace(path + ".part", path + ".bf16")
                quantize(path + ".bf16", path + ".part", args.quantize, lib)
                os.remove(path + ".bf16")
            os.replace(path + ".part", path)
        params = lib.llama_model_default_params()
        params.load_mode = getattr(lib, "LLAMA_LOAD_MODE_" + args.load.upper())
        model = lib.llama_model_load_from_file(path.encode(), params)
    if not model:
        raise SystemExit("llama.cpp cannot load the model; run with --verbose for the reason")

    weight_bytes = lib.llama_model_size(model)
    longest = max(args.prefill + [c + WARMUP_STEPS + max(64, args.decode_steps) for c in args.context])
    rng = np.random.default_rng(1)

    class Context:
        def __init__(self, flash):
            params = lib.llama_context_default_params()
            params.n_ctx, params.n_batch, params.n_ubatch = longest, longest, args.ubatch
            params.n_threads = params.n_threads_batch = args.threads
            params.type_k = params.type_v = gguf.GGMLQuantizationType[args.kv.upper()]
            params.flash_attn_type = flash
            self.handle = lib.llama_init_from_model(model, params)
            if not self.handle:
                raise SystemExit("llama.cpp cannot create a context; run with --verbose for the reason")

        def forget_from(self, position):
            lib.llama_memory_seq_rm(lib.llama_get_memory(self.handle), 0, position, -1)

        def feed(self, n):
            """Appends n random tokens; returns the seconds until the last one has its logits."""
            tokens = (lib.llama_token * n)(*rng.integers(0, shape["vocab_size"], n).tolist())
            batch = lib.llama_batch_get_one(tokens, n)  # asks for the last token's logits alone
            seconds, (status, logits) = clock(lambda: (
                lib.llama_decode(self.handle, batch), lib.llama_get_logits_ith(self.handle, -1)))
            if status != 0 or not np.isfinite(logits[0]):
                raise SystemExit(f"llama_decode returned {status}, first logit {logits[0]}")
            return seconds

        def measure(self, phase, tokens, threads, seconds):
            """As serve takes it: whole prompts, or decode steps at `tokens` to tokens + 64."""
            lib.llama_set_n_threads(self.handle, threads, threads)

            def prompt():
                self.forget_from(0)
                return self.feed(tokens)
            prompt()
            if phase == "prefill":
                return timed(prompt, seconds)
            length = tokens

            def step():
                nonlocal length
                if length == tokens + 64:
                    self.forget_from(tokens)
                    length = tokens
                length += 1
                return self.feed(1)
            timed(step, 0)
            return timed(step, seconds)

    if args.serve:
        context = Context(lib.LLAMA_FLASH_ATTN_TYPE_AUTO)
        return serve({"version": lib.__version__,
                      "system": lib.llama_print_system_info().decode().strip(" |")}, context.measure)
    contexts = {"off": Context(lib.LLAMA_FLASH_ATTN_TYPE_DISABLED),
                "on": Context(lib.LLAMA_FLASH_ATTN_TYPE_ENABLED)}

    def summary(seconds):
        return {"seconds_median": statistics.median(seconds), "seconds_min": min(seconds),
                "seconds_max": max(seconds), "runs": len(seconds)}

    def report(phase, tokens, seconds):
        settings = {flash: summary(s) for flash, s in seconds.items()}
        best = min(settings, key=lambda flash: settings[flash]["seconds_median"])
        print(json.dumps({
            "peer": "llama.cpp by llama-cpp-python " + lib.__version__,
            "system": lib.llama_print_system_info().decode().strip(" |"), "shape": args.shape,
            "dtype": "bf16", "kv": args.kv, "weight_bytes": weight_bytes, "ubatch": args.ubatch,
            "load": args.load, "threads": args.threads, "phase": phase, "tokens": tokens,
            **settings[best], "flash_attention": best, "settings": settings}), flush=True)

    for n in sorted({*args.prefill, *args.context}):
        seconds = {flash: [] for flash in contexts}
        for run in range(args.runs + 1 if n in args.prefill else 1):  # the first is the warm-up
            for flash, context in contexts.items():
                context.forget_from(0)
                took = context.feed(n)
                if run > 0:
                    seconds[flash].append(took)
        if n in args.prefill:
            report("prefill", n, seconds)
        if n not in args.context:
            continue
        seconds = {flash: [] for flash in contexts}
        for _ in range(args.runs):
            for flash, context in contexts.items():
                context.forget_from(n)  # the prefill above stays
                took = [context.feed(1) for _ in range(WARMUP_STEPS + args.decode_steps)]
                seconds[flash] += took[WARMUP_STEPS:]
        report("decode_step", n, seconds)


if __name__ == "__main__":
    main()
