#!/usr/bin/env python3
"""Makes the figures of README.md and docs again from their records, and compares them with docs/img. Without
matplotlib it compares only those that need none, and exits with 77 if they are right. With --update it writes them.

A figure that matplotlib draws has another layout with other fonts and versions. Its texts must be equal, and its lines
have the same shape within 1 % of the space that they take."""
import contextlib
import importlib.util
import io
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
# Name -> script and arguments, as pages name the command of the figure.
FIGURES = {
    "quality-against-keys.svg": ["quality-figure.py", "records/sparse-quality-4096.jsonl",
                                 "records/sparse-quality-codes-4096.jsonl"],
    "quality-against-keys-16000.svg": ["quality-figure.py", "records/gpu-h200-sparse-recipe.jsonl"],
    "across-contexts.svg": ["plot.py", "places", "records/gpu-h200-across-contexts.jsonl"],
}


def draw(name, path):
    script, *arguments = FIGURES[name]
    subprocess.run([sys.executable, ROOT / "scripts" / script, *arguments, "-o", path], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL)
    return path.read_text(encoding="utf-8")


def texts_of(svg):
    """The words of a figure of matplotlib, which draws them as paths."""
    return sorted(re.findall(r"<!-- (.*?) -->", svg))


def lines_of(svg):
    """The lines inside the axes as lists of points, in units of the space that all of them take."""
    paths = re.findall(r'<path d="([^"]*)" clip-path=', svg)
    lines = [[(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", path)] for path in paths]
    ends = [(min(axis), max(axis)) for axis in zip(*(point for line in lines for point in line))]
    return [[tuple((v - low) / (high - low) for v, (low, high) in zip(point, ends)) for point in line]
            for line in lines]


class Figures(unittest.TestCase):
    def drawn(self, name):
        with tempfile.TemporaryDirectory() as folder:
            return draw(name, Path(folder) / name)

    def committed(self, name):
        return (ROOT / "docs/img" / name).read_text(encoding="utf-8")

    def test_figures_are_those_of_their_records(self):
        for name in FIGURES:
            if FIGURES[name][0] == "quality-figure.py":
                with self.subTest(name):
                    self.assertEqual(self.drawn(name), self.committed(name))

    @unittest.skipUnless(HAS_MATPLOTLIB, "needs matplotlib")
    def test_figures_of_matplotlib_are_those_of_their_records(self):
        for name in FIGURES:
            if FIGURES[name][0] == "plot.py":
                with self.subTest(name):
                    drawn, committed = self.drawn(name), self.committed(name)
                    self.assertEqual(texts_of(drawn), texts_of(committed))
                    lines, expected = lines_of(drawn), lines_of(committed)
                    self.assertGreater(len(expected), 0)
                    self.assertEqual([len(line) for line in lines], [len(line) for line in expected])
                    for line, other in zip(lines, expected):
                        for point, place in zip(line, other):
                            for value, wanted in zip(point, place):
                                self.assertAlmostEqual(value, wanted, delta=0.01)

    def test_pages_name_the_command_of_each_figure(self):
        pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "records").glob("*.md"))
        for name, (script, *arguments) in FIGURES.items():
            self.assertIn(" ".join([f"scripts/{script}", *arguments, "-o", f"docs/img/{name}"]), pages)


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        for name in FIGURES:
            draw(name, ROOT / "docs/img" / name)
        sys.exit()
    with contextlib.redirect_stdout(io.StringIO()):
        done = unittest.main(exit=False).result.wasSuccessful()
    sys.exit(1 if not done else 0 if HAS_MATPLOTLIB else 77)
