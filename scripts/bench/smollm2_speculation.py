#!/usr/bin/env python3
"""Speculation with a trained model on four kinds of text: tokens a step and speed-ups, acceptance measured.

    smollm2_speculation.py --draft draft.gguf --data FOLDER --work FOLDER -o RECORDS
    smollm2_speculation.py --draft draft.gguf --data FOLDER --work FOLDER -o RECORDS --device cuda --batch 64

The model is the file that scripts/get-smollm2.sh names, the draft one that scripts/train-draft.py made. Chat
(mt_bench, first turns), code (human_eval) and gsm8k are chats, which end where the model ends them. Prose is documents
(heldout_documents.txt, divided by lines of U+001E) that go on. FOLDER of --data holds mt_bench/question.jsonl,
human_eval/HumanEval.jsonl, gsm8k/test.jsonl and heldout_documents.txt.
For each text and temperature sequoia-acceptance measures the draft on other prompts. magicdec-bench then decodes
--prompts prompts one by one, plainly and with every draft in turn. The drafts are the small model in a line and in the
best trees of the measured vector, prompt lookup, and the model itself under sparse KV caches. A second run has the
weights in bf16. Its drafts are half of the FFN neurons and a copy of the weights in 4 bits. --batch adds documents of
prose that are decoded together. Needs gguf and numpy.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXTS = ["chat", "code", "gsm8k", "prose"]
CHAT_CONTEXT = 1024
FOLDER = "smollm2-bf16"  # in the work folder
CODE = "Complete this Python function:\n\n```python\n{}```"


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def contents(args, text):
    """All prompts of a text, in an order that mixes their sources."""
    if text == "chat":
        asked = [row["turns"][0] for row in lines_of(args.data / "mt_bench/question.jsonl")]
        return asked[::10] + [q for i, q in enumerate(asked) if i % 10]  # ten questions a category
    if text == "code":
        return [CODE.format(row["prompt"]) for row in lines_of(args.data / "human_eval/HumanEval.jsonl")]
    if text == "gsm8k":
        return [row["question"] for row in lines_of(args.data / "gsm8k/test.jsonl")]
    documents = (args.data / "heldout_documents.txt").read_text(encoding="utf-8").split("\x1e")
    # Pieces of each document in turn, short enough for --context.
    size = 3 * args.context
    pieces = [[d[i:i + size] for i in range(0, len(d) - size + 1, size)] for d in documents]
    rounds = max(map(len, pieces))
    return [p[i] for i in range(rounds) for p in pieces if i < len(p)]


def prompts_of(args, text):
    """Files of prompts to measure, and of others for the acceptance vector."""
    found = contents(args, text)
    if text == "prose":
        rows = [{"prompt": p} for p in found]
        others = [{"prompt": p[:2000]} for p in found[-args.prompts:]]
    else:
        rows = [{"messages": [{"role": "user", "content": p}]} for p in found]
        others = rows[-args.prompts:]
    files = [f"{text}.jsonl", f"{text}-others.jsonl"]
    for name, chosen in zip(files, (rows, others)):
        (args.work / name).write_text("".join(json.dumps(row) + "\n" for row in chosen), encoding="utf-8")
    return files


def linked(args, path):
    """Name of a file in the work folder, where tools run, so that records hold no other paths."""
    path, link = pathlib.Path(path).resolve(), args.work / pathlib.Path(path).name
    if not link.exists():
        link.symlink_to(path)
    return link.name


def run(args, tool, *flags):
    command = [args.bin / tool, "--device", args.device, "--no-progress", "-m", args.model, *flags]
    if args.threads:
        command += ["-t", args.threads]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=sys.stderr, cwd=args.work, text=True)
    if done.returncode not in (0, 8):  # 8: a draft was refused, which its record says
        sys.exit(f"smollm2_speculation.py: error: {' '.join(map(str, command))}: exit status {done.returncode}")
    return done.stdout


def drafts_of(args, is_long):
    small = f"kind: model, path: {args.draft}, weights: {args.draft_weights}"
    if is_long:  # beyond the length that it was trained at
        small += ", cache: {kind: streaming, sinks: 4, recent: 508, reposition: true, prefill: windowed}"
    else:
        small += ", cache: {kind: full}"
    budget = 512 if is_long else 64
    return [f"{{name: small, {small}}}",
            f"{{name: tree, {small}, tree: auto}}",
            "{name: lookup, kind: ngram}",
            f"{{name: streaming, cache: {{kind: streaming}}, budget: {budget}}}",
            f"{{name: snapkv, cache: {{kind: snapkv, snapkv: {{window: 16}}}}, budget: {budget}}}"]


def drafts_of_numbers():
    """Drafts for a target whose weights are numbers, not codes."""
    return [f"{{name: int4, kind: model, path: {FOLDER}, weights: int4, cache: {{kind: full}}}}",
            "{name: griffin, cache: {kind: full}, sparse: {kind: griffin, keep: 0.5}}",
            "{name: cats, cache: {kind: full}, sparse: {kind: cats, keep: 0.5}}"]


def bench(args, temperature, drafts, *flags):
    print(run(args, "magicdec-bench", "-s", f"bench.drafts=[{', '.join(drafts)}]", "-s", f"spec.gamma=[{args.gamma}]",
              "-s", f"sampling.temperature={temperature}", "-s", f"bench.new_tokens={args.tokens}",
              "-s", "bench.predict=no", "--append", "-o", args.records.name, *flags), flush=True)
    shutil.copyfile(args.work / args.records.name, args.records)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin")
    parser.add_argument("--model", help="default: the file of scripts/get-smollm2.sh")
    parser.add_argument("--draft", required=True)
    parser.add_argument("--draft-weights", default="auto", help="auto, or int8 or int4 to quantize it")
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder of prompts and vectors")
    parser.add_argument("-o", dest="records", type=pathlib.Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("-t", "--threads", type=int, default=0)
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=TEXTS)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0, 0.6])
    parser.add_argument("--prompts", type=int, default=10, help="prompts of each text")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens of a prompt, at most")
    parser.add_argument("--context", type=int, default=6144, help="tokens of a document, at most")
    parser.add_argument("--gamma", default="2, 4")
    parser.add_argument("--sizes", default="8, 16, 32", help="nodes of trees")
    parser.add_argument("--levels", default="6")
    parser.add_argument("--batch", type=int, default=0, help="documents that are decoded together; 0: none")
    args = parser.parse_args()
    args.model = args.model or subprocess.run([ROOT / "scripts/get-smollm2.sh"], check=True, capture_output=True,
                                              text=True).stdout.strip()
    args.work.mkdir(parents=True, exist_ok=True)
    args.model, args.draft = linked(args, args.model), linked(args, args.draft)
    args.bin, args.records = args.bin.resolve(), args.records.resolve()
    if not (args.work / FOLDER).exists():
        subprocess.run([sys.executable, ROOT / "scripts/smollm2-folder.py", args.work / args.model, args.work / FOLDER], check=True)
    for text in args.texts:
        prompts, others = prompts_of(args, text)
        is_long = text == "prose"
        size = ["-s", f"run.context={args.context if is_long else CHAT_CONTEXT}"]
        one_by_one = ["-s", f"bench.prompts={prompts}", "-s", "run.batch=1", "-s", f"bench.batches={args.prompts}"]
        for t in args.temperatures:
            vector = f"{text}-{t:g}.json"
            run(args, "sequoia-acceptance", "-s", f"draft.path={args.draft}", "--prompts", others, "-n", args.tokens,
                "-s", f"sampling.temperature={t}", "-s", f"run.batch={args.prompts}", "-o", vector, "--overwrite")
            trees = ["-s", f"accept.path={vector}", "-s", f"tree.sizes=[{args.sizes}]", "-s", f"tree.levels=[{args.levels}]"]
            small, tree, *rest = drafts_of(args, is_long)
            # A windowed prefill serves one policy of a cache.
            for drafts in ([[small, *rest], [tree]] if is_long else [[small, tree, *rest]]):
                bench(args, t, drafts, *size, *one_by_one, *trees)
            bench(args, t, drafts_of_numbers(), *size, *one_by_one, "-m", FOLDER)
    if args.batch:
        document = linked(args, args.data / "heldout_documents.txt")
        drafts = [d for d in drafts_of(args, True) if "tree" not in d and "lookup" not in d]
        for t in args.temperatures:
            bench(args, t, drafts, "-s", f"data.path={document}", "-s", f"run.context={args.context}",
                  "-s", f"run.batch={args.batch}", "-s", "bench.batches=2")


if __name__ == "__main__":
    main()
