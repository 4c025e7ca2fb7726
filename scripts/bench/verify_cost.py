#!/usr/bin/env python3
"""What verification costs by each rule, and what speeds are worth: the embedded pair on the CPU.

    verify_cost.py BIN [--repeats 5] [--texts 24] [--tokens 100] [--threads 0] [--out FILE.jsonl]

BIN holds sequoia-generate. Chains of 8 are verified by `sequoia` and by `block`, four chains of four by `sequoia` and by
`traversal`, at temperatures 1 and 0.6, one text after the other; the rules of a shape take turns, so that a change of the
machine's speed falls on both. Prompts are passages of the demo document. Printed are medians over the repeats. Needs no package.
Exit status: 0, 1 a run failed.
"""
import argparse
import json
import pathlib
import statistics
import tempfile

from verify_rules import commit, passages, run

SHAPES = {"1x8": ([1] * 8 + [0], ("sequoia", "block")), "4x4": ([4] + [1] * 12 + [0] * 4, ("sequoia", "traversal"))}


def generate(args, prompts, tree, rule, temperature):
    out = run(args.bin / "sequoia-generate",
              ["-r", "sequoia/tiny-16m", "--device", "cpu", "-t", args.threads, "--prompts", prompts, "-n", args.tokens,
               "-s", "run.batch=1", "-s", f"tree.path={tree}", "-s", f"spec.verify={rule}", "-s",
               f"sampling.temperature={temperature}", "--no-progress", "--format", "jsonl"])
    summary = json.loads(out.splitlines()[-1])
    spec = summary["spec"]
    return {"tok_s": summary["decode_tok_s"], "tokens_per_round": spec["mean_tokens_per_round"],
            "verify_share": spec["verify_s"] / summary["decode_s"], "verify_us_per_round": 1e6 * spec["verify_s"] / spec["rounds"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        prompts = folder / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in passages(args.texts)))
        for shape, (counts, rules) in SHAPES.items():
            tree = folder / f"{shape}.json"
            tree.write_text(json.dumps({"format": "sequoia-tree/1", "branch_counts": counts}))
            for temperature in (1, 0.6):
                runs = {rule: [] for rule in rules}
                for _ in range(args.repeats):
                    for rule in rules:
                        runs[rule].append(generate(args, prompts, tree, rule, temperature))
                for rule in rules:
                    record = {"verify": rule, "shape": shape, "temperature": temperature,
                              **{key: round(statistics.median(r[key] for r in runs[rule]), 4) for key in runs[rule][0]}}
                    for key in ("tok_s", "tokens_per_round"):
                        gains = [mine[key] / base[key] - 1 for mine, base in zip(runs[rule], runs[rules[0]])]
                        record[f"{key}_gain"] = round(statistics.median(gains), 4)
                    record |= {"repeats": args.repeats, "texts": args.texts, "new_tokens": args.tokens, "batch": 1,
                               "target": "tiny-16m", "draft": "tiny-2m", "device": "cpu", "commit": commit()}
                    line = json.dumps(record)
                    print(line, flush=True)
                    if args.out:
                        with args.out.open("a") as out:
                            out.write(line + "\n")


if __name__ == "__main__":
    main()
