#!/usr/bin/env python3
"""What each rule of verification accepts of the same drawn trees: the embedded pair, on the CPU.

    verify_rules.py BIN [--tokens 400] [--prompts 48] [--out FILE.jsonl]

BIN holds sequoia-acceptance and sequoia-tree-search. Prompts are passages of the demo document,
which the target continues. At each temperature the acceptance vector is measured, the best trees of
16 and 64 nodes for it are searched, and rounds of these and of a chain of 8 are verified by
`sequoia` and by `traversal` (`block` for the chain) with the same random numbers. Printed are
tokens a round, the last one included, and the gain with its 95 % interval over texts. Needs no
package. Exit status: 0, 1 a run failed.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAIR = ["-m", "tiny-16m", "-s", "draft.path=tiny-2m", "--device", "cpu", "-t", "1", "--no-progress", "-q"]


def passages(n, words=48):
    text = (ROOT / "recipes/demo/lighthouse-logbook.txt").read_text().split()
    step = (len(text) - words) // n
    return [" ".join(text[i * step:i * step + words]) for i in range(n)]


def run(tool, arguments):
    done = subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{tool} {' '.join(map(str, arguments))}\n{done.stderr}")
    return done.stdout


def commit():
    return subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12"],
                          capture_output=True, text=True).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    records = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        prompts = folder / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": p}) + "\n"
                                   for p in passages(args.prompts)))
        for temperature in (1.0, 0.6):
            def measure(*more):
                out = folder / "out.json"
                run(args.bin / "sequoia-acceptance",
                    [*PAIR, "--prompts", prompts, "-n", args.tokens, "--overwrite", "-o", out,
                     "-s", f"sampling.temperature={temperature}", "-s", "accept.width=16", *more])
                return out
            vector = folder / "vector.json"
            measure().rename(vector)
            trees = {"chain of 8": folder / "chain.json"}
            trees["chain of 8"].write_text(json.dumps(
                {"format": "sequoia-tree/1", "size": 9, "levels": 9,
                 "branch_counts": [1] * 8 + [0]}))
            for size in (16, 64):
                trees[f"tree of {size}"] = folder / f"tree-{size}.json"
                run(args.bin / "sequoia-tree-search",
                    ["--accept", vector, "-s", f"tree.sizes=[{size}]", "--overwrite",
                     "-o", trees[f"tree of {size}"], "-q"])
            for name, path in trees.items():
                rule = "block" if name.startswith("chain") else "traversal"
                found = json.loads(measure("-s", f"accept.tree={path}", "-s",
                                           f"accept.rule={rule}").read_text())
                base, other = found["rules"]
                record = {"tree": name, "temperature": temperature, "rounds": base["rounds"],
                          "texts": args.prompts, "base": base["rule"], "rule": other["rule"],
                          "base_tokens_per_round": base["tokens_per_round"],
                          "tokens_per_round": other["tokens_per_round"], "gain": other["gain"],
                          "gain_ci95": other["gain_ci95"],
                          "accepted_by_position": other["accepted_by_position"],
                          "branch_counts": json.loads(path.read_text())["branch_counts"],
                          "target": found["target"], "draft": found["draft"], "device": "cpu",
                          "commit": commit()}
                records.append(record)
                print(f"T {temperature:g}  {name:11}  {base['rule']} "
                      f"{base['tokens_per_round']:.3f}  {other['rule']:9} "
                      f"{other['tokens_per_round']:.3f}  {100 * other['gain']:+.1f} % "
                      f"+- {100 * other['gain_ci95']:.1f}", flush=True)
    if args.out:
        args.out.write_text("".join(json.dumps(r) + "\n" for r in records))


if __name__ == "__main__":
    main()
