#!/usr/bin/env python3
"""Turns files of the Sequoia repository, written by torch.save, into ours. A tree ("growmap", a dict)
becomes sequoia-tree/1; an acceptance vector (a tensor) becomes acceptance-vector/1, for which --layout says
what it holds, since the reference's two measuring programs write different ones: padded = 0, p_1 .. p_W
(fast_test.py); padded_residual = 0, p_1 .. p_W, probability that no child is accepted (test_accept.py).
Needs neither torch nor a GPU, wherever the tensors were saved.

    scripts/import-sequoia-tree.py A100-C4-68m-7b-greedy.pt -o tree.json
    scripts/import-sequoia-tree.py acceptance-rate-vector.pt --layout padded_residual -o accept.json
"""

import argparse
import array
import collections
import json
import math
import pickle
import sys
import zipfile
from pathlib import Path

STORAGES = {"LongStorage": "q", "IntStorage": "i", "FloatStorage": "f", "DoubleStorage": "d"}


class Malformed(Exception):
    pass


def rebuild_tensor(storage, offset, size, stride, *_):
    """The tensor as nested lists."""
    def part(at, dims):
        if not dims:
            return storage[at]
        n, step = dims[0]
        return [part(at + i * step, dims[1:]) for i in range(n)]
    return part(offset, list(zip(size, stride)))


class Reader(pickle.Unpickler):
    """A pickle of lists, dicts, numbers and tensors; any other class is refused, so that no code runs."""

    def __init__(self, archive, folder):
        super().__init__(archive.open(folder + "data.pkl"))
        self.archive, self.folder = archive, folder

    def find_class(self, module, name):
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return rebuild_tensor
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        raise Malformed(f"expected lists, numbers and tensors, found a {module}.{name}")

    def persistent_load(self, saved):
        _, code, key, _device, _count = saved
        numbers = array.array(code)
        numbers.frombytes(self.archive.read(f"{self.folder}data/{key}"))
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers


def load(path):
    try:
        with zipfile.ZipFile(path) as archive:
            inside = [n for n in archive.namelist() if n.endswith("/data.pkl") or n == "data.pkl"]
            if len(inside) != 1:
                raise Malformed("expected a file written by torch.save, found no data.pkl in it")
            return Reader(archive, inside[0][:-len("data.pkl")]).load()
    except zipfile.BadZipFile:
        raise Malformed("expected a file written by torch.save of torch 1.6 or later, found no zip archive")


def expect(found, wanted, what):
    if found != wanted:
        raise Malformed(f"{what} differs from `branches`: expected a map whose nodes are numbered level by level, "
                        "with adjacent children")


def tree_of(growmap):
    """sequoia-tree/1 of a growmap, every member of which must agree with `branches`."""
    missing = {"roots", "branches", "Successors", "mask", "depth", "size"} - growmap.keys()
    if missing:
        raise Malformed(f"the map lacks {', '.join(sorted(missing))}")
    counts = [b for level in growmap["branches"] for b in level]
    size = len(counts)
    parents, positions, depth = [-1], [0], [0]
    for v, n in enumerate(counts):
        if v >= len(parents):
            raise Malformed(f"node {v} has no parent")
        parents += [v] * n
        positions += range(1, n + 1)
        depth += [depth[v] + 1] * n
    expect(len(parents), size, "the number of nodes")
    widths = [depth.count(level) for level in range(max(depth) + 1)]
    starts = [sum(widths[:level]) for level in range(len(widths))]
    expect(growmap["size"], size, "size")
    expect(growmap["depth"], depth, "depth")
    expect(growmap["roots"], [list(range(s, s + w)) for s, w in zip(starts, widths)], "roots")
    children = [[] for _ in range(size)]
    mask = []
    for v, parent in enumerate(parents):
        row = list(mask[parent]) if v else [0] * size
        row[v] = 1
        mask.append(row)
        if v:
            children[parent].append(v)
    expect([list(s) for s in growmap["Successors"]], children, "Successors")
    expect(growmap["mask"], mask, "mask")
    return {"format": "sequoia-tree/1", "size": size, "levels": len(widths), "widths": widths,
            "branch_counts": counts, "parents": parents, "child_positions": positions}


def vector_of(numbers, layout, method):
    """acceptance-vector/1 of a reference tensor."""
    if not numbers or isinstance(numbers[0], list):
        raise Malformed("expected one row of probabilities, found another tensor")
    if numbers[0] != 0:
        raise Malformed(f"expected 0 as the first entry of layout {layout}, found {numbers[0]}")
    out = {"format": "acceptance-vector/1", "method": method}
    if layout == "padded_residual":
        if not math.isclose(sum(numbers), 1, abs_tol=1e-3):
            raise Malformed(f"expected entries of layout {layout} to sum to 1 with the residual, found "
                            f"{sum(numbers):.6g}: is it --layout padded?")
        return {**out, "p": numbers[1:-1], "residual": numbers[-1]}
    return {**out, "p": numbers[1:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--layout", choices=["padded", "padded_residual"],
                        help="of an acceptance vector")
    parser.add_argument("--method", default="sequoia",
                        help="verification that a vector was measured with (default: sequoia)")
    parser.add_argument("--overwrite", action="store_true")
    args = parser.parse_args()
    if args.output.exists() and not args.overwrite:
        parser.error(f"{args.output} already exists: replace it with --overwrite")
    try:
        content = load(args.file)
        if isinstance(content, dict):
            result = tree_of(content)
        elif args.layout is None:
            parser.error(f"{args.file} holds a vector: set --layout to say whether its last entry is the residual")
        else:
            result = vector_of(content, args.layout, args.method)
    except (Malformed, OSError, pickle.UnpicklingError) as problem:
        sys.exit(f"{parser.prog}: error: {args.file}: {problem}")
    args.output.write_text(json.dumps({**result, "source": args.file.name}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
