"""What the plots of plot.py share: records, and axes."""
import json
import sys

try:
    import matplotlib
except ImportError:
    sys.exit("plot.py: needs matplotlib: python3 -m pip install matplotlib")
matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, NullFormatter


def fail(text):
    sys.exit(f"plot.py: error: {text}")


def read_records(paths, *tools):
    """Records of these tools that hold a result."""
    records = []
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                lines = [line for line in file if line.strip()]
        except OSError as e:
            fail(f"{path}: {e.strerror}")
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                fail(f"{path}:{number}: not a line of JSON")
            schema = record.get("schema") if isinstance(record, dict) else None
            if schema == "tandem.eval/1":
                fail(f"{path}: is a log of cases; "
                     "draw what pig-eval --resume --format jsonl makes of it")
            if schema != "tandem.result/1":
                fail(f"{path}:{number}: not a result record")
            if record.get("tool") in tools and record.get("status") in ("ok", "partial"):
                records.append(record)
    if not records:
        fail(f"no results of {' or '.join(tools)} in {', '.join(paths)}")
    return records


def chosen(values, wanted, name):
    """The one value to draw: the one asked for, or the only one there is."""
    values = sorted(set(values))
    if wanted is None and len(values) == 1:
        return values[0]
    if wanted in values:
        return wanted
    listed = ", ".join(str(v) for v in values)
    fail(f"choose one --{name} of: {listed}" if wanted is None
         else f"no results of --{name} {wanted}; there are: {listed}")


def tokens_label(value, _=None):
    return f"{value / 1024:g}Ki" if value >= 1024 and value % 1024 == 0 else f"{value:g}"


def binary_axis(axis, values, label):
    """A logarithmic axis with its ticks at powers of two, eight at most."""
    low, high = min(values), max(values)
    axis.axes.set_xscale("log", base=2)
    tick = 2.0 ** int(low).bit_length() / 2
    ticks = []
    while tick <= high * 1.01:
        ticks.append(tick)
        tick *= 2
    step = -(-len(ticks) // 8)
    axis.set_ticks(ticks[::step])
    axis.set_major_formatter(FuncFormatter(label))
    axis.set_minor_formatter(NullFormatter())
