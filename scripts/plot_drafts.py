"""Plot of magicdec-acceptance: acceptance of drafts by KV budget."""
from collections import defaultdict

from plot_common import BARS, POINT, bars_of, binary_axis, grid, handle, legend_outside, plt, series_style, title
from plot_records import chosen, latest, point_of

KINDS = {"tested": "on given texts", "answer": "where the answers stand",
         "drafted": "in rounds, as drafted"}


def budget_of(draft):
    """Keys that a draft reads, a nested one within; None where the axis does not say it."""
    last = draft.get("self", "").split(" ")[-1]
    cache = draft.get("cache", {})
    if cache.get("kind") == "retrieval":
        return cache["retrieval"]["budget"]
    return draft.get("budget_tokens", int(last) if last.isdigit() else None)


def name_of(draft):
    """A draft without its budget, which the axis shows."""
    budget = str(budget_of(draft) or "")
    name = draft["name"]
    return name[:-len(budget)].rstrip() if budget and name.endswith(" " + budget) else name


def figure_of(record, kind):
    group = record["acceptance"]
    return group.get("tested", {}).get("answer") if kind == "answer" else group.get(kind)


def draw(ax, records, kind, styles):
    lines = defaultdict(list)
    for record in records:
        figure = figure_of(record, kind)
        if figure is not None:
            draft = record["workload"]["draft"]
            alpha, error = figure["alpha"], figure.get("alpha_stderr", 0)
            lines[name_of(draft)].append((budget_of(draft), alpha, alpha - error, alpha + error))
    for name, points in lines.items():
        style = styles[name]
        if points[0][0] is None:  # reads a number of keys that the axis does not show
            for _, alpha, low, high in points:
                ax.axhline(alpha, color=style["color"], linestyle=style["linestyle"], linewidth=1.1)
                ax.axhspan(low, high, color=style["color"], alpha=0.15, linewidth=0)
            continue
        points.sort()
        ax.errorbar([p[0] for p in points], [p[1] for p in points], yerr=bars_of(points), **POINT, **BARS, **style)
    grid(ax)


def plot_budgets(records, args):
    """A row a kind of prompts: acceptance against budget, a line a draft."""
    for name in ("temperature", "context"):
        key = "context_tokens" if name == "context" else name
        value = chosen([r["workload"][key] for r in records], getattr(args, name), name)
        records = [r for r in records if r["workload"][key] == value]
    records = latest(records, point_of, "records of a draft and budget")
    prompts = list(dict.fromkeys(r["workload"]["prompts"] for r in records))
    kinds = [k for k in KINDS if any(figure_of(r, k) for r in records)]
    names = list(dict.fromkeys(name_of(r["workload"]["draft"]) for r in records))
    styles = {name: series_style(i) for i, name in enumerate(names)}
    figure, axes = plt.subplots(len(prompts), len(kinds), sharex=True, sharey="row", squeeze=False,
                                figsize=(3.4 * len(kinds) + 2, 2.6 * len(prompts) + 1),
                                layout="constrained")
    budgets = sorted({b for r in records if (b := budget_of(r["workload"]["draft"]))})
    for row, kind_of_prompts in zip(axes, prompts):
        group = [r for r in records if r["workload"]["prompts"] == kind_of_prompts]
        for ax, kind in zip(row, kinds):
            if not any(figure_of(r, kind) for r in group):
                ax.set_visible(False)
                continue
            draw(ax, group, kind, styles)
            ax.set_title(f"{kind_of_prompts}: {KINDS[kind]}", fontsize=9)
            if budgets:
                binary_axis(ax.xaxis, budgets)
        row[0].set_ylabel("alpha (standard error)")
    for ax in axes[-1]:
        ax.set_xlabel("keys that a draft reads")
    work = records[0]["workload"]
    title(figure, "Acceptance by budget",
          [records[0]["model"]["name"], f"{work['context_tokens']} tokens of context",
           f"temperature {work['temperature']:g}", f"$\\gamma$ {work['gamma']}"], records)
    legend_outside(figure, "right upper", handles=[handle(styles[n], n) for n in names])
    return figure
