#!/usr/bin/env python3
"""Compiles the CUDA sources that every GPU runs for all GPUs that tandem supports, and lists registers
and spills. Needs nvcc and a configured build folder, no GPU. Prints a line a kernel that spills and one a
file; exit status 1 if a file does not compile, or a kernel of attention or of products spills.

    cmake --preset cuda-release && scripts/check-ptxas.py build-cuda-release
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ARCHS = ["80", "86", "89", "90a", "100", "120"]
NO_SPILLS = ("kernels/attention/", "kernels/linear/")  # there a spill costs a rate that is promised
ENTRY = re.compile(r"Compiling entry function '([^']+)' for '(sm_\w+)'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


def sources(build):
    """(source, directory, arguments) of the CUDA sources that are not for Hopper alone."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        if not entry["file"].endswith(".cu") or "-DTANDEM_HOPPER_BODY" in words:
            continue
        while "nvcc" not in Path(words[0]).name:  # ccache
            words.pop(0)
        kept, skip = [], False
        for word in words:
            if skip:
                skip = False
            elif word in ("-o", "-MT", "-MF"):
                skip = True
            elif not word.startswith(("--generate-code", "-MD")):
                kept.append(word)
        yield entry["file"], entry["directory"], kept


def compile_for(archs, directory, words):
    """What ptxas says, or an error's text, and whether it compiled."""
    with tempfile.TemporaryDirectory() as folder:
        codes = [f"--generate-code=arch=compute_{a},code=[sm_{a}]" for a in archs]
        run = subprocess.run([*words, *codes, "-Xptxas=-v", "-o", f"{folder}/out.o"], cwd=directory,
                             capture_output=True, text=True)
    return run.stdout + run.stderr, run.returncode == 0


def kernels(text):
    """(kernel, sm, registers, spilled bytes) of what ptxas says."""
    name = sm = None
    spilled = 0
    for line in text.splitlines():
        if match := ENTRY.search(line):
            name, sm, spilled = match.group(1), match.group(2), 0
        elif match := SPILLS.search(line):
            spilled = int(match.group(1)) + int(match.group(2))
        elif (match := REGISTERS.search(line)) and name:
            yield name, sm, int(match.group(1)), spilled
            name = None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="a build folder that was configured with CUDA")
    parser.add_argument("--archs", default=",".join(ARCHS), help="default: %(default)s")
    parser.add_argument("--only", default="", help="sources whose path holds this")
    flags = parser.parse_args()
    if not (flags.build / "compile_commands.json").exists():
        print(f"{flags.build}: not a configured build folder\n  hint: cmake --preset cuda-release", file=sys.stderr)
        return 2
    archs = flags.archs.split(",")
    root, failed, seen = Path(__file__).resolve().parent.parent, 0, 0
    for source, directory, words in sources(flags.build):
        path = str(Path(source).relative_to(root))
        if flags.only not in path:
            continue
        seen += 1
        text, compiled = compile_for(archs, directory, words)
        found = list(kernels(text))
        most = max((registers for _, _, registers, _ in found), default=0)
        spills = [kernel for kernel in found if kernel[3] > 0]
        print(f"{path}: {'' if compiled else 'FAILED, '}{len(found)} kernels on {', '.join(archs)}, "
              f"at most {most} registers, {len(spills)} spill", flush=True)
        for name, sm, registers, spilled in spills:
            print(f"  {sm}, {registers} registers, {spilled} bytes spilled: {name}")
        if not compiled:
            print(text)
        failed += not compiled or (bool(spills) and path.startswith(NO_SPILLS))
    if seen == 0:
        print(f"{flags.build}: no CUDA source matches", file=sys.stderr)
    return 1 if failed or seen == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
