#!/usr/bin/env python3
"""Says where a step of pig-bench goes on a GPU, kernel by kernel.

    gpu_kernels.py --phase decode --batch 32 --context 8192
    gpu_kernels.py --phase prefill --context 4096 --format md
    gpu_kernels.py --phase decode --batch 8 --context 98304 -s cache.kind=hybrid

The 8B shape runs as it does without being watched; a library that the driver loads into it notes when each
kernel begins and ends (tests/gpu/trace_kernels.cpp). What a kernel `adds` is the time from the end of the
last one to its own end: gaps count, what overlaps counts once, and the sum is the step. Of several steps
the medians. Prints one JSON line a kind of kernel, or a table.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

LAYERS, DIM, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 32, 4096, 32, 8, 128, 14336, 128256
PRODUCTS = {"qkv": ((HEADS + 2 * KV_HEADS) * HEAD_DIM, DIM), "wo": (DIM, HEADS * HEAD_DIM),
            "gate_up": (2 * FFN, DIM), "w_down": (DIM, FFN), "lm_head": (VOCAB, DIM)}
LINEAR = re.compile(r"linear|nvjet|gemm|cutlass|xmma", re.IGNORECASE)
ATTENTION = re.compile(r"few_rows|prefill", re.IGNORECASE)


def fail(text):
    sys.exit(f"gpu_kernels.py: error: {text}")


def short_name(name):
    """A kernel's name without namespaces, types and arguments."""
    name = name.replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", re.sub(r"^void ", "", name))[0].split("::")[-1]


def trace(args, folder):
    """(begin, end, name) of every kernel, in us, by their ends."""
    bench = pathlib.Path(args.pig_bench).resolve()
    library = bench.parent / "libtrace_gpu_kernels.so"
    if not library.exists():
        fail(f"{library} is not there: build tandem_gpu_checks with CUDA's CUPTI")
    command = [str(bench), "--device", "cuda", "-m", "synthetic:llama-3.1-8b", "--phase", args.phase,
               "-s", f"run.batch={args.batch}", "-s", f"run.context={args.context}",
               "-s", f"bench.min_runs={args.steps}", "-s", "bench.min_time=0s", "--no-progress", "-q"]
    if args.phase == "decode":
        command += ["-s", "bench.random_kv=true"]
    command += [flag for setting in args.set for flag in ("-s", setting)]
    env = {**os.environ, "TANDEM_CACHE_DIR": os.environ.get("TANDEM_CACHE_DIR", folder)}
    out = pathlib.Path(folder, "trace.tsv")
    # Once unwatched: it measures which products are the fastest, and keeps that.
    subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL,
                   env={**env, "CUDA_INJECTION64_PATH": str(library), "TANDEM_KERNEL_TRACE": str(out)})
    kernels = []
    for line in out.read_text().splitlines():
        begin, end, name = line.split("\t")
        kernels.append((int(begin) * 1e-3, int(end) * 1e-3, short_name(name)))
    return sorted(kernels, key=lambda k: k[1])


def steps_of(kernels):
    """The run of equal steps that the trace ends with: each the shortest run that the last one repeats."""
    names = [k[2] for k in kernels]
    n = next((n for n in range(LAYERS, len(names) // 2) if names[-n:] == names[-2 * n:-n]), None)
    if n is None:
        fail(f"no two equal steps at the end of {len(names)} kernels")
    steps, at = [], len(kernels)
    while at - n > 0 and names[at - n:at] == names[-n:]:
        steps.append((kernels[at - n - 1][1], kernels[at - n:at]))
        at -= n
    return steps


def label(names):
    """A kernel's part in the model, by its place among the products of its layer."""
    products = [i for i, name in enumerate(names) if LINEAR.search(name) and "splitKreduce" not in name]
    per_pass = 4 * LAYERS
    labels = {}
    for order, i in enumerate(products):
        last = order == len(products) - 1
        labels[i] = "lm_head" if last else list(PRODUCTS)[order % per_pass % 4]
    return [labels.get(i, "") for i in range(len(names))]


def work_of(row, args, rows):
    """Bytes that a kernel must read, and operations, by what it computes."""
    if row["part"]:
        out, width = PRODUCTS[row["part"]]
        n = args.batch if row["part"] == "lm_head" or args.phase == "decode" else rows
        return 2 * out * width, 2 * out * width * n
    if ATTENTION.search(row["kernel"]):
        if args.phase == "decode":
            return args.batch * args.context * KV_HEADS * HEAD_DIM * 4, 0
        pairs = args.context * args.context / 2 / (args.context / rows)
        return 0, 4 * HEADS * HEAD_DIM * pairs * args.batch
    return 0, 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--phase", choices=["decode", "prefill"], default="decode")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--chunk", type=int, default=2048, help="rows of a prefill's forward: run.prefill_chunk")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("-s", "--set", action="append", default=[], help="a setting of pig-bench: cache.kind=hybrid")
    parser.add_argument("--pig-bench", default="build/bin/pig-bench")
    parser.add_argument("--read-tbps", type=float, default=4.52, help="memory bandwidth that shares refer to")
    parser.add_argument("--tflops", type=float, default=790, help="rate of bf16 matrix products that shares refer to")
    parser.add_argument("--format", choices=["jsonl", "md"], default="jsonl")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        steps = steps_of(trace(args, folder))
    names = [name for _, _, name in steps[0][1]]
    parts = label(names)
    groups = {}
    for i, (name, part) in enumerate(zip(names, parts)):
        adds, alone = [], []
        for before, step in steps:
            begin, end, _ = step[i]
            previous = step[i - 1][1] if i > 0 else before
            # The first kernel of a step: what the host did in between is not its own.
            adds.append(end - (previous if i > 0 else max(previous, begin)))
            alone.append(end - begin)
        g = groups.setdefault((name, part), {"kernel": name, "part": part, "calls": 0, "adds": 0.0, "runs": 0.0})
        g["calls"] += 1
        g["adds"] += statistics.median(adds)
        g["runs"] += statistics.median(alone)
    total = sum(g["adds"] for g in groups.values())
    rows = min(args.chunk, args.context)
    records = []
    for g in sorted(groups.values(), key=lambda g: -g["adds"]):
        n_bytes, flops = work_of(g, args, rows)
        us = g["adds"] / g["calls"]
        record = {"phase": args.phase, "batch": args.batch, "context": args.context, "kernel": g["kernel"],
                  "part": g["part"], "calls": g["calls"], "adds_us": round(us, 2),
                  "runs_us": round(g["runs"] / g["calls"], 2), "share": round(g["adds"] / total, 4),
                  "step_us": round(total, 1), "steps": len(steps)}
        if n_bytes and args.phase == "decode":
            tbps = n_bytes / us * 1e-6
            record["tbps"] = round(tbps, 2)
            if tbps <= args.read_tbps:  # faster ones read a cache
                record["of_reads"] = round(tbps / args.read_tbps, 3)
        if flops and args.phase == "prefill":
            record |= {"tflops": round(flops / us * 1e-6, 1), "of_products": round(flops / us * 1e-6 / args.tflops, 3)}
        records.append(record)
    if args.format == "jsonl":
        for record in records:
            print(json.dumps(record))
        return
    print(f"{args.phase}, {args.batch} x {args.context}: {total * 1e-3:.2f} ms, median of {len(steps)}\n")
    print("| kernel | calls | adds, us each | runs, us each | share | of the ceiling |\n|---|---|---|---|---|---|")
    for r in records:
        of = r.get("of_reads", r.get("of_products"))
        rate = f"{r['tbps']} TB/s, " if "tbps" in r else f"{r['tflops']} TFLOP/s, " if "tflops" in r else ""
        print(f"| {r['kernel']} {r['part']} | {r['calls']} | {r['adds_us']} | {r['runs_us']} "
              f"| {100 * r['share']:.1f} % | {rate + (f'{100 * of:.0f} %' if of else '-') if rate else ''} |")


if __name__ == "__main__":
    main()
