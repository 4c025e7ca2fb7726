#!/usr/bin/env python3
"""Times Hugging Face transformers on the shape that pig-bench times: random weights, greedy decode with
its KV cache. Prints one JSON line a measurement.

    peer_transformers.py --shape llama-3.2-1b --threads 2 --prefill 512 2048 --context 512
    peer_transformers.py --device cuda --shape llama-3.1-8b --prefill 4096 32768 --context 1024 --static
    peer_transformers.py --device cuda --shape llama-3.1-8b --save FOLDER --prefill --context
    peer_transformers.py --device cuda --load FOLDER --prefill 1024
    peer_transformers.py --load FOLDER --serve   # busy.py asks

Needs torch and transformers. The weights are random, so only time is compared. --save writes a checkpoint
that pig-bench and pig-generate load, too.
"""
import argparse
import json
import pathlib
import statistics

from peer_common import SHAPES, clock, serve, timed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.2-1b")
    parser.add_argument("--load", metavar="FOLDER", help="times loading this checkpoint, and goes on with it")
    parser.add_argument("--save", metavar="FOLDER", help="writes the model there")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="number of CPU threads")
    parser.add_argument("--prefill", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--context", type=int, nargs="*", default=[512])
    parser.add_argument("--batch", type=int, default=1, help="number of sequences in decode")
    parser.add_argument("--static", action="store_true",
                        help="decode also with a static cache and torch.compile")
    parser.add_argument("--decode-steps", type=int, default=16)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--serve", action="store_true",
                        help="measures what lines of stdin ask for (peer_common.py), on the CPU")
    args = parser.parse_args()

    import torch
    import transformers

    if args.serve:
        transformers.logging.disable_progress_bar()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    name = pathlib.Path(args.load).name if args.load else args.shape

    def seconds_of(work):
        def synchronized():
            result = work()
            if args.device == "cuda":
                torch.cuda.synchronize()
            return result
        return clock(synchronized)

    def report(phase, tokens, seconds, **more):
        print(json.dumps({
            "peer": "transformers " + transformers.__version__, "torch": torch.__version__,
            "shape": name, "dtype": "bf16", "device": args.device, "threads": args.threads,
            "phase": phase, "tokens": tokens, "seconds_median": statistics.median(seconds),
            "seconds_min": min(seconds), "runs": len(seconds), **more}), flush=True)

    if args.load:
        if args.device == "cuda":
            torch.cuda.init()

        def load():
            return transformers.LlamaForCausalLM.from_pretrained(
                args.load, dtype=torch.bfloat16,
                device_map="cuda" if args.device == "cuda" else None).eval()
        elapsed, model = seconds_of(load)
        if not args.serve:  # the first time brought the files into the page cache
            elapsed, model = seconds_of(load)
            report("load", 0, [elapsed])
    else:
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(args.device):
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPES[args.shape])).eval()
        torch.set_default_dtype(torch.float32)
    if args.save:
        model.save_pretrained(args.save)

    def random_ids(rows, n):
        return torch.randint(0, model.config.vocab_size, (rows, n), device=args.device)

    def decode(context, cache=None, forward=model, more={}):
        """Steps after a prefill of `context` tokens; the first ones warm up."""
        kwargs = {} if cache is None else {"past_key_values": cache}
        out = model(random_ids(args.batch, context), use_cache=True, logits_to_keep=1, **kwargs)
        cache, token, seconds = out.past_key_values, out.logits[:, -1:].argmax(-1), []
        for step in range(args.decode_steps + 3):
            position = torch.tensor([context + step], device=args.device)
            elapsed, out = seconds_of(lambda: forward(
                token, past_key_values=cache, use_cache=True,
                position_ids=position.expand(args.batch, 1)))
            token = out.logits[:, -1:].argmax(-1).clone()
            if step >= 3:
                seconds.append(elapsed)
        report("decode_step", context, seconds, batch=args.batch, **more)

    def measure(phase, tokens, threads, seconds):
        """As serve takes it: whole prompts, or decode steps at `tokens` to tokens + 64."""
        torch.set_num_threads(threads)
        ids = random_ids(1, tokens)
        forward = lambda **more: model(use_cache=True, logits_to_keep=1, **more)
        if phase == "prefill":
            seconds_of(lambda: forward(input_ids=ids))
            return timed(lambda: seconds_of(lambda: forward(input_ids=ids))[0], seconds)
        cache = forward(input_ids=ids).past_key_values

        def step():
            if cache.get_seq_length() >= tokens + 64:
                cache.crop(tokens - cache.get_seq_length())  # negative: so many tokens fewer
            return seconds_of(lambda: forward(input_ids=ids[:, :1], past_key_values=cache))[0]
        timed(step, 0)
        return timed(step, seconds)

    if args.serve:
        with torch.inference_mode():
            serve({"version": transformers.__version__, "torch": torch.__version__}, measure)
        return
    with torch.inference_mode():
        for n in args.prefill:
            ids = random_ids(1, n)
            run = lambda: model(ids, logits_to_keep=1, use_cache=True)
            first = seconds_of(run)[0]
            report("prefill", n, [seconds_of(run)[0] for _ in range(args.runs)], first_s=first)
        for n in args.context:
            decode(n, more={"cache": "dynamic"})
        if args.static:
            compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
            for n in args.context:
                cache = transformers.StaticCache(config=model.config, max_cache_len=n + args.decode_steps + 3)
                decode(n, cache, compiled, {"cache": "static, compiled"})


if __name__ == "__main__":
    main()
