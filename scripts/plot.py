#!/usr/bin/env python3
"""Draws results.

    plot.py quality FILE... -o out.svg   accuracy against bytes a decode step reads, a panel a task
    plot.py speed FILE... -o out.svg     decode time per token against context, a panel a batch size
    plot.py places FILE... -o out.svg    tokens a second against context, of keys in the memory of
                                         the GPU (filled) and of the host
    plot.py speedup, pareto, acceptance, prediction FILE... -o out.svg
                                         speed-up of speculation by batch and context; throughput
                                         against latency; acceptance by position and along the
                                         output, or by budget; predicted against
                                         measured
    plot.py nested FILE... -o out.svg    speed-up of rounds within rounds by context, budget, chunk
                                         and gamma2, as far as records differ in them
    plot.py channels FILE... -o out.svg  what some of the FFN's channels leave of quality, alone and
                                         corrected, and what rounds give, against the parameters
                                         that a token uses
    plot.py adapters FILE... -o out.svg  what becomes of two tasks' adapters that serve together
    plot.py output FILE... -o out.svg    acceptance in rounds along the output, by draft
    plot.py loss RUN... -o out.svg       loss and validation of runs of s2ft-train: each step thin,
                                         smoothed thick

FILE: records of pig-eval, of pig-bench, or (plots of speculation) of magicdec-bench and
sequoia-bench, as --format jsonl prints them; of benchmarks also what -o writes. Acceptance by
budget, and in rounds along the output, is drawn from records of magicdec-acceptance; of adapters, from those of many-tasks.py. RUN: the
folder of a run, or its metrics.jsonl. The ending of OUT chooses the format: svg, pdf, png. Needs
matplotlib: python3 -m pip install matplotlib
"""
import argparse

import plot_adapters
import plot_channels
import plot_loss
import plot_nested
import plot_rounds
from plot_common import FuncFormatter, binary_axis, chosen, fail, legend_outside, plt, read_records, tokens_label

MEAN = "mean"
TASKS = ["needle1", "needle8", "kv", "vt", "cwe"]
# Families differ in marker, line and lightness too: prints without colour stay readable. The
# colours are those of Okabe and Ito.
STYLES = {
    "full": dict(color="#000000", marker="*", linestyle="-"),
    "hybrid": dict(color="#D55E00", marker="o", linestyle="-"),
    "lsh": dict(color="#0072B2", marker="s", linestyle="--"),
    "topk": dict(color="#009E73", marker="^", linestyle="-."),
    "oracle_sampling": dict(color="#56B4E9", marker="v", linestyle=":"),
    "quest": dict(color="#CC79A7", marker="D", linestyle=(0, (5, 1, 1, 1, 1, 1))),
    "snapkv": dict(color="#E69F00", marker="p", linestyle=(0, (3, 1, 1, 1))),
    "retrieval": dict(color="#009E73", marker="<", linestyle=(0, (4, 1, 1, 1))),
    "verified": dict(color="#0072B2", marker="h", linestyle=(0, (5, 2))),
    "streaming": dict(color="#999999", marker="X", linestyle=(0, (1, 1))),
}
OTHER = dict(color="#666666", marker="P", linestyle="-")


def style_of(kind):
    return STYLES.get(kind, OTHER)


def in_order(kinds):
    known = [k for k in STYLES if k in kinds]
    return known + sorted(k for k in kinds if k not in STYLES)


def bytes_label(value, _=None):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.3g} {unit}"
        value /= 1024


def family_handle(kind, label=None):
    return plt.Line2D([], [], markersize=6, label=label or kind.replace("_", " "), **style_of(kind))


def draw_task(ax, results, task):
    """One panel: a line a family, through its settings by what they read."""
    # Last drawn lies on top: full attention and what competes with it.
    for kind in reversed(in_order({r["kind"] for r in results})):
        points = sorted((r["reads"]["bytes"], r["correct"], r["ci95_low"], r["ci95_high"])
                        for r in results if r["kind"] == kind)
        x = [p[0] for p in points]
        y = [p[1] for p in points]
        errors = [[max(0, p[1] - p[2]) for p in points], [max(0, p[3] - p[1]) for p in points]]
        _, caps, bars = ax.errorbar(x, y, yerr=errors, markersize=10 if kind == "full" else 6.5,
                                    markeredgecolor="white", markeredgewidth=0.6, linewidth=1.1,
                                    elinewidth=0.7, capsize=2, **style_of(kind))
        for part in (*caps, *bars):
            part.set_alpha(0.5)
        if kind == "full":
            ax.axhline(y[0], color="black", linewidth=0.6, alpha=0.5, zorder=1)
    ax.set_title(task)
    ax.set_ylim(-0.04, 1.04)
    ax.grid(alpha=0.25, linewidth=0.5)


def plot_quality(args):
    quality = [r["quality"] for r in read_records(args.files, "pig-eval")]
    quality = [q for q in quality if "reads" in q and "length" in q]  # not of sets of questions
    if not quality:
        fail("no questions about long texts, or the results do not say what a step reads: they are "
             "of an older pig-eval")
    picks = {name: chosen([q[name] for q in quality], getattr(args, name), name)
             for name in ("length", "protocol", "score")}
    quality = [q for q in quality if all(q[name] == value for name, value in picks.items())]
    present = {q["task"] for q in quality}
    tasks = [t for t in TASKS + [MEAN] if t in present]
    columns = min(3, len(tasks))
    rows = -(-len(tasks) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.5 * columns + 1.8, 2.8 * rows + 0.6),
                                sharex=True, sharey=True, squeeze=False, layout="constrained")
    panels = list(axes.flat)
    for ax, task in zip(panels, tasks):
        draw_task(ax, [q for q in quality if q["task"] == task], task)
    binary_axis(panels[0].xaxis, [q["reads"]["bytes"] for q in quality], bytes_label)
    for ax in panels[len(tasks):]:
        ax.set_visible(False)
    for ax in panels[:len(tasks)]:
        ax.tick_params(axis="x", labelrotation=35, labelsize=8)
    for i, ax in enumerate(panels[:len(tasks)]):
        ax.tick_params(axis="x", labelbottom=i + columns >= len(tasks))
    figure.supxlabel("keys, values and index that a decode step reads", fontsize=10)
    figure.supylabel("answers that are right (95 % interval)", fontsize=10)
    cases = next(q["n_cases"] for q in quality if q["task"] == tasks[0])
    figure.suptitle(f"{picks['length']} tokens, {picks['protocol']} question, "
                    f"{picks['score']} answers, {cases} cases a task", fontsize=11)
    legend_outside(figure, "right upper", handlelength=3.2,
                   handles=[family_handle(k) for k in in_order({q["kind"] for q in quality})])
    figure.savefig(args.output)


def policy_text(cache):
    """What tells a policy from others, in short."""
    kind = cache["kind"]
    own = cache.get({"oracle_sampling": "topk"}.get(kind, kind), {})
    texts = {
        "full": "full",
        "streaming": f"streaming {cache['sinks']}+{cache['recent']}",
        "lsh": f"lsh {own.get('bits')}, {own.get('tables')}, {own.get('min_hits')} hits",
        "topk": f"topk {own.get('ratio')}",
        "oracle_sampling": f"oracle sampling {own.get('ratio')}",
        "quest": f"quest {own.get('page')}, {own.get('ratio')}",
        "snapkv": f"snapkv {own.get('budget')} of {own.get('window')}",
        "verified": f"verified {own.get('budget')}",
        "retrieval": f"retrieval {own.get('budget')} by {own.get('chunk')}",
        "hybrid": f"hybrid {own.get('exact')}"
        + ("" if own.get("tail") in ("means", "none") else f" + {own.get('sample')}")
        + f" {own.get('tail')}",
    }
    return texts.get(kind, kind)


def plot_speed(args):
    series = {}
    for record in read_records(args.files, "pig-bench"):
        timing = record.get("timing", {}).get("decode_step")
        if not timing:
            continue
        work, cache = record["workload"], record["recipe"]["effective"]["cache"]
        batch = work["batch"]
        point = (work["context_tokens"], timing["p50"] / batch, timing["p90"] / batch,
                 timing["min"] / batch)
        line = series.setdefault((record["model"]["name"], batch), {})
        line.setdefault((cache["kind"], policy_text(cache)), []).append(point)
    if not series:
        fail("no decode times among the records")
    keys = sorted(series)
    figure, axes = plt.subplots(1, len(keys), figsize=(3.6 * len(keys) + 2.6, 3.6), sharey=True,
                                squeeze=False, layout="constrained")
    names = sorted({name for lines in series.values() for name in lines},
                   key=lambda name: (in_order({k for l in series.values() for k, _ in l})
                                     .index(name[0]), name[1]))
    handles = {}
    for ax, key in zip(axes[0], keys):
        model, batch = key
        for kind, text in (name for name in names if name in series[key]):
            points = sorted(series[key][kind, text])
            # Settings of one family: filled markers first, hollow ones after.
            first = next(name for name in names if name[0] == kind) == (kind, text)
            fill = {} if first else dict(markerfacecolor="white")
            handles[kind, text] = ax.errorbar(
                [p[0] for p in points], [p[1] for p in points],
                yerr=[[p[1] - p[3] for p in points], [p[2] - p[1] for p in points]], label=text,
                markersize=5, linewidth=1.1, elinewidth=0.7, capsize=2, **style_of(kind), **fill)
        binary_axis(ax.xaxis, [p[0] for line in series[key].values() for p in line], tokens_label)
        ax.set_title(f"{model}, batch {batch}", fontsize=10)
        ax.set_xlabel("context (tokens)")
        ax.grid(alpha=0.25, linewidth=0.5)
    axes[0][0].set_ylim(bottom=0)
    axes[0][0].set_ylabel("decode time per token (ms)\nmedian step / batch; bars: fastest to p90")
    handles = {name: handles[name] for name in names}
    legend_outside(figure, "right upper", handles=list(handles.values()), handlelength=3.2)
    figure.savefig(args.output)


def place_text(record, cache):
    """A line of the legend for those who do not know the recipe's keys."""
    kind, own = cache["kind"], cache.get(cache["kind"], {})
    policies = {
        "full": "full attention",
        "lsh": f"MagicPIG (lsh), {own.get('tables')} tables of {own.get('bits')} bits",
        "hybrid": f"hybrid, {100 * own.get('exact', 0):g} % of the keys",
    }
    reads = {"cpu": "the CPU reads them", "gpu": "the GPU reads them", "both": "CPU and GPU read them"}
    hosted = record.get("hosted")
    place = f"keys in host memory, {reads[hosted['attend']]}" if hosted else "keys on the GPU"
    return f"{policies.get(kind, policy_text(cache))}; {place}"


def plot_places(args):
    lines, about = {}, set()
    for record in read_records(args.files, "pig-bench"):
        timing = record.get("timing", {}).get("decode_step")
        if not timing:
            continue
        work, cache = record["workload"], record["recipe"]["effective"]["cache"]
        name = (cache["kind"], cache["place"], place_text(record, cache))
        about.add((record["model"]["name"].removeprefix("synthetic:"), work["batch"]))
        lines.setdefault(name, []).append((work["context_tokens"],
                                           1e3 * work["batch"] / timing["p50"]))
    if not lines:
        fail("no decode times among the records")
    figure, ax = plt.subplots(figsize=(6.6, 4.6), layout="constrained")
    order = in_order({kind for kind, _, _ in lines})
    for name in sorted(lines, key=lambda n: (n[1], order.index(n[0]), n[2])):
        kind, place, text = name
        fill = {} if place == "device" else dict(markerfacecolor="white")
        points = sorted(lines[name])
        ax.plot([p[0] for p in points], [p[1] for p in points], label=text, markersize=5,
                linewidth=1.1, **style_of(kind), **fill)
    binary_axis(ax.xaxis, [p[0] for line in lines.values() for p in line], tokens_label)
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_xlabel("context (tokens)")
    ax.set_ylabel("decode, tokens a second")
    ax.set_title("; ".join(f"{model}, batch {batch}" for model, batch in sorted(about)), fontsize=10)
    ax.grid(alpha=0.25, linewidth=0.5)
    legend_outside(figure, "lower center", handlelength=3.2)
    figure.savefig(args.output)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    quality = commands.add_parser("quality", help="accuracy against bytes a decode step reads")
    quality.add_argument("--length", type=int, help="which length, where the results have several")
    quality.add_argument("--protocol", choices=["dense", "sparse"])
    quality.add_argument("--score", choices=["forced", "generated"])
    quality.set_defaults(draw=plot_quality)
    speed = commands.add_parser("speed", help="decode time per token against context")
    speed.set_defaults(draw=plot_speed)
    places = commands.add_parser("places", help="tokens a second of keys on the GPU and the host")
    places.set_defaults(draw=plot_places)
    plot_rounds.add_commands(commands)
    plot_nested.add_commands(commands)
    channels = commands.add_parser("channels", help="drafts by some of the FFN's channels")
    channels.set_defaults(draw=plot_channels.plot_channels)
    adapters = commands.add_parser("adapters", help="two tasks in one model")
    adapters.set_defaults(draw=plot_adapters.plot_adapters)
    plot_loss.add_command(commands)
    for command in commands.choices.values():
        command.add_argument("files", nargs="+", metavar="FILE")
        command.add_argument("-o", "--output", required=True, metavar="OUT")
    args = parser.parse_args()
    plt.rcParams.update({"font.size": 9, "savefig.dpi": 130, "svg.hashsalt": "plot"})
    args.draw(args)


if __name__ == "__main__":
    main()
