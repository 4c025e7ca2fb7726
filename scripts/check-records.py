#!/usr/bin/env python3
"""Checks records: each line of a .jsonl file is one JSON object, and no value names a folder of the
machine that measured (an absolute path): it would reproduce nowhere else. Prints one line a finding; exit
status 1 if there is any."""

import argparse
import json
import re
import sys
from pathlib import Path

# Folders below the root that paths begin with; a slash also stands in rates, prompts and LaTeX.
ABSOLUTE = re.compile(r"(?<![\w.~}/-])/(?:tmp|root|home|work|mnt|opt|srv|usr|var|data|private|Users)(?:/|\b)")


def texts(value):
    """All strings of a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts(item)


def findings(line):
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        yield f"expected a JSON object, found {line[:40]!r} ({error.msg})"
        return
    if not isinstance(record, dict):
        yield f"expected a JSON object, found {type(record).__name__}"
    for text in texts(record):
        if match := ABSOLUTE.search(text):
            path = text[match.start() :][:60]
            yield f"'{path}' names a folder of one machine: run the tool where the path can be relative"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    records = Path(__file__).resolve().parents[1] / "records"
    parser.add_argument("folder", nargs="?", type=Path, default=records)
    folder = parser.parse_args().folder
    if not folder.is_dir():
        sys.exit(f"{folder}: expected a folder of records, found none")
    files = sorted(folder.glob("*.jsonl"))
    n_found = n_lines = 0
    for path in files:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            n_lines += 1
            for finding in findings(line):
                print(f"{path.relative_to(folder)}:{number}: {finding}")
                n_found += 1
    print(f"{len(files)} files, {n_lines} records, {n_found} findings")
    return 1 if n_found else 0


if __name__ == "__main__":
    sys.exit(main())
