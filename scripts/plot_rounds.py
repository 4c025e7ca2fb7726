"""Plots of magicdec-bench and sequoia-bench: what speculation gains, and what it is made of."""
import math
import sys
from collections import defaultdict

from plot_common import chosen, fail, legend_outside, plt, read_records
from plot_drafts import plot_budgets

# Colours of Okabe and Ito; markers differ too, and lines by context or batch.
DRAFTS = [("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#E69F00", "v"),
          ("#56B4E9", "p"), ("#666666", "P")]
LINES = ["-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1))]
PLAIN = dict(color="#000000", marker="*")
SIMULATED = "acceptance simulated: accepted tokens were drawn by a given probability"


class Way:
    """A record: one way to decode at one point of a sweep."""

    def __init__(self, record):
        work, spec = record["workload"], record.get("spec", {})
        draft = work.get("draft", {})
        self.model, self.device = record["model"]["name"], work.get("gpu", work.get("device", ""))
        self.commit = record.get("git_commit", "unknown")[:12]
        self.temperature, self.batch = work["temperature"], work["batch"]
        self.context, self.new_tokens = work["context_tokens"], work["new_tokens"]
        self.draft, self.budget = draft.get("name", "plain"), draft.get("budget_tokens")
        tree = spec.get("tree")
        gamma = work.get("gamma", 0)
        is_chosen = gamma == "auto"  # by every round
        self.depth = tree["depth"] if tree else round(spec["mean_gamma"]) if is_chosen else gamma
        self.shape = (f"tree of {tree['size']} nodes" if tree
                      else f"$\\gamma$ auto, {spec['mean_gamma']:.1f} on average" if is_chosen
                      else f"$\\gamma$ {gamma}")
        self.nodes = tree["size"] if tree else self.depth + 1
        self.is_tree, self.is_plain = tree is not None, "accepted_hist" not in spec
        self.simulated = work.get("simulated_acceptance", False)
        self.alpha = spec.get("alpha_simulated")
        self.spec, self.record = spec, record

    def speedup(self):
        return self.spec["speedup_measured"]


def ways_of(args):
    """The ways of one model at one temperature; those of drafts by name."""
    ways = [Way(r) for r in read_records(args.files, "magicdec-bench", "sequoia-bench")
            if r.get("workload", {}).get("phase", "").startswith(("plain", "rounds "))]
    if not ways:
        fail("no measured rounds among the records (predictions alone are not drawn)")
    for name in ("model", "temperature"):
        value = chosen([getattr(w, name) for w in ways], getattr(args, name), name)
        ways = [w for w in ways if getattr(w, name) == value]
    budgets = defaultdict(set)
    for way in ways:
        budgets[way.draft].add(way.budget)
    for way in ways:  # a sweep of bench.budget leaves the names as they are
        if len(budgets[way.draft]) > 1:
            way.draft += f", {way.budget} keys"
    if all(w.is_plain for w in ways):
        fail("only plain decoding among the records")
    return ways


def best_of(ways):
    """Of each draft at each point the shape that gains most."""
    best = {}
    for way in ways:
        key = (way.draft, way.batch, way.context)
        if not way.is_plain and (key not in best or way.speedup() > best[key].speedup()):
            best[key] = way
    return list(best.values())


def grouped(ways, *names):
    groups = defaultdict(list)
    for way in ways:
        groups[tuple(getattr(way, name) for name in names)].append(way)
    return dict(sorted(groups.items(), key=str))


def drafts_of(ways):
    """Styles by draft, in the order of the records."""
    names = list(dict.fromkeys(w.draft for w in ways if not w.is_plain))
    return {name: dict(zip(("color", "marker"), DRAFTS[i % len(DRAFTS)]))
            for i, name in enumerate(names)}


def value_axis(ax, values, label):
    """A logarithmic axis whose ticks are the measured values, eight at most."""
    values = sorted(set(values))
    ax.set_xscale("log", base=2)
    ax.set_xticks(values[::-(-len(values) // 8)], minor=False)
    ax.set_xticks([], minor=True)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set_xlim(values[0] / 2.1, values[-1] * 2.1)
    ax.set_xlabel(label)


def handle(style, label, linestyle="-"):
    return plt.Line2D([], [], markersize=7, linestyle=linestyle, label=label, **style)


def finish(figure, ways, handles, args, title):
    """Title, legend and what the figure is made from."""
    first, facts = ways[0], []
    for name, text in (("context", "{} tokens of context"), ("batch", "batch {}"),
                       ("new_tokens", "{} new tokens")):
        values = {getattr(w, name) for w in ways}
        facts += [text.format(v) for v in values if len(values) == 1]
    facts = [first.model, first.device, *facts, f"temperature {first.temperature:g}"]
    figure.suptitle(f"{title}\n{', '.join(facts)}", fontsize=10, x=0.01, ha="left")
    legend_outside(figure, "right center", handles=handles, handlelength=3)
    notes = ["commit " + ", ".join(sorted({w.commit for w in ways}))]
    if any(w.simulated for w in ways):
        notes.insert(0, SIMULATED)
    figure.supxlabel("; ".join(notes), fontsize=7.5, color="#444444", x=0.01, ha="left")
    figure.savefig(args.output)


def draft_handles(ways, styles):
    labels = {}
    for name in styles:
        simulated = [w for w in ways if w.draft == name and w.simulated]
        alphas = ", ".join(f"{a:g}" for a in sorted({w.alpha for w in simulated if w.alpha}))
        labels[name] = name + (", simulated" if simulated else "") + (
            f" $\\alpha$ {alphas}" if alphas else "")
    return [handle(style, labels[name], linestyle="") for name, style in styles.items()]


def number_in(ax, marker, x, y, text):
    """A number in the middle of a marker's area."""
    lower = {"^": -1.3, "v": 1.3}.get(marker, 0)
    ax.annotate(text, (x, y), xytext=(0, lower), textcoords="offset points", ha="center",
                va="center", fontsize=6.5, color="white", fontweight="bold")


UNITS = {"batch": "batch {}", "context": "{} tokens"}


def draw_speedups(ax, ways, styles, across, along):
    """A line a draft and value of `along`, over `across`; the number in a marker is gamma."""
    lines = sorted({getattr(w, along) for w in ways})
    values = sorted({math.log2(getattr(w, across)) for w in ways})
    gap = min([b - a for a, b in zip(values, values[1:])], default=1)
    step = min(0.3, gap / (len(styles) + 1))  # drafts stand next to each other
    for (name, other), group in grouped(ways, "draft", along).items():
        group.sort(key=lambda w: getattr(w, across))
        shift = 2 ** (step * (list(styles).index(name) - (len(styles) - 1) / 2))
        x = [getattr(w, across) * shift for w in group]
        y = [w.speedup() for w in group]
        low = [max(0, w.speedup() - w.spec.get("speedup_ci95_low", w.speedup())) for w in group]
        high = [max(0, w.spec.get("speedup_ci95_high", w.speedup()) - w.speedup()) for w in group]
        style = LINES[lines.index(other) % len(LINES)]
        ax.errorbar(x, y, yerr=[low, high], linestyle=style, linewidth=1.1, elinewidth=0.9,
                    capsize=3, markersize=12.5 if styles[name]["marker"] in "^v" else 10.5,
                    markeredgecolor="white", **styles[name])
        for way, at_x, at_y in zip(group, x, y):
            if not way.is_tree:
                number_in(ax, styles[name]["marker"], at_x, at_y, str(way.depth))
        if len(group) == 1 and len(lines) > 1:
            ax.annotate(UNITS[along].format(other), (x[0], y[0]), xytext=(0, -13), ha="center",
                        textcoords="offset points", fontsize=7.5, color="#444444")
    ax.axhline(1, color="black", linewidth=0.8)
    ax.grid(alpha=0.25, linewidth=0.5)
    return [handle(dict(color="#444444"), UNITS[along].format(v), LINES[i % len(LINES)])
            for i, v in enumerate(lines) if len(lines) > 1 and is_line(ways, along, v, across)]


def is_line(ways, along, value, across):
    """Whether one value of `along` was measured at several of `across`."""
    return len({getattr(w, across) for w in ways if getattr(w, along) == value}) > 1


def plot_speedup(args):
    ways = ways_of(args)
    best, styles = best_of(ways), drafts_of(ways)
    panels = []
    for across, along in (("batch", "context"), ("context", "batch")):
        if any(is_line(best, along, getattr(w, along), across) for w in best):
            panels.append((across, along))
    panels = panels or [("batch", "context")]
    figure, axes = plt.subplots(1, len(panels), figsize=(4.6 * len(panels) + 2.6, 4.2), sharey=True,
                                squeeze=False, layout="constrained")
    handles = draft_handles(ways, styles)
    for ax, (across, along), side in zip(axes[0], panels, ("left: ", "right: ")):
        for line in draw_speedups(ax, best, styles, across, along):
            line.set_label((side if len(panels) > 1 else "") + line.get_label())
            handles.append(line)
        value_axis(ax, [getattr(w, across) for w in best],
                   {"batch": "batch (sequences)", "context": "context (tokens)"}[across])
    axes[0][0].set_ylim(0, 1.12 * max(1, *(w.speedup() for w in best)))
    axes[0][0].set_ylabel("speed-up over plain decoding\n"
                          "(95 % interval; in the marker: best $\\gamma$)")
    finish(figure, ways, handles, args, "Speed-up while the whole batch decodes")


def plot_pareto(args):
    ways = ways_of(args)
    context = chosen([w.context for w in ways], args.context, "context")
    ways = [w for w in ways if w.context == context]
    styles = drafts_of(ways)
    figure, ax = plt.subplots(figsize=(7.4, 4.6), layout="constrained")

    def at(way):
        rates = way.record["throughput"]
        return 1e3 / rates["decode_tok_s_user"], rates["decode_tok_s"]

    lines = {"plain": [w for w in ways if w.is_plain]}
    for (name,), group in grouped(best_of(ways), "draft").items():
        lines[name] = group
    for name, group in reversed(lines.items()):
        points = [at(w) for w in sorted(group, key=lambda w: w.batch)]
        ax.plot([p[0] for p in points], [p[1] for p in points], linewidth=1.1,
                markersize=11 if name == "plain" else 7, markeredgecolor="white", label=name,
                **(PLAIN if name == "plain" else styles[name]))
    for way in lines["plain"]:
        group = sorted(at(w) for line in lines.values() for w in line if w.batch == way.batch)
        ax.plot(*zip(*group), color="#999999", linewidth=0.7, zorder=0)
        ax.annotate(f"batch {way.batch}", group[-1], xytext=(16, -16), textcoords="offset points",
                    fontsize=8, color="#444444", ha="center",
                    bbox=dict(facecolor="white", edgecolor="none", alpha=0.8, pad=0.5))
    ax.margins(x=0.15, y=0.1)
    points = [at(w) for line in lines.values() for w in line]
    is_wide = any(max(values) > 4 * min(values) for values in zip(*points))
    for axis, set_scale in ((ax.xaxis, ax.set_xscale), (ax.yaxis, ax.set_yscale)):
        if is_wide:
            set_scale("log")
            axis.set_tick_params(which="both", labelsize=8)
            axis.set_minor_formatter(lambda value, _: f"{value:,g}"
                                     if f"{value:e}"[0] in "235" else "")
        axis.set_major_formatter(lambda value, _: f"{value:,g}")
    ax.set_xlabel("latency: time per token of a sequence while the whole batch decodes (ms)")
    ax.set_ylabel("throughput of the batch (tokens/s)")
    ax.grid(which="both", alpha=0.2, linewidth=0.5)
    handles = [handle(PLAIN, "plain decoding", linestyle=""), *draft_handles(ways, styles)]
    finish(figure, ways, handles, args,
           "Throughput against latency, each draft at its best $\\gamma$")


def largest_of(ways):
    """Of each draft the records of its largest shape."""
    most = {w.draft: max(v.nodes for v in ways if v.draft == w.draft) for w in ways}
    return [w for w in ways if not w.is_plain and w.nodes == most[w.draft]]


def plot_acceptance(args):
    records = read_records(args.files, "magicdec-acceptance", "magicdec-bench", "sequoia-bench")
    of_drafts = [r for r in records if r["tool"] == "magicdec-acceptance"]
    if of_drafts:
        return plot_budgets(of_drafts, args)
    ways = largest_of(ways_of(args))
    context = chosen([w.context for w in ways], args.context, "context")
    ways = [w for w in ways if w.context == context]
    styles = drafts_of(ways)
    has_output = any("by_output" in w.spec for w in ways)
    if not has_output:
        print("plot.py: the records do not say how acceptance changes along the output: they are "
              "of an older version", file=sys.stderr)
    figure, axes = plt.subplots(1, 1 + has_output, figsize=(4.4 * (1 + has_output) + 3, 4),
                                squeeze=False, layout="constrained")
    for (name,), group in grouped(ways, "draft").items():
        hist = [sum(counts) for counts in zip(*(w.spec["accepted_hist"] for w in group))]
        reached = [sum(hist[i:]) / sum(hist) for i in range(1, len(hist))]
        axes[0][0].plot(range(1, len(hist)), reached, markersize=7, markeredgecolor="white",
                        **styles[name])
        if not has_output:
            continue
        emitted, rounds = defaultdict(int), defaultdict(int)
        for part in (p for w in group for p in w.spec.get("by_output", [])):
            emitted[part["from_token"]] += part["emitted"]
            rounds[part["from_token"]] += part["rounds"]
        begin = sorted(rounds)
        axes[0][1].plot([b + group[0].new_tokens / 16 for b in begin],
                        [emitted[b] / rounds[b] for b in begin], markersize=7,
                        markeredgecolor="white", **styles[name])
    axes[0][0].set_ylim(0, 1.03)
    axes[0][0].set_xlabel("position $i$ among the drafted tokens")
    axes[0][0].set_ylabel("rounds that accept at least $i$ tokens (share)")
    axes[0][0].xaxis.set_major_locator(plt.MaxNLocator(integer=True))
    if has_output:
        axes[0][1].set_ylim(bottom=1)
        axes[0][1].set_xlabel("length of the output (tokens)")
        axes[0][1].set_ylabel("tokens a round (the bonus token included)")
    for ax in axes[0]:
        ax.grid(alpha=0.25, linewidth=0.5)
    shapes = {w.draft: w.shape for w in ways}
    handles = draft_handles(ways, styles)
    for line, name in zip(handles, styles):
        line.set_label(f"{line.get_label()}, {shapes[name]}")
    finish(figure, ways, handles, args, "Acceptance, each draft at its largest $\\gamma$")


def plot_prediction(args):
    ways = [w for w in ways_of(args) if not w.is_plain]
    styles = drafts_of(ways)
    figure, ax = plt.subplots(figsize=(7.6, 5), layout="constrained")
    errors, all_values = [], []
    for way in ways:
        for group, filled in (("predicted", True), ("predicted_roofline", False)):
            if group not in way.record:
                continue
            predicted = way.record[group].get("chain_speedup", way.record[group]["speedup"])
            all_values += [predicted, way.speedup()]
            if filled:
                errors.append(abs(predicted / way.speedup() - 1))
            color = styles[way.draft]["color"]
            ax.plot(way.speedup(), predicted, linestyle="", marker=styles[way.draft]["marker"],
                    color=color, markersize=7, markeredgewidth=0.7 if filled else 1.2,
                    markeredgecolor="white" if filled else color,
                    markerfacecolor=color if filled else "none")
    if not all_values:
        fail("no predictions among the records: bench.predict was no, and one gamma alone")
    low, high = min(all_values) * 0.93, max(all_values) * 1.07
    line = [low, high]
    ax.plot(line, line, color="black", linewidth=0.8, zorder=0)
    ax.fill_between(line, [0.92 * v for v in line], [1.08 * v for v in line], color="#999999",
                    alpha=0.2, linewidth=0, zorder=0)
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    ax.set_aspect("equal")
    ax.set_xlabel("measured speed-up over plain decoding")
    ax.set_ylabel("predicted speed-up")
    ax.grid(alpha=0.25, linewidth=0.5)
    handles = draft_handles(ways, styles)
    dot = dict(color="#444444", marker="o")
    if errors and any("predicted_roofline" in w.record for w in ways):
        handles.append(handle(dot, "by measured times of\nother rounds or forwards", ""))
        handles.append(handle(dict(dot, markerfacecolor="none"), "by the roofline alone", ""))
    handles.append(plt.Rectangle((0, 0), 1, 1, color="#999999", alpha=0.3, label="within 8 %"))
    if errors:
        errors.sort()
        ax.set_title(f"by measured times, {len(errors)} ways: median error "
                     f"{100 * errors[len(errors) // 2]:.1f} %, largest {100 * errors[-1]:.1f} %",
                     fontsize=9)
    finish(figure, ways, handles, args, "Predicted against measured")


def add_commands(commands):
    """The kinds of plots that are drawn here."""
    for name, draw, text in (
            ("speedup", plot_speedup, "speed-up against batch and context"),
            ("pareto", plot_pareto, "throughput against latency"),
            ("acceptance", plot_acceptance, "acceptance by position and by output length; of "
             "magicdec-acceptance by budget"),
            ("prediction", plot_prediction, "predicted against measured speed-up")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--model", help="which model, where the records have several")
        command.add_argument("--temperature", type=float)
        command.set_defaults(draw=draw)
        if name in ("pareto", "acceptance"):
            command.add_argument("--context", type=int)
