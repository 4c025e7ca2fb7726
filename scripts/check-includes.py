#!/usr/bin/env python3
"""Checks the layering of the sources: an include may only point down, headers are guarded, files
stay within the hard size limits. Prints one line a finding; exit status 1 if there is any."""

import argparse
import re
import sys
from pathlib import Path

# A module includes itself and modules of smaller rank; equal ranks do not know each other.
RANK = {
    "tandem": -1,  # include/tandem, which is installed
    "base": 0,
    "io": 1, "kernels": 1,
    "recipe": 2, "text": 2, "tensor": 2,
    "ops": 3,
    "kv": 4, "ranks": 4,
    "ffn": 5, "machine": 5,
    "model": 6,
    "decode": 7,
    "adapters": 8, "speculate": 8, "train": 8,
    "eval": 9, "bench": 9,
    "cli": 10,
    "api": 11, "tools": 11,
}
HARD_LIMIT = {".cpp": 800, ".cu": 800, ".inl": 800, ".h": 400, ".cuh": 400}
# The tables of kernels' bodies: the rest of lib calls ops, except modules that measure kernels one by one.
TABLES = {"kernels/cpu_table.h", "kernels/cuda_table.h"}
CALLS_KERNELS = {"kernels", "ops", "machine", "bench"}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')


def module_of(path):
    """lib/<module>/... or kernels/...; None for apps and tests, which may include anything."""
    parts = path.parts
    if parts[0] == "lib" and len(parts) > 2:
        return parts[1]
    return "kernels" if parts[0] == "kernels" else None


def target_of(included, root):
    """Module that an include names, by the include roots lib/ and the repository root."""
    first = Path(included).parts[0]
    if first == "tandem":
        return first
    if first == "kernels" or (root / "lib" / first).is_dir():
        return first
    return None


# Written by CMake into the build folder.
GENERATED = {"tandem_version.h"}


def check_include(module, included, path, root):
    if module not in RANK:
        return f"module '{module}' has no rank: add it to RANK in scripts/check-includes.py"
    if (root / path.parent / included).is_file() and "/" not in included:
        return None  # a private file beside this one
    target = target_of(included, root)
    if target is None and included in GENERATED:
        return None
    if target is None:
        return f'"{included}" is found under neither lib/ nor kernels/: name it from an include root'
    if target == module:
        return None
    if included in TABLES and module not in CALLS_KERNELS:
        return f"{included} is for ops, which calls kernels for the rest of lib: call a function of ops"
    if target not in RANK or RANK[target] >= RANK[module]:
        return (f"{module} (rank {RANK[module]}) includes {included} of {target} "
                f"(rank {RANK.get(target, '?')}): an include may only point down")
    return None


def findings(path, root):
    """(line, text) of everything wrong with one file."""
    lines = (root / path).read_text(encoding="utf-8").splitlines()
    limit = HARD_LIMIT[path.suffix]
    if len(lines) > limit:
        yield len(lines), f"{len(lines)} lines, the hard limit is {limit}: split by responsibility"
    if path.suffix in (".h", ".cuh") and "#pragma once" not in lines:
        yield 1, "header without #pragma once"
    module = module_of(path)
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if match and module:
            problem = check_include(module, match.group(1), path, root)
            if problem:
                yield number, problem


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[1])
    root = parser.parse_args().root
    files = sorted(p.relative_to(root) for folder in ("apps", "include", "lib", "kernels", "tests")
                   for p in (root / folder).rglob("*") if p.suffix in HARD_LIMIT)
    if not files:
        sys.exit(f"{root}: no sources found")
    found = [(path, *finding) for path in files for finding in findings(path, root)]
    for path, number, text in found:
        print(f"{path}:{number}: {text}")
    print(f"{len(files)} files, {len(found)} findings")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
