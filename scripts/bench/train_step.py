#!/usr/bin/env python3
"""Times training steps of s2ft-train on a shape with random weights: one JSON line.

    train_step.py --shape llama-2-7b --batch 2 --tokens 1024 -s 'train.select.ratios={o: 0.052, d: 0.02}'
    train_step.py --shape llama-3.1-8b --data ids.jsonl --batch 64 --tokens 512 -s train.batching=pack
    train_step.py --shape llama-2-7b --batch 2 --tokens 1024 --trace
                 where a step goes on a GPU, kernel by kernel, as gpu_kernels.py says it

Without --data the records are random tokens, all supervised. --data takes JSON lines of ids and supervised
spans, as s2ft-train --show-samples N --format jsonl prints them. Times are medians of the steps from the third
on; `planned_bytes` is the run's plan, `planned_weight_bytes` its weights, `used_bytes` the most that the driver says the
GPUs have in use meanwhile, contexts and other processes included.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from gpu_kernels import short_name


def watch_memory(done, most):
    """Notes the most memory that a process takes on the GPU, until `done`."""
    while not done.wait(0.1):
        found = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                               capture_output=True, text=True)
        most[0] = max([most[0]] + [int(x) << 20 for x in found.stdout.split()])


def where_it_goes(path):
    """Microseconds that each kind of kernel adds to the last step, from the end of the one before."""
    rows = sorted((int(a), int(b), short_name(n)) for a, b, n in
                  (line.split("\t") for line in path.read_text().splitlines()))
    ends = [i for i, row in enumerate(rows) if row[2] == "square_sum_blocks"]  # near the end of each step
    added, count, last = {}, {}, rows[ends[-2]][1]
    for start, end, name in rows[ends[-2] + 1:ends[-1] + 1]:
        if start > last:
            added["gaps"] = added.get("gaps", 0) + start - last
        added[name] = added.get(name, 0) + max(0, end - max(last, start))
        count[name] = count.get(name, 0) + 1
        last = max(last, end)
    return [{"kernel": name, "calls": count.get(name, 0), "us": round(ns * 1e-3, 1)}
            for name, ns in sorted(added.items(), key=lambda item: -item[1])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--s2ft-train", default="build/bin/s2ft-train")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", default="llama-2-7b")
    parser.add_argument("--model", help="in place of random weights of the shape")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("-s", dest="settings", action="append", default=[])
    args = parser.parse_args()
    if args.model and not args.data:
        parser.error("--model needs --data, since random tokens exist only for the built-in shapes")

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        data = args.data
        if data is None:
            data = folder / "random.jsonl"
            draw = random.Random(1)
            data.write_text("".join(
                json.dumps({"ids": [draw.randrange(32000) for _ in range(args.tokens + 1)]}) + "\n"
                for _ in range(args.batch * args.steps)))
        length = args.tokens + (args.data is None)
        command = [args.s2ft_train, "--device", args.device, "-m", args.model or f"synthetic:{args.shape}", "--data", str(data),
                   "-o", str(folder / "run"), "-s", f"train.steps={args.steps}", "-s", f"train.batch={args.batch}",
                   "-s", f"train.max_tokens={length}", "-s", f"train.save_every={args.steps}", "--no-progress"]
        for setting in args.settings:
            command += ["-s", setting]
        plan = json.loads(subprocess.run(command + ["--dry-run", "--format", "json"], check=True,
                                         capture_output=True, text=True).stdout)["memory"]
        planned = next(plan[name] for name in reversed(plan) if name.startswith(args.device[:3]))
        env, done, most = dict(os.environ), threading.Event(), [0]
        if args.trace:
            library = pathlib.Path(args.s2ft_train).resolve().parent / "libtrace_gpu_kernels.so"
            env |= {"CUDA_INJECTION64_PATH": str(library), "TANDEM_KERNEL_TRACE": str(folder / "trace.tsv")}
        watcher = threading.Thread(target=watch_memory, args=(done, most), daemon=True)
        if args.device.startswith("cuda"):
            watcher.start()
        # Killed before it writes what it has trained, which is not measured; a trace needs a proper end.
        process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
        metrics, steps = folder / "run" / "metrics.jsonl", []
        while process.poll() is None and (args.trace or len(steps) < args.steps - 1):
            time.sleep(0.02)
            if metrics.exists():
                steps = [json.loads(line) for line in metrics.read_text().splitlines(keepends=True)
                         if line.endswith("\n") and '"seconds"' in line]
        if process.poll() not in (None, 0):
            sys.exit(f"train_step.py: error: {' '.join(command)}: exit status {process.returncode}")
        process.kill()
        process.wait()
        done.set()
        steps = steps[2:]
        if not steps:
            sys.exit("train_step.py: error: expected at least 4 steps, found fewer")
        seconds = statistics.median(step["seconds"] for step in steps)
        line = {"tool": "s2ft-train", "shape": args.model or args.shape, "batch": args.batch, "tokens": args.tokens,
                "settings": args.settings, "data": args.data.name if args.data else "random",
                "ms": round(seconds * 1e3, 2),
                "tokens_per_s": round(sum(s["tokens"] for s in steps) / sum(s["seconds"] for s in steps)),
                "used_bytes": most[0], "planned_bytes": planned["planned_peak"],
                "planned_weight_bytes": planned["weights"], "loss": steps[-1].get("loss")}
        if args.trace:
            line["kernels"] = where_it_goes(folder / "trace.tsv")
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
