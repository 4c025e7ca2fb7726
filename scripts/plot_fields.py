"""Plot of any two fields of records."""
import json
import re
import statistics

from plot_common import BARS, POINT, bars_of, dodge, grid, legend_outside, log_axis, plt, series_style, title
from plot_flat import short_fields
from plot_records import USAGE, fail, note, read_records


def fields_of(value, path=""):
    """The values of a record by dotted path."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    return {name: leaf for key, inner in value.items()
            for name, leaf in fields_of(inner, f"{path}.{key}" if path else key).items()}


def named_fields(record):
    """The values of a record by dotted path and by short name. A path wins over an equal name."""
    fields = fields_of(record)
    return {**short_fields(fields), **fields}


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def short(value):
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def all_fields(records):
    """The values of each field, in the order of the records."""
    fields = {}
    for record in records:
        for path, value in record.items():
            fields.setdefault(path, []).append(value)
    return fields


def print_fields(records):
    fields = all_fields(records)
    width = max(len(path) for path in fields if len(path) <= 60)
    for path, values in fields.items():
        n = len(dict.fromkeys(map(str, values)))
        print(f"{path:{width}}  {short(values[0])}" + (f"  ({n} values)" if n > 1 else ""))


def is_near(a, b, edits):
    """True if so many insertions, deletions, substitutions and swaps of neighbours turn a into b, or fewer."""
    while a and b and a[0] == b[0]:
        a, b = a[1:], b[1:]
    if not (edits and a and b):
        return len(a) + len(b) <= edits
    return (is_near(a[1:], b, edits - 1) or is_near(a, b[1:], edits - 1) or is_near(a[1:], b[1:], edits - 1)
            or a[:2] == b[1::-1] and is_near(a[2:], b[2:], edits - 1))


def near_fields(name, paths):
    """The fields whose path, or last part of it, `name` misspells; of equal last parts the first."""
    names = {end: path for path in reversed(paths) for end in (path.split(".")[-1], path)}
    for edits in (1, 2)[:(len(name) > 2) + (len(name) > 5)]:  # more turn a short word into most others
        near = [names[end] for end in names if is_near(name, end, edits)]
        if near:
            return list(dict.fromkeys(near))[:5]
    return []


def resolve(flag, name, records, files):
    """The path of a field by its name: a short name, the whole path, or an end of it that no other has. The settings
    of a recipe come after what a record says itself."""
    fields = all_fields(records)
    paths = sorted(fields, key=lambda path: len(set(map(str, fields[path]))) < 2)  # those that vary come first
    ends = [path for path in paths if path == name or path.endswith("." + name)]
    ends = [path for path in ends if path == name] or [p for p in ends if not p.startswith("recipe.")] or ends
    if len(ends) == 1:
        return ends[0]
    every = f"plot.py xy {files[0]} --fields lists all fields"
    if ends:
        fail(flag, f"expected one field, found '{name}' at the end of {', '.join(ends[:6])}",
             f"{flag} {ends[0]}; {every}", USAGE)
    near = ", ".join(near_fields(name, paths))
    fail(flag, f"expected a field of the records, found '{name}'",
         (f"did you mean {near}? " if near else "") + every, USAGE)


def part_text(path, value):
    return f"{path.split('.')[-1]} {value}" if is_number(value) or isinstance(value, bool) else short(value)


def plot_xy(args):
    whole = read_records(args, every=True)
    records = [named_fields(record) for record in whole]
    if args.fields:
        return print_fields(records)
    if not args.x or not args.y:
        fail("xy", "expected --x FIELD and --y FIELD", f"plot.py xy {args.files[0]} --fields lists all fields", USAGE)
    x, y = (resolve(f"--{name}", getattr(args, name), records, args.files) for name in "xy")
    by = [resolve("--by", name, records, args.files) for name in (args.by or "").split(",") if name]
    found = [r for r in records if x in r and y in r]
    if not found:
        fail("xy", f"expected records with both fields, found none with {x} and {y}",
             f"plot.py xy {args.files[0]} --fields lists all fields", USAGE)
    if len(found) < len(records):
        note(f"{len(records) - len(found)} of {len(records)} records lack {x} or {y}")
    for record in found:
        if not is_number(record[y]):
            fail("--y", f"expected a field of numbers, found {y} = {short(record[y])}",
                 f"--x and --by take texts; plot.py xy {args.files[0]} --fields lists all fields", USAGE)
    is_text = not all(is_number(r[x]) for r in found)
    if is_text and "x" in args.log:
        fail("--log", f"expected numbers on the logarithmic axis, found {x} = {short(found[0][x])}",
             "--log y, or no --log", USAGE)
    places = list(dict.fromkeys(short(r[x]) for r in found))  # of texts, in the order of the records
    lines = {}
    for record in found:
        at = places.index(short(record[x])) if is_text else record[x]
        key = tuple(record.get(path) if is_number(record.get(path)) else short(record.get(path, "none")) for path in by)
        if args.families:
            key = tuple(re.sub(r"(-\d+)+$", "", value) if isinstance(value, str) else value for value in key)
        lines.setdefault(key, {}).setdefault(at, []).append(record[y])
    figure, ax = plt.subplots(figsize=(6.8, 4), layout="constrained")
    for i, key in enumerate(sorted(lines, key=lambda k: [(not is_number(v), v if is_number(v) else 0) for v in k])):
        points = [(at, statistics.median(values), min(values), max(values))
                  for at, values in sorted(lines[key].items())]
        style = dict(series_style(i), **({"linestyle": "none"} if is_text else {}))
        data, caps, bars = ax.errorbar(
            [p[0] for p in points], [p[1] for p in points], yerr=bars_of(points), **POINT, **BARS, **style,
            label=", ".join(part_text(path, value) for path, value in zip(by, key)))
        if is_text:  # series stand next to each other
            dodge([data, *caps, *bars], 4 * (i - (len(lines) - 1) / 2))
    if is_text:
        ax.set_xticks(range(len(places)), places, rotation=30 if len(places) > 4 else 0,
                      ha="right" if len(places) > 4 else "center")
    for name, axis, values in (("x", ax.xaxis, [r[x] for r in found]), ("y", ax.yaxis, [r[y] for r in found])):
        if name not in args.log:
            continue
        if min(values) <= 0:
            fail("--log", f"expected numbers above 0 on the logarithmic axis, found {min(values)}",
                 f"leave {name} out of --log", USAGE)
        log_axis(axis, values)
    repeats = any(len(values) > 1 for line in lines.values() for values in line.values())
    ax.set_xlabel(x)
    ax.set_ylabel(y + ("\nmedian; bars: smallest to largest" if repeats else ""))
    grid(ax)
    if by:
        legend_outside(figure, "right upper")
    names = [r["model"]["name"] if isinstance(r.get("model"), dict) else str(r.get("model", "")) for r in whole]
    title(figure, f"{y.split('.')[-1]} against {x.split('.')[-1]}",
          dict.fromkeys([*(r["tool"] for r in whole), *filter(None, names)]), whole)
    return figure


def add_commands(add):
    command = add("xy", plot_xy, "any field against any other, a line for each value of a third",
                  "records of a tool, complete or of --format flat, or a log of cases of pig-eval")
    command.add_argument("--x", metavar="FIELD", help="field of the x axis: a name of --format csv and flat "
                         "such as tok_s, a dotted path such as throughput.decode_tok_s, or its end where that is "
                         "unambiguous")
    command.add_argument("--y", metavar="FIELD", help="field of the y axis, a number")
    command.add_argument("--by", metavar="FIELD,...", help="fields whose values make the lines")
    command.add_argument("--families", action="store_true",
                         help="join values of --by that differ only in numbers at the end, such as topk-2 and topk-5")
    command.add_argument("--log", choices=["x", "y", "xy"], default="", help="logarithmic axes")
    command.add_argument("--fields", action="store_true", help="list all fields with an example, draw nothing")
