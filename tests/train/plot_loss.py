#!/usr/bin/env python3
"""Tests `scripts/plot.py loss` on metrics as s2ft-train writes them. Exits with 77 without matplotlib."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
try:
    import matplotlib  # noqa: F401
except ImportError:
    sys.exit(77)
import plot
import plot_loss


def metrics(folder, name, n=10, cut=False):
    """A run whose loss falls, with a validation every fourth step, of which the first is the best."""
    lines = [{"step": 0, "range_test": {"rates": [1e-3, 3e-3], "losses": [2.0, 3.0], "chosen": 1e-3}}]
    for step in range(1, n + 1):
        lines.append({"step": step, "epoch": 0, "loss": 4 / step, "skipped": False})
        if step % 4 == 0:
            lines.append({"step": step, "val_loss": 1 + step / 10, "best_step": 4,
                          "best_val_loss": 1.4})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path = folder / name
    path.mkdir()
    (path / "metrics.jsonl").write_text(text[:-20] if cut else text)
    return path


def draw(*arguments):
    return subprocess.run([sys.executable, str(SCRIPTS / "plot.py"), "loss", *map(str, arguments)],
                          capture_output=True, text=True)


class PlotLoss(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = Path(self.temporary.name)

    def test_reads_steps_validations_and_the_best(self):
        run = plot_loss.Run(str(metrics(self.folder, "a")))
        self.assertEqual(run.name, "a")
        self.assertEqual(run.steps[:2], [(1, 4.0), (2, 2.0)])
        self.assertEqual(len(run.steps), 10)
        self.assertEqual(run.validations, [(4, 1.4), (8, 1.8)])
        self.assertEqual(run.best, (4, 1.4))

    def test_leaves_out_a_line_that_is_cut(self):
        self.assertEqual(len(plot_loss.Run(str(metrics(self.folder, "a", cut=True))).steps), 9)

    def test_smooths_without_a_lag(self):
        falling = [(step, 9 - 0.25 * step) for step in range(1, 31)]
        self.assertEqual(len(plot_loss.smoothed(falling, 8)), 30)
        for (step, loss), (at, mean) in zip(falling, plot_loss.smoothed(falling, 8)):
            self.assertEqual(step, at)
            self.assertAlmostEqual(loss, mean)
        spike = plot_loss.smoothed([(step, float(step == 15)) for step in range(1, 61)], 8)
        self.assertEqual([at for at, mean in spike if mean > 0], list(range(11, 20)))
        noise = [(step, 3.0 + (-1) ** step) for step in range(1, 31)]
        for _, mean in plot_loss.smoothed(noise, 8)[4:]:
            self.assertLess(abs(mean - 3), 0.25)

    def test_is_logarithmic_where_losses_differ_much(self):
        few, many = (str(metrics(self.folder, str(n), n)) for n in (19, 20))  # losses of 4/19 and 4/20 to 4
        for argv, scale in (([few], "linear"), ([many], "log"), ([many, "--no-log"], "linear"),
                            ([few, "--log"], "log")):
            figure, _ = plot.figure_of(["loss", *argv])
            self.assertEqual(figure.axes[0].get_yscale(), scale, argv)

    def test_draws_several_runs(self):
        out = self.folder / "out.svg"
        run = draw(metrics(self.folder, "first"), metrics(self.folder, "second"), "-o", out)
        self.assertEqual((run.returncode, run.stdout, run.stderr), (0, f"wrote {out}\n", ""))
        text = out.read_text()
        for name in ("first", "second, validation", "best: 1.4000 after step 4"):
            self.assertIn(name, text)

    def test_names_a_bad_file(self):
        missing = draw(self.folder / "none", "-o", self.folder / "out.svg")
        self.assertEqual(missing.returncode, 4)
        self.assertIn("none: No such file or directory", missing.stderr)
        path = metrics(self.folder, "a")
        (path / "metrics.jsonl").write_text("[1]\n")
        foreign = draw(path, "-o", self.folder / "out.svg")
        self.assertIn("expected a run of s2ft-train; ", foreign.stderr)


if __name__ == "__main__":
    unittest.main()
