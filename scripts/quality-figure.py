#!/usr/bin/env python3
"""Draws the figure of README.md: the share of right answers against the share of the KV cache that attention reads,
from records of pig-eval, as SVG for light and dark pages. Needs only Python.

    scripts/quality-figure.py records/sparse-quality-4096.jsonl \
        records/sparse-quality-codes-4096.jsonl -o docs/img/quality-against-keys.svg
"""

import argparse
import html
import json
import math
from pathlib import Path

# Policy -> series, label, and where the label stands: an offset in pixels from the point, or, with "above"
# or "below", from that end of its interval; and its anchor.
POINTS = {
    "full": ("full", "full attention", "below", 12, 18, "end"),
    "hybrid-1": ("hybrid", "1.25 %, at least 64 keys", "above", 8, -8, "end"),
    "hybrid-2": ("hybrid", "2.5 %", "", 12, 5, "start"),
    "topk-2": ("topk", "oracle: exact top 2 %", "below", -8, 4, "end"),
    "quest-16-5": ("quest", "Quest, 5 %", "", 12, 5, "start"),
    "lsh-8-150": ("lsh", "K 8, L 150", "", 12, 5, "start"),
    "lsh-9-120": ("lsh", "K 9, L 120", "", -12, 5, "end"),
    "lsh-8-75": ("lsh", "K 8, L 75", "", 12, 5, "start"),
    "lsh-10-150": ("lsh", "K 10, L 150", "", -12, 5, "end"),
    "stream-68": ("streaming", "sinks and a window of 64", "", 12, -2, "start"),
}
# Colours of Okabe and Ito, which colour-blind readers can tell apart, lighter on dark pages. Shapes
# differ too.
SERIES = {
    "full": ("Full attention", "star", "#000000", "#ffffff"),
    "hybrid": ("Hybrid (ours): top keys by codes + means", "circle", "#d55e00", "#ff9248"),
    "topk": ("Exact top-k (scores every key)", "triangle", "#009e73", "#2ed3a5"),
    "quest": ("Quest", "diamond", "#b0468f", "#e794c9"),
    "lsh": ("MagicPIG (LSH sampling)", "square", "#0072b2", "#5cb8ee"),
    "streaming": ("StreamingLLM", "cross", "#777777", "#aaaaaa"),
}
WIDTH, HEIGHT = 760, 430
LEFT, RIGHT, TOP, BOTTOM = 62, 20, 48, 58
X_MIN, X_MAX = 0.35, 130.0  # percent
Y_MAX = 100.0
TASKS = {"needle1", "needle8", "kv", "vt", "cwe"}
TICKS = [0.5, 1, 2, 5, 10, 20, 50, 100]


def place(keys, right):
    across = math.log(keys / X_MIN) / math.log(X_MAX / X_MIN)
    return (LEFT + across * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - right / Y_MAX * (HEIGHT - TOP - BOTTOM))


def shape(kind, x, y, series):
    """A mark of about 12 pixels."""
    def polygon(points):
        at = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in points)
        return f'<polygon class="m {series}" points="{at}"/>'
    if kind == "circle":
        return f'<circle class="m {series}" cx="{x:.1f}" cy="{y:.1f}" r="6"/>'
    if kind == "square":
        return polygon([(-5, -5), (5, -5), (5, 5), (-5, 5)])
    if kind == "diamond":
        return polygon([(0, -7), (7, 0), (0, 7), (-7, 0)])
    if kind == "triangle":
        return polygon([(0, -7), (6.5, 5), (-6.5, 5)])
    if kind == "cross":
        return (f'<path class="l {series}" d="M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10"/>')
    corners = [(math.radians(36 * i - 90), 9 if i % 2 == 0 else 3.8) for i in range(10)]
    return polygon([(r * math.cos(a), r * math.sin(a)) for a, r in corners])


def text(x, y, words, anchor="start", style=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
            f'{f" class={chr(34)}{style}{chr(34)}" if style else ""}>{html.escape(words)}</text>')


def read(paths):
    """Shares of right answers over TASKS by policy, question prefilled densely, with Wilson intervals of
    95 %; and the length of the texts. If two files have a policy, the later one counts."""
    means, length = {}, 0
    for path in paths:
        answers = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            q = json.loads(line).get("quality", {})
            if (q.get("protocol"), q.get("score")) == ("dense", "forced") and q.get("task") in TASKS:
                answers.setdefault(q["policy"], []).append(q)
                length = q["length"]
        for policy, tasks in answers.items():
            n = sum(q["n_cases"] for q in tasks)
            share = sum(q["correct"] * q["n_cases"] for q in tasks) / n
            z2 = 1.96 ** 2 / n
            middle = (share + z2 / 2) / (1 + z2)
            apart = math.sqrt(z2 * (share * (1 - share) + z2 / 4)) / (1 + z2)
            means[policy] = {"correct": share, "ci95_low": middle - apart,
                             "ci95_high": middle + apart, "reads": tasks[0]["reads"]}
    missing = POINTS.keys() - means.keys()
    if missing:
        raise SystemExit(f"{paths[0]}: no answers of {', '.join(sorted(missing))}")
    return means, length


def style():
    def colours(index):
        marks = "".join(f".m.{name}{{fill:{series[index]}}}.l.{name}{{stroke:{series[index]}}}"
                        for name, series in SERIES.items())
        page, ink, grid = [("#ffffff", "#24292f", "#d8dee4"), ("#0d1117", "#e6edf3", "#30363d")][
            index - 2]
        return (f".page{{fill:{page}}}text{{fill:{ink}}}.grid{{stroke:{grid}}}"
                f".m{{stroke:{page}}}{marks}")
    return ("text{font:13px system-ui,sans-serif}.title{font-size:15px;font-weight:600}"
            ".small{font-size:12px}.grid{stroke-width:1}.l{stroke-width:2.5;fill:none}"
            f"{colours(2)}@media(prefers-color-scheme:dark){{{colours(3)}}}")


def draw(means, length):
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
             f'width="{WIDTH}" height="{HEIGHT}" role="img">',
             "<title>Right answers against the share of the KV cache read</title>", f"<style>{style()}</style>",
             f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
             text(LEFT, 26, f"Questions about a text of {length:,} tokens: right answers, "
                            "mean of five tasks", style="title")]
    for y in range(0, 101, 20):
        _, at = place(1, y)
        parts += [f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>',
                  text(LEFT - 8, at + 4, f"{y} %", "end")]
    for x in TICKS:
        at, bottom = place(x, 0)
        parts += [f'<path class="grid" d="M{at:.1f} {TOP}V{bottom:.1f}"/>',
                  text(at, bottom + 18, f"{x:g} %", "middle")]
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14,
                      "share of the KV cache that a query head reads (logarithmic)",
                      "middle"))
    for policy, (series, label, end, dx, dy, anchor) in POINTS.items():
        q = means[policy]
        keys = 100 * (q["reads"]["selected"] + q["reads"]["fixed"])
        x, y = place(keys, 100 * q["correct"])
        low, high = (place(keys, 100 * q[f"ci95_{end}"])[1] for end in ("low", "high"))
        label_y = {"below": max(low, y + 7), "above": min(high, y - 7)}.get(end, y)
        parts += [f'<path class="l {series}" d="M{x:.1f} {low:.1f}V{high:.1f}"/>',
                  shape(SERIES[series][1], x, y, series),
                  text(x + dx, label_y + dy, label, anchor, "small")]
    for i, (series, (name, kind, *_)) in enumerate(SERIES.items()):
        x, y = WIDTH - 322, 250 + 21 * i
        parts += [shape(kind, x, y, series), text(x + 16, y + 4, name)]
    return "\n".join(parts + ["</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+",
                        help="JSONL files of pig-eval, as from pig/eval-sparse-tiny-16m")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.svg")
    options = parser.parse_args()
    options.output.write_text(draw(*read(options.records)), encoding="utf-8")


if __name__ == "__main__":
    main()
