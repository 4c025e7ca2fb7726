"""A plot of drafts by some of the FFN's channels: what is left of quality, and what rounds give,
against the parameters that a token uses."""
from plot_common import fail, plt, read_records

STYLES = {
    "griffin": dict(color="#D55E00", marker="o"),
    "griffin, refreshed": dict(color="#E69F00", marker="s"),
    "magnitude": dict(color="#999999", marker="X"),
    "cats": dict(color="#0072B2", marker="^"),
    "cats, weighed": dict(color="#009E73", marker="D"),
    "cats_threshold": dict(color="#CC79A7", marker="v"),
}
APU = "parameters used a token, over the model's"


def kind_of(sparse):
    if sparse["kind"] == "griffin" and sparse.get("refresh", 0) > 0:
        return "griffin, refreshed"
    if sparse["kind"] == "cats" and sparse.get("weigh"):
        return "cats, weighed"
    return sparse["kind"]


def policies_of(record):
    return {p["name"]: p for p in record["recipe"]["effective"]["eval"]["policies"]}


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
        policy = policies_of(r).get(q.get("policy"))
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
        ax.errorbar([x], [100 * y], yerr=[[100 * max(0, y - low)], [100 * max(0, high - y)]],
                    linestyle="none", markersize=7, capsize=2,
                    markerfacecolor=style["color"] if corrected else "none", **style)
    ax.axhline(100, color="#000000", linewidth=0.8)
    ax.axhline(95, color="#999999", linewidth=0.8, linestyle=":")
    ax.set_ylabel("mean of tasks, % of the whole model's")
    ax.set_title("answers: alone (hollow), corrected (filled)", fontsize=9)


def draw_prose(ax, records):
    texts = [r for r in records if r["quality"].get("task") == "perplexity"]
    full = next(r for r in texts if r["quality"]["policy"] == "full")["quality"]["ppl"]["mean"]
    for r in texts:
        policy = policies_of(r).get(r["quality"]["policy"])
        if policy:
            kind = kind_of(policy["sparse"])
            ax.plot([density(policy["sparse"])], [r["quality"]["ppl"]["mean"] / full],
                    markersize=7, markerfacecolor="none", linestyle="none", **STYLES[kind])
    ax.axhline(1, color="#000000", linewidth=0.8)
    ax.set_xlabel("weights of the FFN that are read, share")
    ax.set_yscale("log")
    ax.set_ylabel("perplexity over the whole model's")
    ax.set_title("prose, alone", fontsize=9)


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
        ax.annotate(f"{keep:g}", (x[-1], y[-1]), textcoords="offset points", xytext=(4, 2),
                    fontsize=7, color=STYLES[kind]["color"])
    ax.axvline(1, color="#000000", linewidth=0.8)
    ax.set_yscale("log", base=2)
    ax.set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    ax.set_ylabel("tokens a round (AAL) of k = 4, 8, 16")
    ax.set_title("rounds after prose; numbers: share of channels kept", fontsize=9)


def plot_channels(args):
    records = read_records(args.files, "pig-eval", "magicdec-bench")
    evals = [r for r in records if r["tool"] == "pig-eval"]
    benches = [r for r in records if r["tool"] == "magicdec-bench"]
    panels = []
    points = tasks_of(evals)
    if points:
        panels.append((lambda ax: draw_tasks(ax, points), APU))
    if any(r["quality"].get("task") == "perplexity" for r in evals):
        panels.append((lambda ax: draw_prose(ax, evals), None))
    if any(r.get("spec", {}).get("channels") for r in benches):
        panels.append((lambda ax: draw_rounds(ax, benches), APU))
    if not panels:
        fail("no records of policies or drafts with sparse")
    figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 4), squeeze=False)
    for ax, (draw, label) in zip(axes[0], panels):
        draw(ax)
        if label:
            ax.set_xlabel(label)
        ax.grid(alpha=0.3)
        ax.margins(0.1)
    handles = [plt.Line2D([], [], linestyle="none", markersize=6, label=kind, **style)
               for kind, style in STYLES.items()]
    figure.legend(handles=handles, loc="lower center", ncol=len(handles), fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(args.output)
