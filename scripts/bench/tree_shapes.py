#!/usr/bin/env python3
"""Compares trees searched by replay with those of the dynamic programme, on texts that neither search has seen.

    tree_shapes.py --bin build/bin --searched a.jsonl --unseen b.jsonl --work out > shapes.jsonl

At each temperature: measures the pair's acceptance by depth on the searched prompts, records rounds of a large tree there, and for every size
takes the dynamic programme's tree of the vector and the tree (and the chain) that replay finds for traversal. Rounds of the union of all these
trees then write the texts of the unseen prompts on the CPU, and every tree is replayed on them. Sizes of --alone also write separate texts, tree by tree.
Tokens a round are means over rounds of their expectation over the coins, the bonus token included; intervals are of 95 %, paired by text.
Files in --work are used again.
"""
import argparse
import array
import json
import math
import pathlib
import struct
import subprocess
import sys

HALF_WIDTH = 1.96


def run(args, tool, *flags):
    command = [str(pathlib.Path(args.bin) / tool), "--no-progress", *map(str, flags)]
    if tool == "sequoia-acceptance":
        command += ["--device", "cpu", "-t", str(args.threads), "-n", str(args.tokens)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"tree_shapes.py: error: {' '.join(command)}\n{done.stderr}")
    return done.stdout


def tensors(path):
    raw = path.read_bytes()
    begin = 8 + struct.unpack("<Q", raw[:8])[0]
    found = {}
    for name, entry in json.loads(raw[8:begin]).items():
        if name == "__metadata__":
            continue
        values = array.array("f" if entry["dtype"] == "F32" else "i")
        values.frombytes(raw[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]])
        found[name] = values
    return found


def nodes_of(n_children):
    """The nodes of a tree, breadth first, as paths of child indexes."""
    nodes = [()]
    for v, count in enumerate(n_children):
        nodes += [nodes[v] + (k,) for k in range(count)]
    return nodes


def union(trees):
    """Numbers of children of the smallest tree that has all of these as parts."""
    nodes = set().union(*(nodes_of(tree) for tree in trees))
    order, counts = [()], []
    for node in order:
        children = sorted(child for child in nodes if len(child) == len(node) + 1 and child[:-1] == node)
        counts.append(len(children))
        order += children
    return counts


def tokens_by_text(path, rule, shape):
    """Expected tokens and rounds of each text, of a part of the recorded tree."""
    t = tensors(path)
    all_nodes, n = nodes_of(t["branch_counts"]), len(t["text"])
    at = {node: v for v, node in enumerate(all_nodes)}
    part = nodes_of(shape)
    count = {at[node]: k for node, k in zip(part, shape)}
    first = {at[node]: at[node + (0,)] for node, k in zip(part, shape) if k}
    found = {}
    for r, text in enumerate(t["text"]):
        if rule == "sequoia":
            path_to, tokens = {0: 1.0}, 1.0
            for node in part[1:]:
                v = at[node]
                path_to[v] = path_to[at[node[:-1]]] * t["take"][v * n + r]
                tokens += path_to[v]
        else:
            state = [1.0, 1.0]  # that no path has ended; tokens

            def visit(v):
                k = count[v]
                for i in range(k):
                    visit(first[v] + i)
                if v > 0:
                    ends = t["rest"][(first[v] + k - 1) * n + r] if k else t["reach"][v * n + r]
                    state[1] += len(all_nodes[v]) * state[0] * ends
                    state[0] *= 1 - ends

            visit(0)
            tokens = state[1]
        sums = found.setdefault(text, [0.0, 0])
        sums[0] += tokens
        sums[1] += 1
    return found


def mean(texts):
    return sum(s[0] for s in texts.values()) / sum(s[1] for s in texts.values())


def gain(one, other):
    """Tokens a round of `one` over those of `other`, less 1."""
    means, totals = [mean(one), mean(other)], [sum(s[0] for s in x.values()) for x in (one, other)]
    shared = sorted(set(one) & set(other))
    squares = 0
    for text in shared:
        parts = [(x[text][0] - m * x[text][1]) / total for x, m, total in zip((one, other), means, totals)]
        squares += (parts[0] - parts[1]) ** 2
    ratio = means[0] / means[1]
    n = len(shared)
    return {"gain": ratio - 1, "gain_ci95": HALF_WIDTH * ratio * math.sqrt(squares * n / (n - 1))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--searched", required=True, help="prompts to search by, JSONL")
    parser.add_argument("--unseen", required=True, help="prompts to compare on, JSONL")
    parser.add_argument("--work", required=True, type=pathlib.Path, help="folder of vectors, records and trees")
    parser.add_argument("--recipe", default="sequoia/acceptance-tiny-16m")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.6, 1.0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 16, 64])
    parser.add_argument("--alone", type=int, nargs="*", default=[16])
    parser.add_argument("--longest-chain", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=256, help="nodes of the recorded tree")
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    for temperature in args.temperatures:
        compare(args, temperature)


def measure(args, temperature, name, tree, prompts):
    """Rounds of a tree, recorded."""
    record = args.work / f"{name}-{temperature:g}.rounds"
    if not record.exists():
        run(args, "sequoia-acceptance", "-r", args.recipe, "--prompts", prompts, "-s",
            f"sampling.temperature={temperature}", "-s", "accept.width=32", "-s", f"accept.tree={tree}", "-s",
            "accept.rule=traversal", "-s", f"accept.record={record}")
    return record


def compare(args, temperature):
    def search(name, *flags):
        tree = args.work / f"{name}-{temperature:g}.tree"
        run(args, "sequoia-tree-search", "-o", tree, "--overwrite", *flags)
        return tree

    vector = args.work / f"vector-{temperature:g}.json"
    if not vector.exists():
        run(args, "sequoia-acceptance", "-r", args.recipe, "--prompts", args.searched, "-s",
            f"sampling.temperature={temperature}", "-s", "accept.width=16", "-s", "accept.depths=12", "-o", vector)
    large = search("large", "--accept", vector, "-s", f"tree.sizes=[{args.nodes}]")
    rounds = measure(args, temperature, "recorded", large, args.searched)
    shapes = {}
    for size in args.sizes:
        flag = f"tree.sizes=[{size}]"
        shapes[size, "dynamic programme"] = search(f"dp-{size}", "--accept", vector, "-s", flag)
        shapes[size, "replay"] = search(f"replay-{size}", "--replay", rounds, "-s", flag)
        if size <= args.longest_chain:
            shapes[size, "chain"] = search(f"chain-{size}", "--replay", rounds, "-s", flag, "-s", "tree.max_branch=1")
    counts = {key: json.loads(tree.read_text())["branch_counts"] for key, tree in shapes.items()}
    all_trees = args.work / f"union-{temperature:g}.tree"
    all_trees.write_text(json.dumps({"format": "sequoia-tree/1", "branch_counts": union(counts.values())}))
    together = measure(args, temperature, "unseen", all_trees, args.unseen)
    for key in shapes:
        report(temperature, key, shapes, counts, "rounds of all these trees", lambda _: together)
    for key in shapes:
        if key[0] in args.alone:
            report(temperature, key, shapes, counts, "rounds of this tree", lambda k: measure(
                args, temperature, f"unseen-{k[1].split()[0]}-{k[0]}", shapes[k], args.unseen))


def report(temperature, key, shapes, counts, texts_by, record_of):
    """One line a rule: gains of traversal over Sequoia's rule on the same tree, and over the dynamic programme's tree by the same rule."""
    base = (key[0], "dynamic programme")
    shape = json.loads(shapes[key].read_text())
    record = record_of(key)
    for verify in ["sequoia", "traversal"]:
        texts = tokens_by_text(record, verify, counts[key])
        result = {"model": "tiny-16m", "draft": "tiny-2m", "temperature": temperature, "nodes": key[0], "tree": key[1],
                  "verify": verify, "texts_by": texts_by, "widths": shape["widths"],
                  "texts": len(texts), "rounds": sum(s[1] for s in texts.values()), "tokens_per_round": mean(texts)}
        if verify == "traversal":
            result["over_sequoia"] = gain(texts, tokens_by_text(record, "sequoia", counts[key]))
        if key != base:
            result["over_dynamic_programme"] = gain(texts, tokens_by_text(record_of(base), verify, counts[base]))
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
