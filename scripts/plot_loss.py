"""Plot of runs of s2ft-train: loss and validation by step."""
import json
import math
import os

from plot_common import fail, plt

# Colours of Okabe and Ito; validations differ in marker too.
STYLES = [("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#E69F00", "v"),
          ("#56B4E9", "p"), ("#000000", "P")]
METRICS = "metrics.jsonl"


class Run:
    """A run's losses: `steps` and `validations` are lists of (step, loss)."""

    def __init__(self, path):
        file = os.path.join(path, METRICS) if os.path.isdir(path) else path
        self.name = os.path.basename(os.path.dirname(os.path.abspath(file)))
        self.steps, self.validations, self.best = [], [], None
        try:
            with open(file, encoding="utf-8") as text:
                lines = text.readlines()
        except OSError as e:
            fail(f"{file}: {e.strerror}")
        for number, line in enumerate(lines, 1):
            # The last line of a run that was killed may be cut.
            if line.endswith("\n"):
                self.add(line, f"{file}:{number}")
        if not self.steps:
            fail(f"{file}: no steps")

    def add(self, line, where):
        try:
            values = json.loads(line)
            step = values["step"]
        except (json.JSONDecodeError, TypeError, KeyError):
            fail(f"{where}: not a line of a run's metrics")
        if values.get("loss") is not None and not values.get("skipped"):
            self.steps.append((step, values["loss"]))
        if values.get("val_loss") is not None:
            self.validations.append((step, values["val_loss"]))
        if "best_step" in values:
            self.best = (values["best_step"], values["best_val_loss"])


def smoothed(points, span):
    """Exponential mean over about `span` steps; the first ones count as many as there are."""
    mean, weight, line = 0.0, 0.0, []
    decay = math.exp(-1 / span)
    for step, loss in points:
        mean = decay * mean + (1 - decay) * loss
        weight = decay * weight + (1 - decay)
        line.append((step, mean / weight))
    return line


def names_of(runs):
    """The folders' names; where two have one name, with the number of their place."""
    names = [run.name for run in runs]
    return [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names, 1)]


def plot_loss(args):
    runs = [Run(path) for path in args.files]
    figure, ax = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for i, (run, name) in enumerate(zip(runs, names_of(runs))):
        color, marker = STYLES[i % len(STYLES)]
        span = args.smooth or max(1.0, len(run.steps) / 50)
        ax.plot(*zip(*run.steps), color=color, linewidth=0.5, alpha=0.35)
        ax.plot(*zip(*smoothed(run.steps, span)), color=color, linewidth=1.4, label=name)
        if run.validations:
            ax.plot(*zip(*run.validations), color=color, marker=marker, markersize=5,
                    markeredgecolor="white", markeredgewidth=0.6, linewidth=1.0, linestyle="--",
                    label=f"{name}, validation")
        if run.best:
            ax.plot(*run.best, color=color, marker="*", markersize=13, markeredgecolor="white",
                    markeredgewidth=0.6, linestyle="none",
                    label=f"best: {run.best[1]:.4f} after step {run.best[0]}")
    if args.log:
        ax.set_yscale("log")
    ax.set_xlabel("optimizer steps")
    ax.set_ylabel("mean loss of a supervised token (nats)")
    ax.grid(alpha=0.25, linewidth=0.5)
    ax.legend(frameon=False, fontsize=8)
    figure.savefig(args.output)


def add_command(commands):
    command = commands.add_parser("loss", help="loss and validation of runs of s2ft-train")
    command.add_argument("--smooth", type=float, metavar="STEPS",
                         help="steps that the thick line averages; a fiftieth of the run by default")
    command.add_argument("--log", action="store_true", help="logarithmic losses")
    command.set_defaults(draw=plot_loss)
