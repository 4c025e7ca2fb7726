#!/usr/bin/env python3
"""Writes tests/data/models and tests/data/golden from an independent implementation.

    python3 -m venv VENV && VENV/bin/pip install -r scripts/golden/requirements.txt
    VENV/bin/python scripts/golden/make_golden.py [--only SMALL_MODEL...]

Needed only to change the golden data: tests read what is committed and never run Python.
"""

import argparse
import hashlib
import json
import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path

import small_models
import tiny_models

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ["numpy", "safetensors", "tokenizers", "torch", "transformers"]
FILE_LIMIT, TOTAL_LIMIT = 1 << 20, 20 << 20


def write_json(path, content):
    """A list of cases, or a map that holds one, gets one line a case, so that diffs stay readable."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def text(value):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def lines(cases):
        return "[\n" + ",\n".join(map(text, cases)) + "\n]"

    if isinstance(content, list):
        path.write_text(lines(content) + "\n")
    else:
        parts = [f"{text(k)}:{lines(v) if k == 'cases' else text(v)}" for k, v in content.items()]
        path.write_text("{" + ",\n".join(parts) + "}\n")


def manifest(data, seed, only):
    """Provenance and a SHA-256 of every generated file and of every file read. Models that were written
    on their own have their own versions."""
    def entry(path):
        return {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}

    made = sorted(p for folder in ("golden/small", "golden/tiny", "models")
                  for p in (data / folder).rglob("*") if p.is_file())
    read = sorted(p for folder in ("demo", *(f"models/{m}" for m in tiny_models.MODELS))
                  for p in (ROOT / "recipes" / folder).iterdir() if p.is_file())
    files = {str(p.relative_to(data)): entry(p) for p in made}
    for name, facts in files.items():
        if facts["bytes"] > FILE_LIMIT:
            raise SystemExit(f"{name} has {facts['bytes']} bytes, the limit is {FILE_LIMIT}")
    if sum(facts["bytes"] for facts in files.values()) > TOTAL_LIMIT:
        raise SystemExit(f"the golden data exceed {TOTAL_LIMIT} bytes in total")
    versions = {"python": platform.python_version()} | {
        name: metadata.version(name) for name in LIBRARIES}
    old = json.loads((data / "golden" / "manifest.json").read_text()) if only else {}
    return {
        "generator": "scripts/golden/make_golden.py",
        "arguments": {"seed": seed},
        "versions": old.get("versions", versions),
        "versions_of": old.get("versions_of", {}) | dict.fromkeys(only or [], versions),
        "inputs": old.get("inputs", {str(p.relative_to(ROOT)): entry(p) for p in read}),
        "files": files,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT / "tests" / "data", help="output folder")
    parser.add_argument("--seed", type=int, default=20, help="of the random weights and ids")
    parser.add_argument("--only", nargs="+", metavar="SMALL_MODEL", choices=small_models.MODELS,
                        help="write these alone and leave all else as it is: on another processor the "
                             "last digits of all floats would change")
    args = parser.parse_args()
    models, golden, recipes = args.data / "models", args.data / "golden", ROOT / "recipes"
    names = args.only or small_models.MODELS
    # Families of other generators stay (tests/data/golden/README.md).
    for old in [models / name for name in names] + ([] if args.only else [golden / "tiny"]):
        shutil.rmtree(old, ignore_errors=True)
    for name, content in small_models.build(models, args.seed, names).items():
        write_json(golden / "small" / name, content)
    if not args.only:
        for name, content in tiny_models.build(recipes / "models", recipes / "demo").items():
            write_json(golden / "tiny" / name, content)
    path = args.data / "golden" / "manifest.json"
    path.write_text(json.dumps(manifest(args.data, args.seed, args.only), indent=1) + "\n")
    print(f"{path}: {len(json.loads(path.read_text())['files'])} files", file=sys.stderr)


if __name__ == "__main__":
    main()
