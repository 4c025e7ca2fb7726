"""Plots of hierarchical speculation: gains by shape and size, and acceptance along the output."""
from collections import defaultdict

import plot_rounds
from plot_common import POINT, binary_axis, grid, handle, legend_outside, plt, series_style, title
from plot_records import chosen, fail, latest, point_of, read_records

LABELS = {"context": "context (tokens)", "budget": "retrieved keys (tokens)",
          "chunk": "tokens of a chunk", "gamma2": r"$\gamma_2$: tokens of a chain that are enough"}


def self_of(way):
    """The draft of kind self by which rounds within verify, or the draft itself."""
    effective = way.record["recipe"]["effective"]["bench"]
    drafts = {d["name"]: d for d in effective["drafts"]}
    draft = drafts.get(way.record["workload"].get("draft", {}).get("name"))
    if draft is None:
        return None, effective
    return (drafts[draft["self"]] if draft["kind"] == "nested" else draft), effective


def settings_of(way):
    """The settings that panels go across; None where a way lacks one."""
    draft, effective = self_of(way)
    cache = (draft or {}).get("cache")
    if draft is None or draft["kind"] != "self":
        budget = chunk = None
    elif cache:
        budget, chunk = cache["retrieval"]["budget"], cache["retrieval"]["chunk"]
    else:
        budget, chunk = effective.get("budget") or draft["budget"], draft["page"]
    return {"context": way.context, "budget": budget, "chunk": chunk,
            "gamma2": way.spec.get("within", {}).get("enough")}


def kind_of(way):
    """The kind of a draft and of its proposals, without sizes: a line each."""
    draft = way.record["workload"]["draft"]
    if draft["kind"] == "nested":
        return "trees within" if "tree" in draft else "chains within"
    return "retrieved keys only" if draft["kind"] == "self" else "small model only"


def place_of(way):
    return way.record["recipe"]["effective"].get("cache", {}).get("place", "device")


def comparable(found, name):
    """The ways that differ in a setting: budgets in chunks of one size, chunks of one budget."""
    other = {"budget": "chunk", "chunk": "budget"}.get(name)
    if other is None:
        return found
    values = defaultdict(set)
    for _, settings, _ in found:
        if settings[other]:
            values[settings[other]].add(settings[name])
    most = max(values, key=lambda v: len(values[v]), default=None)
    return [f for f in found if f[1][other] in (None, most)]


def plot_nested(args):
    ways = plot_rounds.ways_of(args)
    place = chosen([place_of(w) for w in ways], args.place, "place")
    ways = [w for w in ways if place_of(w) == place]
    batch = chosen([w.batch for w in ways], args.batch, "batch")
    ways = [w for w in ways if w.batch == batch and not w.is_plain]
    found = [(kind_of(w), settings_of(w), w) for w in ways]
    kinds = list(dict.fromkeys(kind for kind, _, _ in found))
    if not any("within" in kind for kind in kinds):
        fail(args.command, "expected hierarchical speculation, found rounds with one draft",
             "plot.py speedup draws these")
    styles = {kind: series_style(i) for i, kind in enumerate(kinds)}
    panels = [name for name in LABELS
              if any(len({s[name] for k, s, _ in found if k == kind and s[name]}) > 1
                     for kind in kinds)]
    if not panels:
        fail(args.command, "expected rounds of several contexts, budgets, chunks or gamma2, found one of each",
             "plot.py speedup compares drafts at one setting")
    figure, axes = plt.subplots(1, len(panels), figsize=(3.6 * len(panels) + 2.4, 3.8), sharey=True,
                                squeeze=False, layout="constrained")
    for ax, name in zip(axes[0], panels):
        values = set()
        for kind in kinds:
            best = defaultdict(float)  # over all that the panel does not show
            for other, settings, way in comparable(found, name):
                if other == kind:
                    best[settings[name]] = max(best[settings[name]], way.speedup())
            level = best.pop(None, None)
            if not best:  # it has no such setting
                ax.axhline(level, color=styles[kind]["color"], linewidth=1.1,
                           linestyle=styles[kind]["linestyle"])
                continue
            x = sorted(best)
            values |= set(x)
            ax.plot(x, [best[v] for v in x], **POINT, **styles[kind])
        binary_axis(ax.xaxis, values)
        ax.set_xlabel(LABELS[name])
        ax.axhline(1, color="black", linewidth=0.8)
        grid(ax)
    axes[0][0].set_ylim(bottom=0)
    axes[0][0].set_ylabel("speed-up over plain decoding, the best of\nwhat else was measured")
    handles = [handle(styles[kind], kind) for kind in kinds]
    where = ", KV cache in host memory" if place == "host" else ""
    return plot_rounds.finish(figure, ways, handles, "Hierarchical speculation" + where)


def plot_output(args):
    """A line a draft: acceptance in rounds along the output."""
    records = read_records(args)
    temperature = chosen([r["workload"]["temperature"] for r in records], args.temperature,
                         "temperature")
    records = [r for r in records if r["workload"]["temperature"] == temperature]
    records = latest(records, point_of, "records of a draft")
    figure, ax = plt.subplots(figsize=(7.4, 3.8), layout="constrained")
    for i, record in enumerate(records):
        parts = record["acceptance"]["drafted"]["by_output"]
        width = record["workload"]["new_tokens"] / 8  # of a part: it stands for its middle
        alpha = record["acceptance"]["drafted"]["alpha"]
        ax.plot([p["from_token"] + width / 2 for p in parts], [p["alpha"] for p in parts],
                label=f"{record['workload']['draft']['name']} ({alpha:.3f})", **POINT, **series_style(i))
    work = records[0]["workload"]
    ax.set_xlabel("length of the output (tokens)")
    ax.set_ylabel(r"$\alpha$ of drafted tokens")
    grid(ax)
    title(figure, "Acceptance along the output",
          [records[0]["model"]["name"], f"{work['context_tokens']} tokens of context", f"batch {work['batch']}",
           f"temperature {temperature:g}"], records)
    legend_outside(figure, "right center")
    return figure


def add_commands(add):
    rounds = "measured rounds of magicdec-bench or sequoia-bench"
    nested = add("nested", plot_nested, "speed-up of hierarchical speculation by context, budget, chunk and gamma2", rounds)
    nested.add_argument("--model", help="the model, if the records have several")
    nested.add_argument("--batch", type=int, help="the batch, if the records have several")
    nested.add_argument("--place", choices=["device", "host"], help="where the KV cache lies")
    output = add("output", plot_output, "acceptance in rounds along the output, by draft",
                 "records of magicdec-acceptance with rounds (bench.new_tokens)")
    for command in (nested, output):
        command.add_argument("--temperature", type=float, help="the temperature, if the records have several")
