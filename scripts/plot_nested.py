"""Plots of rounds within rounds: what shapes and sizes gain, and acceptance along the output."""
from collections import defaultdict

import plot_rounds
from plot_common import binary_axis, chosen, fail, legend_outside, plt, read_records, tokens_label
from plot_drafts import STYLES

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
    """What the panels go across; None where a way has no such thing."""
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
    """What a line is of: the kind of draft and what it proposes, without the sizes."""
    draft = way.record["workload"]["draft"]
    if draft["kind"] == "nested":
        return "trees within" if "tree" in draft else "chains within"
    return "the chosen keys alone" if draft["kind"] == "self" else "the small model alone"


def place_of(way):
    return way.record["recipe"]["effective"]["cache"]["place"]


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
        fail("no rounds within rounds among the records")
    styles = {kind: STYLES[1 + i % (len(STYLES) - 1)] for i, kind in enumerate(kinds)}
    panels = [name for name in LABELS
              if any(len({s[name] for k, s, _ in found if k == kind and s[name]}) > 1
                     for kind in kinds)]
    if not panels:
        fail("all rounds have one context, budget, chunk and gamma2: nothing to draw across")
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
            ax.plot(x, [best[v] for v in x], markersize=6.5, markeredgecolor="white",
                    markeredgewidth=0.6, linewidth=1.1, **styles[kind])
        binary_axis(ax.xaxis, values, tokens_label)
        ax.set_xlabel(LABELS[name])
        ax.axhline(1, color="black", linewidth=0.8)
        ax.grid(alpha=0.25, linewidth=0.5)
    axes[0][0].set_ylim(bottom=0)
    axes[0][0].set_ylabel("speed-up over plain decoding, the best of\nwhat else was measured")
    handles = [plt.Line2D([], [], markersize=6, label=kind, **styles[kind]) for kind in kinds]
    where = ", keys in host memory" if place == "host" else ""
    plot_rounds.finish(figure, ways, handles, args, "Rounds within rounds" + where)


def plot_output(args):
    """A line a draft: acceptance in rounds along the output."""
    records = [r for r in read_records(args.files, "magicdec-acceptance")
               if r.get("acceptance", {}).get("drafted", {}).get("by_output")]
    if not records:
        fail("no acceptance in rounds by output among the records")
    temperature = chosen([r["workload"]["temperature"] for r in records], args.temperature,
                         "temperature")
    records = [r for r in records if r["workload"]["temperature"] == temperature]
    figure, ax = plt.subplots(figsize=(7.4, 3.8), layout="constrained")
    for i, record in enumerate(records):
        parts = record["acceptance"]["drafted"]["by_output"]
        width = record["workload"]["new_tokens"] / 8  # of a part: it stands for its middle
        alpha = record["acceptance"]["drafted"]["alpha"]
        ax.plot([p["from_token"] + width / 2 for p in parts], [p["alpha"] for p in parts],
                markersize=6.5, markeredgecolor="white", markeredgewidth=0.6, linewidth=1.1,
                label=f"{record['workload']['draft']['name']} ({alpha:.3f})",
                **STYLES[i % len(STYLES)])
    work = records[0]["workload"]
    ax.set_xlabel("length of the output (tokens)")
    ax.set_ylabel(r"$\alpha$ of drafted tokens")
    ax.grid(alpha=0.25, linewidth=0.5)
    figure.suptitle(f"Acceptance along the output\n{records[0]['model']['name']}, "
                    f"{work['context_tokens']} tokens of context, batch {work['batch']}, "
                    f"temperature {temperature:g}", fontsize=10, x=0.01, ha="left")
    legend_outside(figure, "right center", handlelength=3.2)
    figure.supxlabel("commit " + records[0].get("git_commit", "unknown")[:12], fontsize=7.5,
                     color="#444444", x=0.01, ha="left")
    figure.savefig(args.output)


def add_commands(commands):
    """The kinds of plots that are drawn here."""
    nested = commands.add_parser("nested", help="speed-up of rounds within rounds by context, "
                                 "budget, chunk and gamma2")
    nested.add_argument("--model", help="which model, where the records have several")
    nested.add_argument("--batch", type=int)
    nested.add_argument("--place", choices=["device", "host"], help="where the keys lie")
    nested.set_defaults(draw=plot_nested)
    output = commands.add_parser("output", help="acceptance in rounds along the output")
    output.set_defaults(draw=plot_output)
    for command in (nested, output):
        command.add_argument("--temperature", type=float)
