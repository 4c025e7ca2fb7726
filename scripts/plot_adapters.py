"""Plot of two tasks' adapters that serve together: records of scripts/many-tasks.py."""
from plot_common import BLACK, BLUE, ORANGE, RED, SKY, plt
from plot_records import latest, read_records

USES = {"alone": "its adapter only", "mix": "mixed in a batch", "switch": "switched", "fused at 1": "fused, weight 1",
        "fused at 0.7": "fused, weight 0.7", "fused at 0.5": "fused, weight 0.5"}
COLORS = [BLACK, BLUE, SKY, RED, ORANGE, "#F0E442"]
HATCHES = ["", "", "//", "", "\\\\", ".."]


def plot_adapters(args):
    records = latest(read_records(args), lambda r: (r["kind"], r["use"], r["task"]), "results of a use and task")
    kinds = list(dict.fromkeys(r["kind"] for r in records))
    tasks = list(dict.fromkeys(r["task"] for r in records))
    figure, axes = plt.subplots(1, len(tasks), figsize=(4.6 * len(tasks), 3.2), sharey=True, squeeze=False)
    width = 0.8 / len(USES)
    for axis, task in zip(axes[0], tasks):
        for i, (use, label) in enumerate(USES.items()):
            name = f"{task} alone" if use == "alone" else use
            of_use = [next(r for r in records if (r["kind"], r["use"], r["task"]) == (k, name, task)) for k in kinds]
            heights = [100 * r["parts"] for r in of_use]
            at = [k + (i - (len(USES) - 1) / 2) * width for k in range(len(kinds))]
            axis.bar(at, heights, width, color=COLORS[i], hatch=HATCHES[i], edgecolor="white", label=label)
            for x, height, r in zip(at, heights, of_use):
                axis.text(x, height + 1, str(r["exact"]), ha="center", va="bottom", fontsize=6, rotation=90)
        axis.set_xticks(range(len(kinds)), kinds)
        axis.set_title(f"task {task}")
        axis.set_ylim(0, 112)
        axis.set_yticks(range(0, 101, 20))
    axes[0][0].set_ylabel("fields or words right, %; numbers:\nanswers right to the letter, of 200")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower center", ncols=3, frameon=False)
    figure.subplots_adjust(bottom=0.27, top=0.9, left=0.08, right=0.99, wspace=0.06)
    return figure


def add_commands(add):
    add("adapters", plot_adapters, "two tasks' adapters that serve together", "records of scripts/many-tasks.py")
