#!/usr/bin/env python3
"""Says where a step of pig-bench goes on a GPU, kernel by kernel, by Nsight Compute's counters.

    gpu_kernels.py --phase decode --batch 32 --context 8192
    gpu_kernels.py --phase prefill --context 4096 --format md

Counters are slow, so the 8B shape runs with few layers (--layers) and what they take is multiplied to the
model's 32. Kernels are timed one at a time: alone, the ones that overlap in a real step seem longer, and
gaps between them do not show. Prints one JSON line a kernel, or a table.
"""
import argparse
import collections
import csv
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

FULL_LAYERS = 32
SHAPE = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=4096,
             intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
             vocab_size=128256, tie_word_embeddings=False, rms_norm_eps=1e-5, rope_theta=5e5,
             max_position_embeddings=131072, bos_token_id=128000, eos_token_id=128001, hidden_act="silu")
TIME, READ, WRITTEN, TENSOR = (
    "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed")
UNITS = {"nsecond": 1e-3, "ns": 1e-3, "usecond": 1, "us": 1, "msecond": 1e3, "ms": 1e3,
         "byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "%": 1}


def fail(text):
    sys.exit(f"gpu_kernels.py: error: {text}")


def short_name(name):
    """A kernel's name without namespaces and types; of a library's kernel what tells its tile."""
    name = re.sub(r"\([^()]*\)$", "", re.sub(r"^void ", "", name))
    name = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    base = re.split(r"[<(]", name)[0].split("::")[-1]
    return base[:60]


def profile(args, folder):
    """Rows of ncu's CSV, a dict of metrics a kernel, in order of launch."""
    shape = pathlib.Path(folder, "config.json")
    shape.write_text(json.dumps({**SHAPE, "num_hidden_layers": args.layers}))
    command = [args.pig_bench, "--device", "cuda", "-m", f"synthetic:{shape}", "--phase", args.phase,
               "-s", f"run.batch={args.batch}", "-s", f"run.context={args.context}",
               "-s", "bench.min_runs=1", "-s", "bench.min_time=0s", "-s", "bench.new_tokens=4",
               "--no-progress", "-q"]
    if args.phase == "decode":
        command += ["-s", "bench.random_kv=true"]
    env = {**os.environ, "TANDEM_CACHE_DIR": os.environ.get("TANDEM_CACHE_DIR", folder)}
    # Once without counters: it measures which products are the fastest, and keeps that.
    subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)
    ncu = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    run = subprocess.run(
        [ncu, "--clock-control", "none", "--graph-profiling", "node", "--csv", "--page", "raw",
         "--print-units", "base", "--metrics", ",".join([TIME, READ, WRITTEN, TENSOR]), *command],
        env=env, capture_output=True, text=True)
    lines = run.stdout.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if run.returncode != 0 or begin is None:
        fail(f"ncu gave no counters (exit status {run.returncode}):\n" + "\n".join(lines[-15:]) + run.stderr[-2000:])
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[begin:]))))
    units, rows = rows[0], rows[1:]
    return [{"name": short_name(row["Kernel Name"]),
             **{m: float(row[m].replace(",", "")) * UNITS[units[m]]
                for m in (TIME, READ, WRITTEN, TENSOR)}} for row in rows]


def last_step(kernels):
    """A step begins where embedding rows are read."""
    starts = [i for i, k in enumerate(kernels) if k["name"].startswith("embed")]
    if not starts:
        fail("no kernel of a step among " + ", ".join(sorted({k["name"] for k in kernels})))
    return kernels[starts[-1]:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--phase", choices=["decode", "prefill"], default="decode")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--pig-bench", default="build/bin/pig-bench")
    parser.add_argument("--read-tbps", type=float, default=4.52, help="what reads reach, for shares of it")
    parser.add_argument("--format", choices=["jsonl", "md"], default="jsonl")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        kernels = last_step(profile(args, folder))
    groups = collections.OrderedDict()
    for k in kernels:
        # One kernel serves products of several shapes: told apart by what they read, in steps of 20 %.
        size = round(len(f"{int(k[READ]):b}")) if k[READ] > 4e6 else 0
        groups.setdefault((k["name"], size), []).append(k)
    rows, total = [], 0.0
    for (name, _), group in groups.items():
        in_layers = len(group) % args.layers == 0
        calls = len(group) // args.layers * FULL_LAYERS if in_layers else len(group)
        mean = {m: sum(k[m] for k in group) / len(group) for m in (TIME, READ, WRITTEN, TENSOR)}
        total += mean[TIME] * calls
        rows.append({"phase": args.phase, "batch": args.batch, "context": args.context, "kernel": name,
                     "calls": calls, "us": round(mean[TIME], 2),
                     "mbytes": round((mean[READ] + mean[WRITTEN]) * 1e-6, 2),
                     "tbps": round((mean[READ] + mean[WRITTEN]) / mean[TIME] * 1e-6, 2),
                     "tensor_pct": round(mean[TENSOR], 1), "layers_run": args.layers})
    for row in rows:
        row["share"] = round(row["us"] * row["calls"] / total, 4)
    if args.format == "jsonl":
        for row in rows:
            print(json.dumps(row))
        return
    print(f"{args.phase}, {args.batch} x {args.context}: {total * 1e-3:.2f} ms in kernels timed alone\n")
    print("| kernel | calls | us each | share | TB/s | of reads | tensor pipes busy |\n|---|---|---|---|---|---|---|")
    for row in sorted(rows, key=lambda r: -r["share"]):
        print(f"| {row['kernel']} | {row['calls']} | {row['us']} | {100 * row['share']:.1f} % | {row['tbps']} "
              f"| {100 * row['tbps'] / args.read_tbps:.0f} % | {row['tensor_pct']} % |")


if __name__ == "__main__":
    main()
