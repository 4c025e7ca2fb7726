#!/usr/bin/env python3
"""Checks the sheets "The life of ..." of docs/notes/call-paths.md against the sources.

    scripts/check-sheets.py [PAGE]

A row of their tables names functions on the left and files on the right. Each function must stand
in one of the row's files, each type anywhere in lib, each file must exist; and the numbers of files
that the page gives for a token on the CPU and on a GPU must be those of the first two tables. Exit
status: 0 as it should be, 1 findings.
"""

import re
import sys
from pathlib import Path

LIB = Path(__file__).resolve().parents[1] / "lib"


def tables_of(page):
    """The rows of each table in the sheets: [[(left, right), ...], ...]."""
    tables = []
    for section in re.split(r"^## ", page, flags=re.M):
        if not section.startswith("The life of "):
            continue
        in_table = False
        for line in section.splitlines():
            if not line.startswith("|"):
                in_table = False
                continue
            if not in_table:
                tables.append([])
                in_table = True
            left, right = line.strip("|").split(" | ") if " | " in line else ("", "")
            if right and right.strip() != "where":
                tables[-1].append((left, right))
    return tables


def source_of(name):
    """A file and its header."""
    path = LIB / name
    header = path.with_suffix(".h")
    return path.read_text() + (header.read_text() if header.is_file() else "")


def check_row(left, right, all_sources):
    findings, sources = [], ""
    for name in re.findall(r"`([^`]+)`", right):
        if (LIB / name).is_file():
            sources += source_of(name)
        else:
            findings.append(f"{name}: no such file")
    for name in re.findall(r"`([^`]+)`", left):
        function = name.split("::")[-1]
        if not re.fullmatch(r"[A-Za-z_]+", function):
            continue  # a setting
        if function[0].isupper() or "::" not in name and not re.search(rf"\b{function}\(", all_sources):
            if not re.search(rf"\b{function}\b", all_sources):
                findings.append(f"`{name}`: not in lib")
        elif not re.search(rf"\b{function}\(", sources):
            findings.append(f"`{name}`: not in {right.strip()}")
        for owner in name.split("::")[:-1]:
            if not re.search(rf"\b{owner}\b", all_sources):
                findings.append(f"`{name}`: {owner} is not in lib")
    return findings


def main():
    page = Path(sys.argv[1] if len(sys.argv) > 1 else LIB.parent / "docs/notes/call-paths.md").read_text()
    all_sources = "".join(p.read_text() for p in sorted(LIB.rglob("*")) if p.suffix in (".h", ".cpp"))
    tables = tables_of(page)
    if len(tables) != 4:
        sys.exit(f"{len(tables)} tables in the sheets, expected 4")
    findings = [f for table in tables for row in table for f in check_row(*row, all_sources)]
    stated = re.search(r"(\d+) on the CPU, (\d+) on a GPU", page)
    for table, number in zip(tables, stated.groups() if stated else ("?", "?")):
        files = {f for _, right in table for f in re.findall(r"`([^`]+)`", right)}
        if str(len(files)) != number:
            findings.append(f"{len(files)} files in a table, the page says {number}")
    print(*findings, f"{sum(map(len, tables))} rows, {len(findings)} findings", sep="\n")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
