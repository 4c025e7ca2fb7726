"""What the plots of plot.py share: records, and axes."""
import json
import sys

try:
    import matplotlib
except ImportError:
    sys.exit("plot.py: needs matplotlib: apt-get install python3-matplotlib, or PyPI's matplotlib")
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


def legend_outside(figure, where, **how):
    """The legend next to the axes or, with where = "lower center", below them. Debian 12's matplotlib, 3.6,
    has no such place of its own."""
    if tuple(map(int, matplotlib.__version__.split(".")[:2])) >= (3, 7):
        figure.legend(loc=f"outside {where}", frameon=False, **how)
        return
    loc, at = {"right upper": ("upper left", (1, 1)), "right center": ("center left", (1, 0.5)),
               "lower center": ("upper center", (0.5, 0))}[where]
    figure.legend(loc=loc, bbox_to_anchor=at, frameon=False, **how)
    plt.rcParams["savefig.bbox"] = "tight"


def tokens_label(value, _=None):
    return f"{value / 1024:g}Ki" if value >= 1024 and value % 1024 == 0 else f"{value:g}"


def binary_axis(axis, values, label):
    """A logarithmic axis with its ticks at the values, where these are few and apart, so that the first and
    the last have theirs; else at powers of two, eight at most."""
    axis.axes.set_xscale("log", base=2)
    ticks = sorted(set(values))
    if len(ticks) > 8 or any(b < 1.4 * a for a, b in zip(ticks, ticks[1:])):
        low, high = ticks[0], ticks[-1]
        ticks = [2.0 ** int(low).bit_length() / 2]
        while 2 * ticks[-1] <= high * 1.01:
            ticks.append(2 * ticks[-1])
        ticks = ticks[::-(-len(ticks) // 8)]
    axis.set_ticks(ticks)
    axis.set_major_formatter(FuncFormatter(label))
    axis.set_minor_formatter(NullFormatter())
