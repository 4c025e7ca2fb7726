#!/usr/bin/env python3
"""Times Hugging Face transformers on the CPU on the shape that pig-bench times: random weights, one
sequence, greedy decode with its KV cache. Prints one JSON line a measurement.

    peer_transformers.py --shape llama-3.2-1b --threads 2 --prefill 512 2048 --context 512

Needs torch and transformers. The weights are random, so only time is compared.
"""
import argparse
import json
import statistics
import time

SHAPES = {
    "llama-3.2-1b": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
                         num_attention_heads=32, num_key_value_heads=8, head_dim=64,
                         vocab_size=128256, tie_word_embeddings=True, rope_theta=500000.0,
                         max_position_embeddings=131072),
    "tiny-16m": dict(hidden_size=384, intermediate_size=1024, num_hidden_layers=8,
                     num_attention_heads=6, num_key_value_heads=2, head_dim=64, vocab_size=8192,
                     tie_word_embeddings=True, rope_theta=500000.0, max_position_embeddings=16384),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.2-1b")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefill", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--decode-steps", type=int, default=16)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()

    import torch
    import transformers

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SHAPES[args.shape])
    torch.set_default_dtype(torch.bfloat16)
    model = transformers.LlamaForCausalLM(config).eval()

    def report(phase, tokens, seconds):
        print(json.dumps({
            "peer": "transformers " + transformers.__version__, "torch": torch.__version__,
            "shape": args.shape, "dtype": "bf16", "threads": args.threads, "phase": phase,
            "tokens": tokens, "seconds_median": statistics.median(seconds),
            "seconds_min": min(seconds), "runs": len(seconds)}), flush=True)

    with torch.inference_mode():
        for n in args.prefill:
            ids = torch.randint(0, config.vocab_size, (1, n))
            model(ids, logits_to_keep=1)
            seconds = []
            for _ in range(args.runs):
                start = time.perf_counter()
                model(ids, logits_to_keep=1)
                seconds.append(time.perf_counter() - start)
            report("prefill", n, seconds)
        ids = torch.randint(0, config.vocab_size, (1, args.context))
        out = model(ids, use_cache=True, logits_to_keep=1)
        cache, token, seconds = out.past_key_values, out.logits[:, -1:].argmax(-1), []
        for step in range(args.decode_steps + 3):
            start = time.perf_counter()
            out = model(token, past_key_values=cache, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)
            if step >= 3:
                seconds.append(time.perf_counter() - start)
        report("decode_step", args.context, seconds)


if __name__ == "__main__":
    main()
