#!/usr/bin/env python3
"""Runs the three Sequoia tools on a pair of models as their users would, and compares what comes out.

    sequoia_pair.py --bin build/bin --prompts prompts.jsonl
    sequoia_pair.py --bin build/bin --prompts prompts.jsonl --device cuda --format md

At each temperature: measure the pair's acceptance, one vector for all depths, and for every tree its own rows by depth; search the best
tree of so many nodes; then generate with it, with a chain, with k chains side by side, and with look-up, all of as
many nodes, and without speculation. Tokens a round are measured and predicted. Prints one JSON line a
way to generate, or a table.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile


def fail(text):
    sys.exit(f"sequoia_pair.py: error: {text}")


def run(args, tool, *flags):
    command = [str(pathlib.Path(args.bin) / tool), "--device", args.device, "--no-progress", *map(str, flags)]
    if args.threads:
        command += ["-t", str(args.threads)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def summary(output):
    return [json.loads(line) for line in output.splitlines() if '"event":"summary"' in line][0]


def search(args, accept, out):
    """The best tree for a vector, written to `out`; its expected tokens a round."""
    flags = ["--accept", accept, "-s", f"tree.sizes=[{args.nodes}]", "--format", "json", "-o", out, "--overwrite"]
    command = [str(pathlib.Path(args.bin) / "sequoia-tree-search"), *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        fail(done.stderr)
    return json.loads(done.stdout)["trees"][0]["expected_tokens"]


def write_tree(path, branch_counts, levels):
    path.write_text(json.dumps({"format": "sequoia-tree/1", "size": len(branch_counts), "levels": levels,
                                "branch_counts": branch_counts}))


def expected(branch_counts, accept):
    """Tokens a round of a tree: the sum over nodes of the chance to reach them."""
    document = json.loads(pathlib.Path(accept).read_text())
    rows = document["rows"] if "rows" in document else [document["p"]]
    depth, reach = [0], [1.0]
    for node, n in enumerate(branch_counts):
        row = rows[min(depth[node], len(rows) - 1)]
        for k in range(n):
            depth.append(depth[node] + 1)
            reach.append(reach[node] * (row[k] if k < len(row) else 0.0))
    return sum(reach)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help="folder of the tools")
    parser.add_argument("--prompts", required=True, help="JSONL of {\"prompt\": text}")
    parser.add_argument("--model", default="tiny-16m")
    parser.add_argument("--draft", default="tiny-2m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0, 0.6, 1])
    parser.add_argument("--nodes", type=int, default=17, help="nodes of every tree, 1 + a square")
    parser.add_argument("--batch", type=int, default=1, help="texts that are written together")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of a text")
    parser.add_argument("--format", choices=["jsonl", "md"], default="jsonl")
    args = parser.parse_args()
    k = round((args.nodes - 1) ** 0.5)
    if k * k != args.nodes - 1:
        fail(f"--nodes {args.nodes}: expected one more than a square, such as 17")
    chain = [1] * (args.nodes - 1) + [0]
    side_by_side = [k] + [1] * (k * (k - 1)) + [0] * k
    if args.format == "md":
        print("| temperature | draft | tokens/step | predicted | by depth | tok/s | vs plain |")
        print("|---:|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_tree(folder / "chain.json", chain, args.nodes)
        write_tree(folder / "k.json", side_by_side, k + 1)
        for t in args.temperatures:
            text = ["-m", args.model, "--prompts", args.prompts, "-n", args.tokens, "-s", f"sampling.temperature={t}",
                    "-s", f"run.batch={args.batch}"]
            pair = [*text, "-s", f"draft.path={args.draft}"]
            vector = folder / "all.json"
            run(args, "sequoia-acceptance", *pair, "-o", vector, "--overwrite")
            search(args, vector, folder / "best.json")
            best = json.loads((folder / "best.json").read_text())["branch_counts"]
            plain = summary(run(args, "pig-generate", *text, "--format", "jsonl"))["decode_tok_s"]
            ways = [(f"best tree, {args.nodes} nodes", best, folder / "best.json"),
                    (f"chain of {args.nodes - 1}", chain, folder / "chain.json"),
                    (f"{k} chains of {k}", side_by_side, folder / "k.json")]
            records = [{"way": "plain", "tok_s": plain}]
            for way, counts, tree in ways:
                by_depth = folder / "depth.json"  # as rounds of this very tree find them
                run(args, "sequoia-acceptance", *pair, "-s", f"accept.tree={tree}",
                    "-s", f"accept.width={max(counts)}", "-o", by_depth, "--overwrite")
                s = summary(run(args, "sequoia-generate", *pair, "-s", f"tree.path={tree}", "--format", "jsonl"))
                records.append({"way": way, "tok_s": s["decode_tok_s"],
                                "tokens_per_round": s["spec"]["mean_tokens_per_round"],
                                "predicted": expected(counts, vector),
                                "predicted_by_depth": expected(counts, by_depth)})
            s = summary(run(args, "sequoia-generate", *text, "-s", "spec.draft=ngram", "-s",
                            f"spec.gamma={args.nodes - 1}", "--format", "jsonl"))
            records.append({"way": f"look-up of {args.nodes - 1}", "tok_s": s["decode_tok_s"],
                            "tokens_per_round": s["spec"]["mean_tokens_per_round"]})
            for r in records:
                r = {"model": args.model, "draft": args.draft, "device": s["device"], "temperature": t,
                     "prompts": pathlib.Path(args.prompts).name, "batch": args.batch,
                     "new_tokens": args.tokens, **r,
                     "speedup": r["tok_s"] / plain}
                if args.format == "jsonl":
                    print(json.dumps(r), flush=True)
                    continue
                number = lambda key: f"{r[key]:.2f}" if key in r else ""
                print(f"| {t:g} | {r['way']} | {number('tokens_per_round')} | {number('predicted')} | "
                      f"{number('predicted_by_depth')} | {r['tok_s']:,.0f} | {r['speedup']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
