"""Plot of magicdec-acceptance: how often drafts are accepted, by what they read."""
from collections import defaultdict

from plot_common import chosen, fail, legend_outside, plt, tokens_label

# Colours of Okabe and Ito.
STYLES = [dict(color="#999999", marker="X", linestyle=":"),
          dict(color="#E69F00", marker="p", linestyle="-"),
          dict(color="#D55E00", marker="o", linestyle="--"),
          dict(color="#0072B2", marker="h", linestyle="-"),
          dict(color="#009E73", marker="^", linestyle="-."),
          dict(color="#CC79A7", marker="D", linestyle="-"),
          dict(color="#56B4E9", marker="v", linestyle="--"),
          dict(color="#000000", marker="s", linestyle=":"),
          dict(color="#F0E442", marker="<", linestyle="-")]
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
            lines[name_of(draft)].append((budget_of(draft), figure["alpha"],
                                          figure.get("alpha_stderr", 0)))
    for name, points in lines.items():
        style = styles[name]
        if points[0][0] is None:  # reads what it reads
            for _, alpha, error in points:
                ax.axhline(alpha, color=style["color"], linestyle=style["linestyle"], linewidth=1.1)
                ax.axhspan(alpha - error, alpha + error, color=style["color"], alpha=0.15,
                           linewidth=0)
            continue
        points.sort()
        ax.errorbar([p[0] for p in points], [p[1] for p in points], yerr=[p[2] for p in points],
                    markersize=6.5, markeredgecolor="white", markeredgewidth=0.6, linewidth=1.1,
                    elinewidth=0.7, capsize=2, **style)
    ax.grid(alpha=0.25, linewidth=0.5)


def plot_budgets(records, args):
    """A row a kind of prompts: acceptance against budget, a line a draft."""
    records = [r for r in records if "acceptance" in r]
    if not records:
        fail("no acceptance among the records")
    for name in ("temperature", "context"):
        key = "context_tokens" if name == "context" else name
        value = chosen([r["workload"][key] for r in records], getattr(args, name), name)
        records = [r for r in records if r["workload"][key] == value]
    prompts = list(dict.fromkeys(r["workload"]["prompts"] for r in records))
    kinds = [k for k in KINDS if any(figure_of(r, k) for r in records)]
    names = list(dict.fromkeys(name_of(r["workload"]["draft"]) for r in records))
    styles = {name: STYLES[i % len(STYLES)] for i, name in enumerate(names)}
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
                ax.set_xscale("log", base=2)
                ax.set_xticks(budgets, [tokens_label(b) for b in budgets])
                ax.set_xticks([], minor=True)
        row[0].set_ylabel("alpha (standard error)")
    for ax in axes[-1]:
        ax.set_xlabel("keys that a draft reads")
    work, commit = records[0]["workload"], records[0].get("git_commit", "unknown")
    figure.suptitle(f"Acceptance by budget\n{records[0]['model']['name']}, "
                    f"{work['context_tokens']} tokens of context, temperature "
                    f"{work['temperature']:g}, $\\gamma$ {work['gamma']}",
                    fontsize=10, x=0.01, ha="left")
    legend_outside(figure, "right upper", handlelength=3.2,
                   handles=[plt.Line2D([], [], markersize=6, label=n, **styles[n]) for n in names])
    figure.supxlabel(f"commit {commit[:12]}", fontsize=7.5, color="#444444", x=0.01, ha="left")
    figure.savefig(args.output)
