#!/usr/bin/env python3
"""Times two builds of the tools in one run, turn by turn, and says how much faster the new one is.

    compare_builds.py OLD_BIN NEW_BIN --case gpu [--pairs 5] [--out FILE.jsonl] [CASE_NAME...]

Every pair runs OLD and NEW of a case one after the other, the first of them by turns. A case's
figure is a rate, so that a ratio above 1 speaks for NEW; printed are the mean of the pairs' ratios
with its 95 % interval (Student's t) and both medians. Needs no package. Exit status: 0, 1 a run
failed, 2 command line.
"""
import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile

LLAMA = ["-m", "synthetic:llama-3.1-8b", "-s", "bench.min_time=1s"]
ROUNDS = ["-s", "tree.levels=[10]", "-s", "bench.predict=no"]


def decode(batch, context):
    random = ["-s", "bench.random_kv=true"] if batch * context > 4096 else []
    return ["--phase", "decode", "-s", f"run.batch={batch}", "-s", f"run.context={context}", *random]


CASES = {
    "gpu": {
        "8b-decode-1x1024": ("pig-bench", [*LLAMA, *decode(1, 1024)]),
        "8b-decode-1x98304": ("pig-bench", [*LLAMA, *decode(1, 98304)]),
        "8b-decode-32x8192": ("pig-bench", [*LLAMA, *decode(32, 8192)]),
        "8b-hybrid-8x98304": ("pig-bench", [*LLAMA, *decode(8, 98304), "-s", "cache.kind=hybrid"]),
        "8b-hybrid-shared-8x98304": ("pig-bench", [*LLAMA, *decode(8, 98304), "-s", "cache.kind=hybrid", "-s",
                                                   "cache.hybrid.group=shared"]),
        "8b-prefill-4096": ("pig-bench", [*LLAMA, "--phase", "prefill", "-s", "run.batch=1", "-s",
                                          "run.context=4096"]),
        "tiny-16m-decode-1x64": ("pig-bench", ["-m", "tiny-16m", *decode(1, 64)]),
        "7b-68m-round": ("sequoia-bench", ["-r", "sequoia/bench-llama-2-7b-68m", *ROUNDS,
                                           "-s", "tree.sizes=[64]", "-s", "bench.batches=4"]),
        "13b-offload-round": ("sequoia-bench", ["-r", "sequoia/bench-llama-2-13b-offload", *ROUNDS,
                                                "-s", "tree.sizes=[64]"]),
    },
    "cpu": {
        "1b-decode-1x1024": ("pig-bench", ["-m", "synthetic:llama-3.2-1b", *decode(1, 1024)]),
        "1b-prefill-512": ("pig-bench", ["-m", "synthetic:llama-3.2-1b", "--phase", "prefill", "-s",
                                         "run.batch=1", "-s", "run.context=512"]),
        "tiny-16m-decode-1x64": ("pig-bench", ["-m", "tiny-16m", *decode(1, 64)]),
    },
}
# Two-sided 95 % of Student's t by degrees of freedom.
STUDENT = [math.nan, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23]


def fail(status, text):
    print(f"compare_builds.py: error: {text}", file=sys.stderr)
    sys.exit(status)


def commit_of(folder, tool):
    text = subprocess.run([str(pathlib.Path(folder) / tool), "--version"], capture_output=True, text=True).stdout
    return text.split("git ")[-1].strip(") \n").split()[0] if "git " in text else ""


def rate_of(folder, tool, flags, device):
    """Tokens or rounds a second of one run."""
    with tempfile.TemporaryDirectory() as out:
        path = pathlib.Path(out) / "record.jsonl"
        command = [str(pathlib.Path(folder) / tool), "--device", device, "--no-progress", "-o",
                   str(path), *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            fail(1, f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr}")
        record = json.loads(path.read_text().splitlines()[-1])
    if tool == "sequoia-bench":
        return 1e3 / record["timing"]["round"]["mean"]
    rates = record["throughput"]
    return rates["decode_tok_s"] if "decode_tok_s" in rates else rates["prefill_tok_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("names", nargs="*", help="cases; all without")
    parser.add_argument("--case", choices=CASES, default="gpu", help="which list")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--out", help="file of records, one a case")
    args = parser.parse_intermixed_args()
    if not 2 <= args.pairs <= len(STUDENT):
        fail(2, f"--pairs {args.pairs}: expected 2 to {len(STUDENT)}")
    cases = CASES[args.case]
    unknown = [name for name in args.names if name not in cases]
    if unknown:
        fail(2, f"{unknown[0]}: expected one of {', '.join(cases)}")
    device = "cpu" if args.case == "cpu" else "cuda"
    for name in args.names or cases:
        tool, flags = cases[name]
        rates = {args.old: [], args.new: []}
        for pair in range(args.pairs):
            for folder in [args.old, args.new] if pair % 2 == 0 else [args.new, args.old]:
                rates[folder].append(rate_of(folder, tool, flags, device))
        ratios = [new / old for old, new in zip(rates[args.old], rates[args.new])]
        mean = statistics.mean(ratios)
        half = STUDENT[args.pairs - 1] * statistics.stdev(ratios) / math.sqrt(args.pairs)
        record = {"case": name, "commits": [commit_of(args.old, tool), commit_of(args.new, tool)],
                  "pairs": args.pairs, "ratio": round(mean, 4),
                  "interval": [round(mean - half, 4), round(mean + half, 4)],
                  "old": rates[args.old], "new": rates[args.new], "command": [tool, *flags]}
        print(f"{name:24} {mean:.4f} [{mean - half:.4f}, {mean + half:.4f}]   "
              f"{statistics.median(rates[args.old]):.6g} -> {statistics.median(rates[args.new]):.6g} a second",
              flush=True)
        if args.out:
            with open(args.out, "a") as out:
                out.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
