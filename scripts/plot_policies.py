"""Plots of cache policies: quality of pig-eval, speed of pig-bench."""
from plot_common import (BARS, BLACK, BLUE, GREEN, GREY, LINES, ORANGE, PINK, RED, SKY, bars_of, binary_axis,
                         grid, handle, legend_outside, log_axis, plt)
from plot_records import chosen, latest, read_lines, read_records, results_of

MEAN = "mean"
OWN = "own"  # in place of a length, of questions of files
TASKS = ["needle1", "needle8", "kv", "vt", "cwe"]
# Families differ in marker, line and lightness too: prints without colour stay readable.
STYLES = {
    "full": dict(color=BLACK, marker="*", linestyle="-"),
    "hybrid": dict(color=RED, marker="o", linestyle="-"),
    "lsh": dict(color=BLUE, marker="s", linestyle="--"),
    "topk": dict(color=GREEN, marker="^", linestyle="-."),
    "oracle_sampling": dict(color=SKY, marker="v", linestyle=":"),
    "quest": dict(color=PINK, marker="D", linestyle=LINES[4]),
    "snapkv": dict(color=ORANGE, marker="p", linestyle=(0, (3, 1, 1, 1))),
    "retrieval": dict(color=GREEN, marker="<", linestyle=(0, (4, 1, 1, 1))),
    "verified": dict(color=BLUE, marker="h", linestyle=(0, (5, 2))),
    "streaming": dict(color=GREY, marker="X", linestyle=(0, (1, 1))),
}
OTHER = dict(color="#666666", marker="P", linestyle="-")
# Policies of one family differ in how their markers are filled.
FILLS = ["full", "none", "left", "bottom", "right", "top"]
# The settings that tell policies of a kind from each other, by their names in recipes.
SETTINGS = {"streaming": ("sinks", "recent"), "lsh": ("bits", "tables", "min_hits"), "topk": ("ratio",),
            "quest": ("ratio", "page"), "snapkv": ("budget", "window"), "verified": ("budget",),
            "retrieval": ("budget", "chunk"), "hybrid": ("exact", "sample", "tail")}


def in_order(policies):
    """(kind, name) of policies: the kinds in the order of STYLES, the names in that of the records."""
    known = list(STYLES)
    return sorted(dict.fromkeys(policies), key=lambda p: known.index(p[0]) if p[0] in known else len(known))


def styles_of(policies):
    """Marker and line of each (kind, name)."""
    styles, seen = {}, {}
    for kind, name in in_order(policies):
        n = seen[kind] = seen.get(kind, -1) + 1
        style = STYLES.get(kind, OTHER)
        again = n // len(FILLS)  # a second round of fills has larger markers
        styles[kind, name] = dict(style, fillstyle=FILLS[n % len(FILLS)], markerfacecoloralt="white",
                                  markeredgecolor=style["color"], markeredgewidth=0.8,
                                  markersize=(9 if kind == "full" else 6) + 2.5 * again)
    return styles


def bytes_label(value, _=None):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.3g} {unit}"
        value /= 1024


def draw_task(ax, results, task, styles):
    """One panel: a point a policy, a thin line through the policies of a family by what they read."""
    for kind in dict.fromkeys(kind for kind, _ in styles):
        points = sorted((q["reads"]["bytes"], q["correct"]) for q in results if q["kind"] == kind)
        if points:
            ax.plot(*zip(*points), color=STYLES.get(kind, OTHER)["color"], linewidth=0.8, alpha=0.5,
                    linestyle=STYLES.get(kind, OTHER)["linestyle"], zorder=1)
    # Last drawn lies on top: full attention and what competes with it.
    for policy, style in reversed(styles.items()):
        points = [(q["reads"]["bytes"], q["correct"], q["ci95_low"], q["ci95_high"])
                  for q in results if (q["kind"], q["policy"]) == policy]
        for x, y, *_ in points:
            _, caps, bars = ax.errorbar([x], [y], yerr=bars_of(points), **{**BARS, **style, "linestyle": "none"})
            for part in (*caps, *bars):
                part.set_alpha(0.5)
            if policy[0] == "full":
                ax.axhline(y, color="black", linewidth=0.6, alpha=0.5, zorder=1)
    ax.set_title(task)
    ax.set_ylim(-0.04, 1.04)
    grid(ax)


def plot_quality(args):
    quality = [{"length": OWN, **r["quality"]} for r in read_records(args)]
    picks = {name: chosen([q[name] for q in quality], getattr(args, name), name)
             for name in ("length", "protocol", "score")}
    quality = [q for q in quality if all(q[name] == value for name, value in picks.items())]
    quality = latest(quality, lambda q: (q["task"], q["policy"]), "results of a task and policy")
    styles = styles_of((q["kind"], q["policy"]) for q in quality)
    present = dict.fromkeys(q["task"] for q in quality)
    tasks = [t for t in TASKS if t in present] + [t for t in present if t not in [*TASKS, MEAN]]
    tasks += [MEAN] if MEAN in present else []
    columns = min(3, len(tasks))
    rows = -(-len(tasks) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.5 * columns + 1.8, 2.8 * rows + 0.6),
                                sharex=True, sharey=True, squeeze=False, layout="constrained")
    panels = list(axes.flat)
    for ax, task in zip(panels, tasks):
        draw_task(ax, [q for q in quality if q["task"] == task], task, styles)
    binary_axis(panels[0].xaxis, [q["reads"]["bytes"] for q in quality], bytes_label)
    for i, ax in enumerate(panels):
        ax.set_visible(i < len(tasks))
        ax.tick_params(axis="x", labelrotation=35, labelsize=8, labelbottom=i + columns >= len(tasks))
    figure.supxlabel("KV cache and index that a decode step reads", fontsize=10)
    figure.supylabel("right answers (95 % interval)", fontsize=10)
    cases = sorted({q["n_cases"] for q in quality if q["task"] != MEAN or tasks == [MEAN]})
    texts = "own questions" if picks["length"] == OWN else f"{picks['length']} tokens"
    answers = picks["score"] if picks["score"].startswith("acc") else f"{picks['score']} answers"
    figure.suptitle(f"{texts}, {picks['protocol']} question,{' ' if columns > 1 else chr(10)}{answers}, "
                    f"{' to '.join(str(n) for n in dict.fromkeys((cases[0], cases[-1])))} cases a task", fontsize=11)
    legend_outside(figure, "right upper", fontsize=8 if len(styles) > 16 else 9,
                   handles=[handle(style, name.replace("_", " "), linestyle="none")
                            for (_, name), style in styles.items()])
    return figure


def settings_of(cache):
    """The settings that decide what a policy reads."""
    kind = cache["kind"]
    own = cache if kind == "streaming" else cache.get("topk" if kind == "oracle_sampling" else kind, {})
    keys = SETTINGS.get("topk" if kind == "oracle_sampling" else kind, ())
    if own.get("tail") in ("means", "none"):
        keys = [key for key in keys if key != "sample"]
    return {key: own[key] for key in keys if key in own}


def policy_text(cache):
    """A policy as its recipe says it, such as "quest: ratio 0.05, page 16"."""
    settings = ", ".join(f"{key} {value}" for key, value in settings_of(cache).items())
    return cache["kind"].replace("_", " ") + (": " if settings else "") + settings


def relevant(cache):
    """The settings of a policy by key, without those of other kinds."""
    own = cache.get("topk" if cache["kind"] == "oracle_sampling" else cache["kind"], {})
    return {**{key: value for key, value in cache.items() if not isinstance(value, dict)}, **own}


def names_of(caches, given, elsewhere=()):
    """A name for each policy: the one given to its settings, else these; then the keys that differ among
    policies of equal settings, without those that the plot shows elsewhere."""
    texts, differ = [policy_text(cache) for cache in caches], {}
    for text in set(texts):
        group = [relevant(cache) for cache, own in zip(caches, texts) if own == text]
        differ[text] = [key for key in group[0]
                        if key not in elsewhere and len({str(cache.get(key)) for cache in group}) > 1]
    return [", ".join([given.get(text, text), *(f"{key} {settings[key]}" for key in differ[text]
                                                if settings.get(key, "auto") != "auto")])
            for text, settings in zip(texts, map(relevant, caches))]


def names_given(args):
    """The names that recipes of pig-eval among the files give to policies, by their settings. Leaves the files of
    pig-bench."""
    names, others = {}, []
    for path in args.files:
        policies = [policy for record in results_of(path, read_lines(path)) if record["tool"] == "pig-eval"
                    for policy in record["recipe"]["effective"].get("eval", {}).get("policies", [])]
        names.update((policy_text(policy), policy["name"]) for policy in reversed(policies))
        others += [] if policies else [path]
    args.files = others or args.files
    return names


class Point:
    """A measured decode step."""

    def __init__(self, record, name):
        work, cache = record["workload"], record["recipe"]["effective"]["cache"]
        self.record, self.policy, self.batch, self.context = record, (cache["kind"], name), work["batch"], work[
            "context_tokens"]
        self.model = record["model"]["name"]
        self.machine = (record["model"].get("dtype", ""), work.get("gpu", work.get("device", "cpu")),
                        f"{record.get('host', {}).get('threads_used', '?')} threads")
        self.ms = record["timing"]["decode_step"]


def decode_points(args, *shown):
    """The last record of each point, and titles of models, machines and batches by (model, machine, batch)."""
    given, records = names_given(args), read_records(args)
    names = names_of([r["recipe"]["effective"]["cache"] for r in records], given, shown)
    points = latest([Point(r, name) for r, name in zip(records, names)],
                    lambda p: (p.model, p.machine, p.batch, p.policy, p.context,
                               *(relevant(p.record["recipe"]["effective"]["cache"]).get(key) for key in shown)),
                    "measured points")
    panels = sorted({(p.model, p.machine, p.batch) for p in points})
    varies = [len({machine[i] for _, machine, _ in panels}) > 1 for i in range(3)]
    return points, {panel: ", ".join([panel[0], *(part for part, is_shown in zip(panel[1], varies) if is_shown),
                                      f"batch {panel[2]}"]) for panel in panels}


def plot_speed(args):
    points, panels = decode_points(args)
    styles = styles_of(p.policy for p in points)
    figure, axes = plt.subplots(1, len(panels), sharey=True, squeeze=False,
                                figsize=(3.8 * len(panels) + 1.2 + 0.07 * max(len(name) for _, name in styles), 3.6),
                                layout="constrained")
    for ax, (panel, text) in zip(axes[0], panels.items()):
        here = [p for p in points if (p.model, p.machine, p.batch) == panel]
        for policy, style in styles.items():
            line = sorted((p.context, *(p.ms[key] / p.batch for key in ("p50", "min", "p90")))
                          for p in here if p.policy == policy)
            if line:
                ax.errorbar([p[0] for p in line], [p[1] for p in line], yerr=bars_of(line), linewidth=1.1,
                            label=policy[1], **{**BARS, **style})
        binary_axis(ax.xaxis, [p.context for p in here])
        ax.set_title(text, fontsize=10)
        ax.set_xlabel("context (tokens)")
        grid(ax)
    axes[0][0].set_ylim(bottom=0)
    axes[0][0].set_ylabel("decode time per token (ms)\nmedian step / batch; bars: fastest to p90")
    legend_outside(figure, "right upper", handles=[handle(style, name) for (_, name), style in styles.items()])
    return figure


def place_text(point):
    """Where the KV cache lies, the policy's kind, and a text for readers who do not know the recipe's keys."""
    cache = point.record["recipe"]["effective"]["cache"]
    kind, name = point.policy
    own = cache.get(kind, {})
    policies = {
        "full": "full attention",
        "lsh": f"MagicPIG (lsh), {own.get('tables')} tables of {own.get('bits')} bits",
        "hybrid": f"hybrid, {100 * own.get('exact', 0):g} % of the keys",
    }
    attend = {"cpu": "the CPU", "gpu": "the GPU", "both": "CPU and GPU"}
    hosted = point.record.get("hosted")
    place = f"KV cache in host memory, attention on {attend[hosted['attend']]}" if hosted else "KV cache on the GPU"
    text = policy_text(cache)
    return cache.get("place", "device"), kind, f"{name.replace(text, policies.get(kind, text))}; {place}"


def plot_places(args):
    points, panels = decode_points(args, "place", "attend")
    lines = {}
    for p in points:
        place, kind, text = place_text(p)
        if len(panels) > 1:
            text = f"{panels[p.model, p.machine, p.batch]}: {text}"
        lines.setdefault((place, kind, text), []).append((p.context, 1e3 * p.batch / p.ms["p50"]))
    figure, ax = plt.subplots(figsize=(6.6, 4.6), layout="constrained")
    order = [kind for kind, _ in in_order((kind, "") for _, kind, _ in lines)]
    for name in sorted(lines, key=lambda n: (n[0], order.index(n[1]), n[2])):
        place, kind, text = name
        fill = {} if place == "device" else dict(markerfacecolor="white")
        ax.plot(*zip(*sorted(lines[name])), label=text, markersize=5, linewidth=1.1, **STYLES.get(kind, OTHER), **fill)
    binary_axis(ax.xaxis, [p.context for p in points])
    log_axis(ax.yaxis, [rate for line in lines.values() for _, rate in line])
    ax.set_xlabel("context (tokens)")
    ax.set_ylabel("decode, tokens a second")
    drawn = [text.replace("synthetic:", "") + (", random weights" if "synthetic:" in text else "") for text in panels.values()]
    ax.set_title("\n".join(drawn), fontsize=10)
    grid(ax)
    legend_outside(figure, "lower center")
    return figure


def length(text):
    return text if text == OWN else int(text)


def add_commands(add):
    quality = add("quality", plot_quality, "accuracy against bytes that a decode step reads, a panel a task",
                  "records of long-context questions by pig-eval, or its log of cases")
    quality.add_argument("--length", type=length, help="length of the texts, or own, if the records have several")
    quality.add_argument("--protocol", choices=["dense", "sparse"], help="how the question was prefilled")
    quality.add_argument("--score", choices=["forced", "generated", "acc", "acc_norm"],
                         help="how answers were judged")
    add("speed", plot_speed, "decode time per token against context, a panel a batch size",
        "decode records of pig-bench")
    add("places", plot_places, "decode tokens a second, KV cache on the GPU against in host memory",
        "decode records of pig-bench")
