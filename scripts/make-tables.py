#!/usr/bin/env python3
"""Writes the tables of pages from result records. A marker in a page describes a table; the script writes the table
between the marker and the next "<!-- end -->". With --check it only compares, and exits with status 1 if a page
differs from its records.

    <!-- table: cpu.jsonl gpu.jsonl
    where phase=decode & batch=1|4
    rows context: {context_tokens:,}
    row peer: if file=gpu & line=3
    column ms a token: {decode_step.p50:.1f} if kv=full
    column gain: {[ms a token] / decode_step.p50:.2f} if kv=sparse
    -->

where   the records that count; & joins conditions, | values. FIELD=- holds where the field is missing,
        FIELD!=VALUE where it has another value
rows    one row for each text that the template gives
row     one row with this label, of the records that meet the conditions
column  a cell for each row: text with {EXPRESSION:FORMAT}, from the one record of the row that meets the conditions

A field is a dotted path (numbers index lists); the prefixes workload, quality, timing, throughput, spec, bench, memory
and recipe.effective may be left out. A|B is the first of two fields that the record has. `file` is the name of the
record's file without its ending, `line` its line from 1 on. An expression is fields, numbers and [columns] of the same
row, joined by *, /, + and -. A function before it takes all records of the cell, and all items of lists: mean, median,
min, max, sum, count, first or last. Two more, low95 and high95, give the 95 % interval of the mean by Student's t."""
import argparse
import itertools
import json
import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "records"
PREFIXES = ["", "workload.", "quality.", "timing.", "throughput.", "spec.", "bench.", "memory.", "recipe.effective."]
# 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom.
STUDENT = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131]


def half_interval(values):
    if not 2 <= len(values) <= len(STUDENT) + 1:
        raise Fault(f"expected 2 to {len(STUDENT) + 1} values for an interval, found {len(values)}")
    return STUDENT[len(values) - 2] * statistics.stdev(values) / len(values) ** 0.5


FUNCTIONS = {"mean": statistics.mean, "median": statistics.median, "min": min, "max": max, "sum": sum, "count": len,
             "first": lambda values: values[0], "last": lambda values: values[-1],
             "low95": lambda values: statistics.mean(values) - half_interval(values),
             "high95": lambda values: statistics.mean(values) + half_interval(values)}
TABLE = re.compile(r"(^<!-- table:(.*?)-->\n)(.*?)(^<!-- end -->)", re.S | re.M)
FACTOR = re.compile(r"\[([^\]]+)\]|([^\s*/]+)|([*/])")


class Fault(Exception):
    pass


def at_path(value, path):
    for key in path.split("."):
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and re.fullmatch(r"-?\d+", key) and -len(value) <= int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


def field(record, name):
    for alternative in name.split("|"):
        for prefix in PREFIXES:
            value = at_path(record, prefix + alternative)
            if value is not None:
                return value
    return None


def meets(record, conditions):
    for name, values, is_wanted in conditions:
        value = field(record, name)
        text = "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
        if (text in values) != is_wanted:
            return False
    return True


def conditions_of(text):
    found = []
    for part in filter(str.strip, text.split("&")):
        name, equals, values = part.partition("=")
        if not equals:
            raise Fault(f"expected FIELD=VALUE, found '{part.strip()}'")
        found.append((name.strip(" !"), [value.strip() for value in values.split("|")], not name.endswith("!")))
    return found


def evaluate(expression, record, columns):
    """A field's value, or a number if the expression has more than one term."""
    total, sign = None, 1
    for term in re.split(r"\s([+-])\s(?![^\[]*\])", expression):
        if term in "+-":
            sign = 1 if term == "+" else -1
            continue
        value, operator = None, "*"
        for column, name, found in FACTOR.findall(term):
            if found:
                operator = found
                continue
            factor = columns.get(column) if column else float(name) if re.fullmatch(r"[\d.]+", name) \
                else field(record, name)
            if factor is None:
                raise Fault(f"expected a value of '{column or name}', found none")
            value = factor if value is None else value * factor if operator == "*" else value / factor
        total = value if total is None else total + sign * value
    return total


def cell(template, records, columns):
    """The text of a cell, and the value of its first expression."""
    found = []

    def one(match):
        expression, _, spec = match[1].rpartition(":") if ":" in match[1] else (match[1], "", "")
        function, _, inner = expression.strip().partition(" ")
        if function in FUNCTIONS:
            values = [evaluate(inner or "line", record, columns) for record in records]
            values = [item for value in values for item in (value if isinstance(value, list) else [value])]
            value = FUNCTIONS[function](values)
        elif not re.search("[a-z]", re.sub(r"\[[^\]]*\]", "", expression)):
            value = evaluate(expression, {}, columns)
        elif len(records) > 1:
            places = ", ".join(f"{r['file']}:{r['line']}" for r in records[:4])
            raise Fault(f"expected one record for {{{match[1]}}}, found {len(records)} ({places})")
        else:
            value = evaluate(expression, records[0], columns)
        found.append(value)
        return format(value, spec)

    text = re.sub(r"\{([^}]*)\}", one, template)
    return text, found[0] if found else None


def table(arguments):
    first, *lines = arguments.strip().splitlines()
    records, where, rows, columns = [], [], [], []
    for name in first.split():
        for number, line in enumerate((RECORDS / name).read_text(encoding="utf-8").splitlines(), 1):
            records.append({**json.loads(line), "file": Path(name).stem, "line": number})
    for line in filter(str.strip, lines):
        command, _, rest = line.strip().partition(" ")
        rest, _, conditions = rest.partition(" if ")
        label, _, template = (part.strip() for part in f"{rest} ".partition(": "))
        if command == "where":
            where += conditions_of(rest)
        elif command in ("row", "rows"):
            label = rest.strip().removesuffix(":") if command == "row" else label
            rows.append((command, label, template, conditions_of(conditions)))
        elif command == "column":
            columns.append((label, template, conditions_of(conditions)))
        else:
            raise Fault(f"expected where, rows, row or column, found '{line.strip()}'")
    records = [record for record in records if meets(record, where)]
    groups, heading = {}, ""
    for command, label, template, conditions in rows:
        for record in (r for r in records if meets(r, conditions)):
            groups.setdefault(cell(template, [record], {})[0] if command == "rows" else label, []).append(record)
        heading = label if command == "rows" else heading
        if command == "row" and label not in groups:
            raise Fault(f"row {label}: expected records, found none")
    if not groups:
        raise Fault("expected records, found none")
    out, filled = [], set()
    for label, group in groups.items():
        texts, values = [], {}
        for name, template, conditions in columns:
            chosen = [record for record in group if meets(record, conditions)]
            try:
                text, values[name] = cell(template, chosen, values) if chosen else ("", None)
            except Fault as fault:
                raise Fault(f"row {label}, column {name}: {fault}") from None
            filled |= {name} if text else set()
            texts.append(text)
        out.append([label, *texts])
    for name, *_ in columns:
        if name not in filled:
            raise Fault(f"column {name}: expected records, found none")
    lines = [[heading, *(name for name, *_ in columns)], ["---", *["---:"] * len(columns)], *out]
    return "".join(re.sub(r"\|  (?=\|)", "| ", f"| {' | '.join(line)} |\n") for line in lines)


def rewritten(page, text):
    """The page with its tables made anew, the places that differ, and tables that cannot be made."""
    differences, faults = [], []

    def one(match):
        place = f"{page}:{text.count(chr(10), 0, match.start()) + 1}"
        try:
            made = table(match[2])
        except (Fault, OSError, ValueError, TypeError) as fault:
            faults.append(f"{place}: {fault}")
            return match[0]
        for new, old in itertools.zip_longest(made.splitlines(), match[3].strip().splitlines(), fillvalue="no line"):
            if new != old:
                differences.append(f"{place}: expected '{new}', found '{old}'")
                break
        return f"{match[1]}\n{made}\n{match[4]}"

    return TABLE.sub(one, text), differences, faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, help="default: README.md, docs/ and records/")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with status 1 if a table differs")
    options = parser.parse_args()
    default = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(RECORDS.glob("*.md"))]
    n_tables, faults = 0, []
    for page in options.pages or default:
        text = page.read_text(encoding="utf-8")
        n_tables += len(TABLE.findall(text))
        if len(re.findall("^<!-- table:", text, re.M)) != len(TABLE.findall(text)):
            faults.append(f"{page}: expected '<!-- end -->' after each table, found fewer")
        shown = page.resolve().relative_to(ROOT) if page.resolve().is_relative_to(ROOT) else page
        new, differences, unmade = rewritten(shown, text)
        faults += unmade + (differences if options.check else [])
        if new != text and not options.check:
            page.write_text(new, encoding="utf-8")
    print(*faults, sep="\n", end="\n" if faults else "")
    hint = ": run scripts/make-tables.py" if faults and options.check else ""
    print(f"{n_tables} tables, {len(faults)} findings{hint}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
