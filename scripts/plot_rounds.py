"""Plots of magicdec-bench and sequoia-bench: gains of speculation and the parts of a round."""
from collections import defaultdict

from plot_common import (BARS, BLACK, LINES, bars_of, dodge_by, grid, handle, label_point, legend_outside, log_axis,
                         number_label, plt, series_style, title)
from plot_drafts import plot_budgets
from plot_records import chosen, fail, latest, note, point_of, read_records

PLAIN = dict(color=BLACK, marker="*")
SIMULATED = "acceptance simulated: accepted tokens were drawn by a given probability"
APART = 1.05  # largest factor between x and where a marker stands


class Way:
    """A record: one way to decode at one point of a sweep."""

    def __init__(self, record):
        work, spec = record["workload"], record.get("spec", {})
        draft = work.get("draft", {})
        self.model, self.device = record["model"]["name"], work.get("gpu", work.get("device", ""))
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

    def interval(self):
        """The speed-up and the ends of its 95 % interval."""
        y = self.speedup()
        return y, self.spec.get("speedup_ci95_low", y), self.spec.get("speedup_ci95_high", y)


def ways_of(args):
    """The ways of one model at one temperature; those of drafts by name."""
    ways = [Way(r) for r in latest(read_records(args), point_of, "measured points")]
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
        fail(args.command, "expected rounds with a draft, found plain decoding only",
             "the recipe's bench.drafts says what to measure")
    return ways


def best_of(ways):
    """The shape that gains most, of each draft at each point."""
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
    return {name: series_style(i, "color", "marker") for i, name in enumerate(names)}


def value_axis(ax, values, label):
    """A logarithmic axis whose ticks are the measured values, eight at most."""
    values = sorted(set(values))
    ax.set_xscale("log", base=2)
    ax.set_xticks(values[::-(-len(values) // 8)], minor=False)
    ax.set_xticks([], minor=True)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    room = max(1.5, (values[-1] / values[0]) ** 0.12)
    ax.set_xlim(values[0] / room, values[-1] * room)
    ax.set_xlabel(label)


def finish(figure, ways, handles, text):
    """Title, legend and what the figure is made from."""
    first, facts = ways[0], []
    for name, fact in (("context", "{} tokens of context"), ("batch", "batch {}"), ("new_tokens", "{} new tokens")):
        values = {getattr(w, name) for w in ways}
        facts += [fact.format(v) for v in values if len(values) == 1]
    title(figure, text, [first.model, first.device, *facts, f"temperature {first.temperature:g}"],
          [w.record for w in ways], [SIMULATED] if any(w.simulated for w in ways) else [])
    legend_outside(figure, "right center", handles=handles)
    return figure


def draft_handles(ways, styles):
    labels = {}
    for name in styles:
        simulated = [w for w in ways if w.draft == name and w.simulated]
        alphas = ", ".join(f"{a:g}" for a in sorted({w.alpha for w in simulated if w.alpha}))
        labels[name] = name + (", simulated" if simulated else "") + (
            f" $\\alpha$ {alphas}" if alphas else "")
    return [handle(style, labels[name], linestyle="none") for name, style in styles.items()]


UNITS = {"batch": "batch {}", "context": "{} tokens"}


def draw_speedups(ax, ways, styles, across, along):
    """A line a draft and value of `along`, over `across`; the number at a marker is gamma."""
    lines = sorted({getattr(w, along) for w in ways})
    low, high = ax.get_xlim()
    middle = (len(styles) - 1) / 2
    most = max(middle, 0.5)
    step = min(APART ** (1 / most), (high / low) ** (1 / 60))  # between drafts, some 4 points of the page or less
    for (name, other), group in grouped(ways, "draft", along).items():
        group.sort(key=lambda w: getattr(w, across))
        at = list(styles).index(name)
        points = [(getattr(w, across), *w.interval()) for w in group]
        data, caps, bars = ax.errorbar(
            [p[0] for p in points], [p[1] for p in points], yerr=bars_of(points), linewidth=1.1,
            linestyle=LINES[lines.index(other) % len(LINES)], markeredgecolor="white", markeredgewidth=0.6,
            markersize=8.5 - at / most + (styles[name]["marker"] in "^v"), zorder=2 + at / 100, **BARS, **styles[name])
        dodge_by([data, *caps, *bars], step ** (at - middle))
        for way, point in zip(group, points):
            texts = [] if way.is_tree else [str(way.depth)]
            texts += [UNITS[along].format(other)] if len(group) == 1 and len(lines) > 1 else []
            if texts:
                label_point(ax, point[:2], ", ".join(texts), color=styles[name]["color"], xycoords=data.get_transform())
    ax.axhline(1, color="black", linewidth=0.8)
    grid(ax)
    return [handle(dict(color="#444444", linestyle=LINES[i % len(LINES)]), UNITS[along].format(v))
            for i, v in enumerate(lines) if len(lines) > 1 and is_line(ways, along, v, across)]


def is_line(ways, along, value, across):
    """True if one value of `along` was measured at several of `across`."""
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
        value_axis(ax, [getattr(w, across) for w in best],
                   {"batch": "batch (sequences)", "context": "context (tokens)"}[across])
        for line in draw_speedups(ax, best, styles, across, along):
            line.set_label((side if len(panels) > 1 else "") + line.get_label())
            handles.append(line)
    axes[0][0].set_ylim(0, 1.08 * max(1, *(end for w in best for end in w.interval())))
    axes[0][0].set_ylabel("speed-up over plain decoding\n"
                          "(95 % interval; numbers: best $\\gamma$)")
    return finish(figure, ways, handles, "Speed-up while the full batch decodes")


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
        label_point(ax, group[-1], f"batch {way.batch}", fontsize=8,
                    bbox=dict(facecolor="white", edgecolor="none", alpha=0.8, pad=0.5))
    ax.margins(x=0.15, y=0.1)
    points = [at(w) for line in lines.values() for w in line]
    is_wide = any(max(values) > 4 * min(values) for values in zip(*points))
    for axis, values in zip((ax.xaxis, ax.yaxis), zip(*points)):
        axis.set_major_formatter(number_label)
        if is_wide:
            log_axis(axis, values)
    ax.set_xlabel("latency: time per token of a sequence while the full batch decodes (ms)")
    ax.set_ylabel("throughput of the batch (tokens/s)")
    ax.grid(which="both", alpha=0.2, linewidth=0.5)
    handles = [handle(PLAIN, "plain decoding", linestyle="none"), *draft_handles(ways, styles)]
    return finish(figure, ways, handles, "Throughput against latency, each draft at its best $\\gamma$")


def largest_of(ways):
    """The records of each draft at its largest shape."""
    most = {w.draft: max(v.nodes for v in ways if v.draft == w.draft) for w in ways}
    return [w for w in ways if not w.is_plain and w.nodes == most[w.draft]]


def plot_acceptance(args):
    records = read_records(args)
    of_drafts = [r for r in records if r["tool"] == "magicdec-acceptance"]
    if of_drafts:
        return plot_budgets(of_drafts, args)
    ways = largest_of(ways_of(args))
    context = chosen([w.context for w in ways], args.context, "context")
    ways = [w for w in ways if w.context == context]
    styles = drafts_of(ways)
    has_output = any("by_output" in w.spec for w in ways)
    if not has_output:
        note("the records are of an older version: they lack acceptance along the output")
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
        grid(ax)
    shapes = {w.draft: w.shape for w in ways}
    handles = draft_handles(ways, styles)
    for line, name in zip(handles, styles):
        line.set_label(f"{line.get_label()}, {shapes[name]}")
    return finish(figure, ways, handles, "Acceptance, each draft at its largest $\\gamma$")


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
        fail(args.command, "expected predictions, found none", "measure with bench.predict, or several gammas")
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
    grid(ax)
    handles = draft_handles(ways, styles)
    dot = dict(color="#444444", marker="o")
    if errors and any("predicted_roofline" in w.record for w in ways):
        handles.append(handle(dot, "by measured times of\nother rounds or forwards", linestyle="none"))
        handles.append(handle(dict(dot, markerfacecolor="none"), "by the roofline only", linestyle="none"))
    handles.append(plt.Rectangle((0, 0), 1, 1, color="#999999", alpha=0.3, label="within 8 %"))
    if errors:
        errors.sort()
        ax.set_title(f"by measured times, {len(errors)} ways: median error "
                     f"{100 * errors[len(errors) // 2]:.1f} %, largest {100 * errors[-1]:.1f} %",
                     fontsize=9)
    return finish(figure, ways, handles, "Predicted against measured")


def add_commands(add):
    for name, draw, text in (
            ("speedup", plot_speedup, "speed-up against batch and context"),
            ("pareto", plot_pareto, "throughput against latency"),
            ("acceptance", plot_acceptance, "acceptance by position and along the output; of magicdec-acceptance "
             "by budget"),
            ("prediction", plot_prediction, "predicted against measured speed-up")):
        command = add(name, draw, text, "measured rounds of magicdec-bench or sequoia-bench" + (
            ", or records of magicdec-acceptance" if name == "acceptance" else ""))
        command.add_argument("--model", help="the model, if the records have several")
        command.add_argument("--temperature", type=float, help="the temperature, if the records have several")
        if name in ("pareto", "acceptance"):
            command.add_argument("--context", type=int, help="the context, if the records have several")
