"""Plot of drafts by some of the FFN's channels: quality and tokens a round against the parameters that a token uses."""
import os

from plot_common import (BLUE, GREEN, GREY, ORANGE, PINK, RED, bars_of, grid, handle, label_point,
                         legend_outside, log_axis, plt, title)
from plot_records import fail, latest, read_records, sparse_policies

STYLES = {
    "griffin": dict(color=RED, marker="o"),
    "griffin, refreshed": dict(color=ORANGE, marker="s"),
    "magnitude": dict(color=GREY, marker="X"),
    "cats": dict(color=BLUE, marker="^"),
    "cats, weighed": dict(color=GREEN, marker="D"),
    "cats_threshold": dict(color=PINK, marker="v"),
}
# Points of several kinds that lie on each other stay visible: the later ones are smaller.
SIZES = {kind: 10 - 1.2 * i for i, kind in enumerate(STYLES)}
APU = "parameters used a token, over the model's"


def kind_of(sparse):
    if sparse["kind"] == "griffin" and sparse.get("refresh", 0) > 0:
        return "griffin, refreshed"
    if sparse["kind"] == "cats" and (sparse.get("weighted") or sparse.get("weigh")):
        return "cats, weighed"
    return sparse["kind"]


def density(sparse, gates=1 / 3):
    """Share of an FFN's weights that a bare policy reads."""
    keep = sparse["keep"]
    return keep if sparse["kind"] in ("griffin", "magnitude") else gates + (1 - gates) * keep


def tasks_of(records):
    """(kind, corrected, APU or share of the parameters, mean over full's, its interval)."""
    shares = {}  # of parameters, by share of the FFN
    rows = []
    for r in records:
        q = r["quality"]
        policy = sparse_policies(r).get(q.get("policy"))
        if q.get("task") != "mean" or policy is None or "ratio" not in q:
            continue
        spec = q.get("spec")
        if spec:
            shares[round(density(policy["sparse"]), 4)] = spec["density"]
        rows.append((policy["sparse"], spec, q))
    points = []
    for sparse, spec, q in rows:
        x = spec["apu"] if spec else shares.get(round(density(sparse), 4))
        if x is not None:
            points.append((kind_of(sparse), spec is not None, x, q["ratio"], q["ratio_ci95_low"],
                           q["ratio_ci95_high"]))
    return points


def draw_tasks(ax, points):
    for kind, corrected, x, y, low, high in points:
        style = STYLES[kind]
        ax.errorbar([x], [100 * y], yerr=bars_of([(x, 100 * y, 100 * low, 100 * high)]), linestyle="none",
                    markersize=SIZES[kind], capsize=2, markerfacecolor=style["color"] if corrected else "none", **style)
    ax.axhline(100, color="#000000", linewidth=0.8)
    ax.axhline(95, color="#999999", linewidth=0.8, linestyle=":")
    ax.set_ylabel("mean of tasks, % of the full model's")
    ax.set_title("answers: not corrected (hollow), corrected (filled)", fontsize=9)


def draw_prose(ax, points):
    for kind, x, y in points:
        ax.plot([x], [y], markersize=SIZES[kind], markerfacecolor="none", linestyle="none", **STYLES[kind])
    ax.axhline(1, color="#000000", linewidth=0.8)
    log_axis(ax.yaxis, [1, *(y for _, _, y in points)])
    ax.set_xlim(0, 1.05)
    ax.set_xlabel("weights of the FFN that are read, share")
    ax.set_ylabel("perplexity over the full model's")
    ax.set_title("prose, not corrected", fontsize=9)


def prose_of(records):
    """(kind, share of the FFN, perplexity over full's), each policy against the full model of its run."""
    texts = [r for r in records if r["quality"].get("task") == "perplexity"]
    full = {r["recipe"]["sha256"]: r["quality"]["ppl"]["mean"] for r in texts if r["quality"]["policy"] == "full"}
    points = []
    for r in texts:
        policy, whole = sparse_policies(r).get(r["quality"]["policy"]), full.get(r["recipe"]["sha256"])
        if policy and whole:
            sparse = policy["sparse"]
            points.append((kind_of(sparse), density(sparse), r["quality"]["ppl"]["mean"] / whole))
    return points


def draw_rounds(ax, records):
    by_draft = {}
    for r in records:
        channels = r.get("spec", {}).get("channels")
        if not channels:
            continue
        drafts = {d["name"]: d for d in r["recipe"]["effective"]["bench"]["drafts"]}
        sparse = drafts[r["workload"]["draft"]["name"]]["sparse"]
        by_draft.setdefault((kind_of(sparse), sparse["keep"]), []).append(channels)
    for (kind, keep), rounds in sorted(by_draft.items()):
        rounds.sort(key=lambda c: c["k"])
        x, y = [c["apu"] for c in rounds], [c["aal"] for c in rounds]
        ax.plot(x, y, linewidth=1, markersize=5, **STYLES[kind])
        label_point(ax, (x[-1], y[-1]), f"{keep:g}", color=STYLES[kind]["color"])
    ax.axvline(1, color="#000000", linewidth=0.8)
    channels = [c for rounds in by_draft.values() for c in rounds]
    log_axis(ax.yaxis, [c["aal"] for c in channels])
    ax.set_ylabel(f"tokens a round (AAL) of k = {', '.join(f'{k:g}' for k in sorted({c['k'] for c in channels}))}")
    ax.set_title("rounds after prose; numbers: share of channels kept", fontsize=9)


def kind_drawn(line):
    """The kind whose style a line has."""
    return next((k for k, style in STYLES.items() if (line.get_color(), line.get_marker()) == tuple(style.values())),
                None)


def plot_channels(args):
    records = latest(read_records(args), lambda r: (
        r["recipe"]["sha256"], r.get("point"), str(r.get("workload")),
        *(r.get("quality", {}).get(key) for key in ("policy", "task", "length", "protocol", "score"))), "records")
    evals = [r for r in records if r["tool"] == "pig-eval"]
    rounds = [r for r in records if "channels" in r.get("spec", {})]
    tasks, prose = tasks_of(evals), prose_of(evals)
    panels = [(draw, points, label) for draw, points, label in (
        (draw_tasks, tasks, APU), (draw_prose, prose, None), (draw_rounds, rounds, APU)) if points]
    if not panels:
        fail(args.command, "expected policies or drafts that read some of the FFN's channels, found none",
             "policies of pig-eval and drafts of magicdec-bench take the key sparse")
    figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels) + 1.6, 4.2), squeeze=False,
                                layout="constrained")
    for ax, (draw, points, label) in zip(axes[0], panels):
        draw(ax, points)
        if label:
            ax.set_xlabel(label)
        ax.margins(0.1)
        grid(ax)
    drawn = {kind_drawn(line) for ax in axes[0] for line in ax.lines}
    legend_outside(figure, "right center", fontsize=8, handles=[
        handle(style, kind, linestyle="none") for kind, style in STYLES.items() if kind in drawn])
    models = dict.fromkeys(os.path.basename(r.get("model", {}).get("name") or r["recipe"]["effective"]["model"]["path"])
                           for r in records)
    title(figure, "Some of the FFN's channels", models, records)
    return figure


def add_commands(add):
    add("channels", plot_channels, "quality with some of the FFN's channels, corrected and not, and tokens a round, "
        "against the parameters that a token uses",
        "records of pig-eval --format jsonl, or rounds of magicdec-bench, with sparse policies or drafts")
