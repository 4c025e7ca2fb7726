#!/usr/bin/env python3
"""Times tandem and its peers by turns on the same files, shapes, prompts and threads. peers.sh starts it."""
import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OF_PHASE = {"prefill": ("prefill", "prompt_tokens"), "decode": ("decode_step", "context_tokens")}


def fail(text):
    sys.exit(f"peers.sh: error: {text}")


def lines_of(command, args):
    """Records that a program prints. One that fails is left out."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=args.work)
    if done.returncode:
        print(f"peers.sh: warning: {' '.join(map(str, command))}: exit status {done.returncode}\n{done.stderr[-2000:]}",
              file=sys.stderr)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def named(line):
    """The measured thing, its value and unit, and the program; None for other lines."""
    if line.get("tool") == "pig-bench":
        work = line["workload"]
        timing, tokens = OF_PHASE[work["phase"]]
        return f"{work['phase']} {work[tokens]}", line["timing"][timing]["p50"], "ms", "tandem"
    if line.get("phase") in ("prefill", "decode_step"):
        program = "llama.cpp" if line["peer"].startswith("llama.cpp") else "transformers"
        return f"{line['phase'].removesuffix('_step')} {line['tokens']}", 1e3 * line["seconds_median"], "ms", program
    if "tflops" in line:
        return f"attention {line['setting']}", line["tflops"], "TFLOP/s", line.get("backend", "tandem")
    if line.get("kind") in ("coded_linear", "torch_linear"):
        code = line.get("format") or {("i4", 128): "int4", ("fp8", 0): "fp8"}.get((line["code"], line["group"]))
        program = "PyTorch" if "format" in line else "tandem"
        return (f"{code} products, {line['rows']} rows", line["ms"], "ms", program) if code else None
    if "tokens_per_s" in line and "ms" in line:
        method = "s2ft" if line["tool"] == "s2ft-train" and not any("lora" in s for s in line["settings"]) else "LoRA"
        program = "tandem" if line["tool"] == "s2ft-train" else "PEFT"
        return f"training step, {method}", line["ms"], "ms", program
    return None


class Group:
    """Programs that measure the same things."""

    def __init__(self, text, commands):
        self.text, self.commands = text, commands


def smollm2(args):
    """The file, and its weights in bf16 as a folder and as a GGUF file."""
    file = pathlib.Path(args.smollm2 or subprocess.run([ROOT / "scripts/get-smollm2.sh"], check=True, capture_output=True,
                                                       text=True).stdout.strip()).resolve()
    folder, gguf = args.work / "smollm2-bf16", args.work / "smollm2-bf16.gguf"
    link = args.work / file.name
    if not link.exists():
        link.symlink_to(file)
    if not folder.exists():
        subprocess.run([args.python, ROOT / "scripts/smollm2-folder.py", file, folder], check=True)
    if not gguf.exists():
        subprocess.run([args.bin / "s2ft-adapter", "-m", folder, "--to", "model", "--weights", "bf16", "-o", gguf], check=True,
                       stdout=subprocess.DEVNULL)
    return link.name, folder.name, gguf.name


def cpu_groups(args):
    def tandem(model, contexts):
        return [args.bin / "pig-bench", "-m", model, "--device", "cpu", "-t", args.threads, "--no-progress", "-q", "--format",
                "jsonl", "-s", "bench.random_kv=true", "-s", "bench.phases=[prefill,decode]", "-s",
                f"bench.min_time={args.seconds}s", "--sweep", f"run.context={','.join(map(str, contexts))}"]

    def llama_cpp(shape, contexts, gguf):
        return [args.python, HERE / "peer_llama_cpp.py", "--shape", shape, "-t", args.threads, "--gguf", gguf, "--runs", 2,
                "--prefill", *contexts, "--context", *contexts]

    def transformers(shape, contexts, *load):
        return [args.python, HERE / "peer_transformers.py", "--shape", shape, "--threads", args.threads, "--runs", 2,
                "--prefill", *contexts, "--context", *contexts, *load]

    short, long = [512], [512] if args.quick else [512, 2048]
    groups = {}
    if {"q4", "bf16"} & set(args.groups):
        file, folder, gguf = smollm2(args)
        groups["q4"] = Group("SmolLM2-135M, Q4_1 file", [
            lambda: tandem(file, short), lambda: llama_cpp("smollm2-135m", short, file)])
        groups["bf16"] = Group("SmolLM2-135M, bf16", [
            lambda: tandem(folder, short), lambda: llama_cpp("smollm2-135m", short, gguf),
            lambda: transformers("smollm2-135m", short, "--load", folder)])
    groups["1b"] = Group("Llama-3.2-1B shape, random weights, bf16", [
        lambda: tandem("synthetic:llama-3.2-1b", long),
        lambda: llama_cpp("llama-3.2-1b", long, "llama-3.2-1b.gguf"), lambda: transformers("llama-3.2-1b", long)])
    return groups


def gpu_groups(args):
    def tandem(model, *flags):
        return [args.bin / "pig-bench", "-m", model, "--device", "cuda", "--no-progress", "-q", "--format", "jsonl", "-s",
                f"bench.min_time={args.seconds}s", *flags]

    def transformers(*flags):
        return [args.python, HERE / "peer_transformers.py", "--device", "cuda", *flags]

    groups = {}
    if "bf16" in args.groups:
        folder = smollm2(args)[1]
        groups["bf16"] = Group("SmolLM2-135M, bf16", [
            lambda: tandem(folder, "-s", "bench.phases=[prefill,decode]", "--sweep", "run.context=512"),
            lambda: transformers("--load", folder, "--prefill", 512, "--context", 512, "--static")])
    groups["8b"] = Group("Llama-3.1-8B shape, random weights, bf16", [
        lambda: tandem("synthetic:llama-3.1-8b", "--phase", "decode", "--sweep", "run.context=1024"),
        lambda: tandem("synthetic:llama-3.1-8b", "--phase", "prefill", "--sweep", "run.context=4096,32768"),
        lambda: transformers("--shape", "llama-3.1-8b", "--prefill", 4096, 32768, "--context", 1024, "--static")])
    groups["attention"] = Group("causal attention, 32/8 heads", [
        lambda: [args.bin / "bench_gpu_attention_prefill"], lambda: [args.python, HERE / "peer_sdpa.py"]])
    groups["products"] = Group("products of the 8B shape's layers", [
        lambda: [args.bin / "bench_gpu_coded_linear"], lambda: [args.python, HERE / "peer_torch_linear.py"]])
    step = [args.python, HERE / "train_step.py", "--s2ft-train", args.bin / "s2ft-train", "--shape", "llama-2-7b"]
    groups["training"] = Group("Llama-2-7B shape, 2 x 1,024 tokens", [
        lambda: [*step, "-s", "train.select.ratios={o: 0.052, d: 0.02}"], lambda: [*step, "-s", "train.method=lora"],
        lambda: [args.python, HERE / "peer_training.py", "--shape", "llama-2-7b", "--method", "lora"]])
    return groups


def measure(group, args, facts):
    """Records of a group: the median of the turns, and each turn's value."""
    found = {}
    for turn in range(args.turns):
        best = {}
        for command in group.commands[::1 if turn % 2 == 0 else -1]:
            for line in lines_of(command(), args):
                if line.get("tool") == "pig-bench" and "cpu" not in facts:
                    host = line["host"]
                    facts |= {"cpu": host["cpu_model"], "cores": host["cores"], "isa": line["cpu_isa"],
                              "git_commit": line["git_commit"] + ("-dirty" if line["git_dirty"] else "")}
                if (what := named(line)) is None or "error" in line:
                    continue
                text, value, unit, program = what
                better = min if unit == "ms" else max  # static or dynamic cache
                version = line.get("peer") or line.get("torch") or ""
                old = best.get((text, program))
                best[text, program] = (value if old is None else better(old[0], value), unit, version)
        for key, (value, unit, version) in best.items():
            found.setdefault(key, (unit, version, []))[2].append(round(value, 4))
    for (text, program), (unit, version, values) in found.items():
        yield {"tool": "peers.sh", "time_utc": f"{datetime.datetime.now(datetime.timezone.utc):%FT%TZ}", **facts,
               "group": group.text, "measured": text, "program": program, "version": version, "unit": unit,
               "value": statistics.median(values), "turns": values}


def table(records):
    programs = ["tandem"] + sorted({r["program"] for r in records} - {"tandem"})
    cells = {}
    for r in records:
        cells.setdefault((r["group"], r["measured"], r["unit"]), {})[r["program"]] = r["value"]
    yield "| | " + " | ".join(programs) + " | best peer over tandem |"
    yield "|---|" + "---:|" * (len(programs) + 1)
    for (group, text, unit), row in cells.items():
        if len(row) < 2 and "tandem" in row and any(r["program"] != "tandem" for r in records if r["group"] == group):
            continue  # measured by tandem only
        others = [value for program, value in row.items() if program != "tandem"]
        ratio = ""
        if others and "tandem" in row:
            ratio = f"{min(others) / row['tandem']:.2f}" if unit == "ms" else f"{row['tandem'] / max(others):.2f}"
        values = " | ".join(f"{row[p]:.4g}" if p in row else "" for p in programs)
        yield f"| {group}, {text}, {unit} | {values} | {ratio} |"


def main():
    parser = argparse.ArgumentParser(prog="peers.sh", description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--groups", nargs="+", metavar="GROUP", default=["q4", "bf16", "1b", "8b", "attention", "products", "training"],
                        help="q4, bf16, 1b; on a GPU bf16, 8b, attention, products, training [default all]")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3, help="turns of all programs [default 3; on a GPU 1]")
    parser.add_argument("--seconds", type=float, default=3, help="measured time of a phase of tandem in a turn")
    parser.add_argument("--quick", action="store_true", help="one turn, one second, one length")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin")
    parser.add_argument("--smollm2", metavar="FILE", help="default: the file of scripts/get-smollm2.sh")
    parser.add_argument("--work", type=pathlib.Path, help="folder of models [default: models in TANDEM_PEERS]")
    parser.add_argument("-o", dest="output", type=pathlib.Path, help="records, one for each program and thing measured")
    parser.add_argument("--from", dest="source", type=pathlib.Path, help="print the table of these records only")
    args = parser.parse_args()
    if args.source:
        print("\n".join(table([json.loads(line) for line in args.source.read_text().splitlines()])))
        return
    on_gpu = args.device == "cuda"
    if args.quick or on_gpu:
        args.turns = 1
    if args.quick:
        args.seconds = 1
    peers = os.environ.get("TANDEM_PEERS")
    args.python = pathlib.Path(peers) / "bin/python" if peers else sys.executable
    args.work = (args.work or pathlib.Path(peers or ".") / "models").resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    args.bin, output = args.bin.resolve(), args.output and args.output.resolve()
    if output and output.exists():
        fail(f"{output} exists")
    groups = (gpu_groups if on_gpu else cpu_groups)(args)
    records, facts = [], {"device": args.device, **({} if on_gpu else {"threads": args.threads})}
    for name in args.groups:
        for record in measure(groups[name], args, facts) if name in groups else []:
            records.append(record)
            if output:
                with output.open("a") as file:
                    file.write(json.dumps(record) + "\n")
    print("\n".join(table(records)))


if __name__ == "__main__":
    main()
