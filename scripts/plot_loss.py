"""Plot of runs of s2ft-train: loss and validation by step."""
import argparse
import os

from plot_common import grid, log_axis, plt, series_style
from plot_records import fail, holds, kind_of, read_lines

METRICS = "metrics.jsonl"
WIDE = 20  # ratio of losses from which the axis is logarithmic


class Run:
    """A run's losses: `steps` and `validations` are lists of (step, loss)."""

    def __init__(self, path):
        file = os.path.join(path, METRICS) if os.path.isdir(path) else path
        self.name = os.path.basename(os.path.dirname(os.path.abspath(file)))
        self.steps, self.validations, self.best = [], [], None
        lines = read_lines(file)
        for values in lines:
            if "loss" not in kind_of(values)[1]:
                text, hint = holds(file, lines)
                fail("loss", f"expected a run of s2ft-train; {text}", hint)
            self.add(values)
        if not self.steps:
            fail(file, "expected steps of a run, found none", "wait for the first step of s2ft-train")

    def add(self, values):
        if values.get("loss") is not None and not values.get("skipped"):
            self.steps.append((values["step"], values["loss"]))
        if values.get("val_loss") is not None:
            self.validations.append((values["step"], values["val_loss"]))
        if "best_step" in values:
            self.best = (values["best_step"], values["best_val_loss"])


def smoothed(points, span):
    """A mean over `span` neighbouring steps that follows a trend without a lag. The window is symmetric, at first
    narrower; towards the end it is longer, and a line fitted to it gives the value."""
    import numpy  # comes with matplotlib
    reach, last, line = int(span / 2), len(points) - 1, []
    for i, (step, _) in enumerate(points):
        after = min(reach, last - i)
        before = min(reach + 3 * (reach - after), i)  # an end of a fitted line scatters as a mean of a quarter
        after = min(after, before)
        steps, losses = numpy.transpose(points[i - before:i + 1 + after])
        level = losses.mean() if len(steps) < 2 else numpy.polyfit(steps - step, losses, 1)[1]
        line.append((step, float(numpy.clip(level, losses.min(), losses.max()))))
    return line


def names_of(runs):
    """The folders' names; where two have one name, with the number of their place."""
    names = [run.name for run in runs]
    return [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names, 1)]


def plot_loss(args):
    runs = [Run(path) for path in args.files]
    figure, ax = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for i, (run, name) in enumerate(zip(runs, names_of(runs))):
        color, marker = series_style(i, "color", "marker").values()
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
    losses = [loss for run in runs for _, loss in run.steps + run.validations]
    is_wide = min(losses) > 0 and max(losses) >= WIDE * min(losses)
    if is_wide if args.log is None else args.log:
        log_axis(ax.yaxis, [loss for loss in losses if loss > 0])
    ax.set_xlabel("optimizer steps")
    ax.set_ylabel("mean loss of a supervised token (nats)")
    grid(ax)
    ax.legend(frameon=False, fontsize=8)
    return figure


def add_commands(add):
    command = add("loss", plot_loss, "loss and validation of runs of s2ft-train: each step thin, smoothed thick",
                  "runs of s2ft-train", "RUN")
    command.add_argument("--smooth", type=float, metavar="STEPS",
                         help="steps that the thick line averages (default: a fiftieth of the run)")
    command.add_argument("--log", action=argparse.BooleanOptionalAction,
                         help=f"logarithmic losses (default: if the largest is {WIDE} times the smallest or more)")
