#!/usr/bin/env python3
"""Tests scripts/plot.py on the committed records and on small files made here. Without matplotlib
it compares only names, and exits with 77 if they are right."""

import contextlib
import importlib.util
import io
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "records"
BIN = Path(os.environ.get("TANDEM_BIN", ROOT / "build/bin"))
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
sys.path.insert(0, str(ROOT / "scripts"))
import plot
import plot_common
import plot_fields
import plot_flat

# Answers in a log that pig-eval wrote to -o, and what it printed: (policy, task, right, low, high).
POLICIES = [("quest 5%", "quest"), ("window", "streaming")]
ANSWERS = {"full": {"kv": [1, 1, 1], "needle1": [1, 1, 1]}, "quest 5%": {"kv": [0, 1, 0], "needle1": [1, 1, 1]},
           "window": {"kv": [0, 0, 0], "needle1": [0, 0, 0]}}
PRINTED = [("quest 5%", "kv", 1 / 3, 0.06149194472039615, 0.7923403991979523),
           ("quest 5%", "mean", 2 / 3, 0.3894859017967311, 0.9438474315366021),
           ("window", "kv", 0, 0, 0.5614970317550455), ("window", "mean", 0, 0, 0.2479180129218246)]


def read(name):
    return [json.loads(line) for line in (RECORDS / name).read_text().splitlines()]


def lines_of(ax):
    """The lines of an axes that have markers; caps of bars are none."""
    return [line for line in ax.lines if line.get_marker() not in ("None", "", "_", None)]


def ticks_of(ax):
    """The labels of the y axis that are seen."""
    low, high = ax.get_ylim()
    return [label.get_text() for label, y in zip(ax.get_yticklabels(), ax.get_yticks())
            if low <= y <= high and label.get_text()]


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


class Names(unittest.TestCase):
    def test_names_of_csv_and_flat_are_those_of_the_tools(self):
        source = (ROOT / "lib/bench/record_view.cpp").read_text()
        table = re.findall(r'^    \{"(\w+)",\s*(true|false),\s*\{([^}]*)\}\},', source, re.M)
        self.assertGreater(len(table), 40)
        self.assertEqual(plot_flat.FIELDS, {
            name: " ".join(path.replace("/", ".") for path in re.findall(r'"/([^"]*)"', at)) for name, _, at in table})
        self.assertEqual(plot_flat.TEXTS, tuple(name for name, is_text, _ in table if is_text == "true"))
        self.assertEqual(plot_flat.TIMES, dict(re.findall(r'std::pair\{"(\w+)", "/(\w+)"\}', source)))
        timings = re.search(r"const char\* name : \{([^}]*)\}\)\s*if \(const Json& timing", source)[1]
        self.assertEqual(plot_flat.TIMINGS, tuple(re.findall(r"\w+", timings)))
        readme = (ROOT / "docs/reference.md").read_text().split("Fields of `csv` and `flat`")[1].split("\n\n")[1]
        documented = [name for row in readme.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
        self.assertEqual(sorted(documented), sorted(["tool", "point", "status", "error", *plot_flat.FIELDS]))

    def test_values_of_csv_and_flat_are_those_of_the_tools(self):
        for tool, name in (("pig-bench", "sparse-speed-2-cores.jsonl"), ("magicdec-bench", "gpu-h200-magicdec-tiny.jsonl"),
                           ("kernel-bench", "kernels-sparse.jsonl"), ("pig-eval", "prose-kl-codes.jsonl")):
            printed = subprocess.run([BIN / tool, "--from", RECORDS / name, "--format", "flat"], capture_output=True,
                                     text=True, check=True).stdout.splitlines()
            records = read(name)
            self.assertEqual(len(printed), len(records))
            for line, record in zip(map(json.loads, printed), records):
                short = {name: value for name, value in line.items()
                         if name not in ("tool", "point", "status", "error") and "." not in name}  # dots: swept keys
                found = plot_flat.short_fields(plot_fields.fields_of(record))
                self.assertEqual(found.keys(), short.keys())
                for key, value in short.items():
                    equal = self.assertEqual if isinstance(value, str) else self.assertAlmostEqual
                    equal(found[key], value, msg=key)


@unittest.skipUnless(HAS_MATPLOTLIB, "needs matplotlib")
class Plots(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.addCleanup(plot_common.plt.close, "all")
        self.folder = Path(temporary.name)

    def write(self, name, lines):
        path = self.folder / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def figure(self, *argv):
        """The figure that a command line draws, its labels placed; `self.stderr` holds the notes."""
        stderr = io.StringIO()
        with contextlib.redirect_stderr(stderr):
            figure, _ = plot.figure_of([str(a) for a in argv])
            plot_common.place_labels(figure)
        self.stderr = stderr.getvalue()
        return figure

    def error(self, status, *argv):
        """The text that a command line prints which must fail."""
        stderr = io.StringIO()
        with contextlib.redirect_stderr(stderr), self.assertRaises(SystemExit) as end:
            plot.figure_of([str(a) for a in argv])
        self.assertEqual(end.exception.code, status, stderr.getvalue())
        return stderr.getvalue()

    def log(self):
        lines = [{"schema": "tandem.eval/1", "recipe": {"path": "my.yaml", "sha256": "0", "effective": {"eval": {
            "tasks": ["needle1", "kv"], "policies": [{"name": n, "kind": k} for n, k in POLICIES]}}}}]
        for task in ("needle1", "kv"):
            for case in range(3):
                by_policy = {p: ANSWERS[p][task][case] for p in sorted(ANSWERS)}
                reads = {p: {"dense": {"forced": {"bytes": 2 ** (20 + i), "selected": 0.1, "fixed": 0.1}}}
                         for i, p in enumerate(by_policy)}
                lines.append({"task": task, "length": 512, "case": case,
                              "correct": {p: {"dense": {"forced": bool(v)}} for p, v in by_policy.items()},
                              "reads": reads})
        return lines

    def bench(self, policy="quest", contexts=(1024, 2048), ms=1.0, **cache):
        """Decode records of pig-bench."""
        return [{"schema": "tandem.result/1", "tool": "pig-bench", "status": "ok", "model": {"name": "m"},
                 "recipe": {"effective": {"cache": {"kind": policy, "quest": {"ratio": 0.05, "page": 16}, **cache}}},
                 "workload": {"phase": "decode", "batch": 1, "context_tokens": n},
                 "timing": {"decode_step": {"p50": ms, "p90": 1.1 * ms, "min": 0.9 * ms}},
                 "throughput": {"decode_tok_s": 1e3 / ms}} for n in contexts]

    def assert_bars_inside(self, figure):
        figure.draw_without_rendering()
        n = 0
        for ax in figure.axes:
            low, high = sorted(ax.get_ylim())
            for container in ax.containers:
                for bar in getattr(container, "lines", (0, 0, []))[2]:
                    for segment in bar.get_segments():
                        n += 1
                        for _, y in segment:
                            self.assertTrue(low <= y <= high, f"{y} outside {low}..{high}")
        self.assertGreater(n, 0)

    def test_speedups_stand_at_their_batch_with_whole_bars(self):
        records = read("gpu-h200-magicdec-tiny.jsonl")
        high = [r for r in records if "speedup_measured" in r.get("spec", {})]
        high[0]["spec"].update(speedup_measured=9.0, speedup_ci95_low=8.0, speedup_ci95_high=12.0)
        figure = self.figure("speedup", self.write("a.jsonl", records))
        ax = figure.axes[0]
        batches = {r["workload"]["batch"] for r in records}
        places = set()
        for line in lines_of(ax):
            self.assertLessEqual(set(line.get_xdata()), batches)
            shown = ax.transData.inverted().transform(line.get_transform().transform(line.get_xydata()))
            for x, at in zip(line.get_xdata(), shown[:, 0]):
                self.assertLess(max(x / at, at / x), 1.0501)  # a reader takes it for x
            places.add(round(shown[0, 0] / line.get_xdata()[0], 3))
        gammas = [label.get_text() for label in ax.texts]
        self.assertEqual(len(gammas), sum(len(line.get_xdata()) for line in lines_of(ax)))
        for label in ax.texts:  # next to its marker
            at = label.xycoords.transform(label.xy)
            self.assertLess(math.dist(at, label.get_transform().transform(label.get_position())), 20 * figure.dpi / 72)
        self.assertGreater(len(places), 2)  # drafts stand next to each other
        self.assert_bars_inside(figure)
        figure = self.figure("speedup", self.write("one.jsonl", [r for r in records if r["workload"].get(
            "draft", {"name": "verified-512"})["name"] == "verified-512"]))
        line, = lines_of(figure.axes[0])  # one draft is not moved
        at, true = (t.transform(line.get_xydata())[:, 0] for t in (line.get_transform(), figure.axes[0].transData))
        self.assertAlmostEqual(abs(at - true).max(), 0, 6)

    def test_other_plots_keep_bars_inside_and_true_x(self):
        for argv, values in ((("quality", RECORDS / "sparse-quality-4096.jsonl", "--protocol", "dense"), None),
                             (("speed", RECORDS / "sparse-speed-2-cores.jsonl"), "context_tokens"),
                             (("acceptance", RECORDS / "triforce-acceptance-16k.jsonl", "--temperature", "0.6"), None),
                             (("channels", RECORDS / "cpu-sirius-tasks.jsonl"), None)):
            figure = self.figure(*argv)
            self.assert_bars_inside(figure)
            for line in lines_of(figure.axes[0]) if values else []:
                self.assertLessEqual(set(line.get_xdata()), {r["workload"][values] for r in read(argv[1].name)})

    def test_names_policies_as_the_recipe_does(self):
        log = self.write("log.jsonl", self.log())
        self.assertEqual(legend_of(self.figure("quality", log)), ["full", "quest 5%", "window"])
        bench = self.write("b.jsonl", self.bench())
        self.assertEqual(legend_of(self.figure("speed", bench)), ["quest: ratio 0.05, page 16"])
        lines = self.log()
        lines[0]["recipe"]["effective"]["eval"]["policies"][0]["quest"] = {"ratio": 0.05, "page": 16}
        figure = self.figure("speed", bench, self.write("log.jsonl", lines))
        self.assertEqual((legend_of(figure), self.stderr), (["quest 5%"], ""))

    def test_tells_policies_apart_by_whatever_differs(self):
        path = self.write("b.jsonl", self.bench(host_dtype="auto") + self.bench(host_dtype="int8"))
        self.assertEqual(legend_of(self.figure("speed", path)),
                         ["quest: ratio 0.05, page 16", "quest: ratio 0.05, page 16, host_dtype int8"])

    def test_draws_the_last_of_repeated_points(self):
        paths = [self.write(f"{ms}.jsonl", self.bench(ms=ms)) for ms in (1.0, 3.0)]
        line, = lines_of(self.figure("speed", *paths).axes[0])[:1]
        self.assertEqual((list(line.get_xdata()), list(line.get_ydata())), ([1024, 2048], [3.0, 3.0]))
        self.assertIn("note: 2 measured points repeat others", self.stderr)
        log = self.log()
        first, second = self.write("1.jsonl", log), self.write("2.jsonl", [*log[:1], *log[2:]])
        figure = self.figure("quality", first, second)
        points = [line for line in lines_of(figure.axes[0]) if len(line.get_xdata()) == 1 and line.get_marker() == "D"]
        self.assertEqual(len(points), 1)
        self.assertIn("repeat others", self.stderr)

    def test_says_what_a_file_holds_and_what_to_type(self):
        path = self.write("b.jsonl", self.bench())
        for argv, status in ((("speedup", path), 4), ((path, "-o", "x.svg"), 2)):
            text = self.error(status, *argv)
            self.assertIn("b.jsonl holds 2 decode records of pig-bench\n  hint: plot.py speed ", text)
            self.assertIn("b.jsonl -o speed.svg", text)
        run = self.write("metrics.jsonl", [{"step": 1, "loss": 2.0}])
        self.assertIn("holds 1 metric of a run of s2ft-train\n  hint: plot.py loss", self.error(4, "speed", run))
        self.assertIn("found a run of s2ft-train\n  hint: plot.py loss", self.error(4, "speed", self.folder))
        other = self.write("llama.jsonl", [{"build": 1, "avg_ts": 2}])
        self.assertIn("1 object of another program (keys build, avg_ts)", self.error(4, "xy", other, "--x=a", "--y=b"))
        self.assertIn("b.jsonl holds 2 decode records of pig-bench", self.error(4, "loss", path))
        torn = self.folder / "torn.jsonl"
        torn.write_text(path.read_text() + '{"schema": "tand')  # of a run that was killed
        self.assertEqual(len(lines_of(self.figure("speed", torn).axes[0])[0].get_xdata()), 2)
        torn.write_text('{"schema\n' + path.read_text())
        self.assertIn("torn.jsonl:1: expected a line of JSON", self.error(4, "speed", torn))
        self.assertIn("No such file", self.error(4, "speed", self.folder / "none"))
        self.assertIn("hint: --protocol dense", self.error(2, "quality", RECORDS / "sparse-quality-4096.jsonl"))
        self.assertIn("invalid choice: 'sped'", self.error(2, "sped", "none"))

    def test_writes_the_picture_and_says_so(self):
        figure, out = self.figure("speed", self.write("b.jsonl", self.bench())), io.StringIO()
        files = [self.folder / "a.svg", self.folder / "b.svg"]
        for path in files:
            with contextlib.redirect_stdout(out):
                plot_common.save(figure, str(path))
        self.assertEqual(out.getvalue(), "".join(f"wrote {path}\n" for path in files))
        self.assertEqual(*(path.read_text() for path in files))
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as end:
            plot_common.save(figure, str(self.folder / "none/a.svg"))
        self.assertEqual(end.exception.code, 4)

    def test_needs_matplotlib_only_to_draw(self):
        for package in ("matplotlib", "numpy"):
            (self.folder / f"{package}.py").write_text(f"raise ModuleNotFoundError('{package}')")
        bench = self.write("b.jsonl", self.bench())
        for argv, status, text in ((["--help"], 0, "any field against any other"),
                                   (["sped", "none"], 2, "invalid choice"),
                                   (["speed", bench, "-o", "a.txt"], 2, "ends in .svg, .pdf or .png, found 'a.txt'"),
                                   (["xy", bench, "--x=batsh", "--y=tok_s"], 2, "did you mean batch"),
                                   (["xy", bench, "--fields"], 0, "cache.quest.ratio"),
                                   (["speed", bench], 1, "matplotlib: expected the package, found none")):
            run = subprocess.run([sys.executable, ROOT / "scripts/plot.py", *argv], capture_output=True, text=True,
                                 env={"PYTHONPATH": str(self.folder)})
            self.assertEqual(run.returncode, status, run.stderr)
            self.assertIn(text, run.stdout + run.stderr)

    def test_a_log_of_cases_gives_what_the_tool_prints(self):
        lines = self.log()
        figure = self.figure("quality", self.write("log.jsonl", [*lines, lines[-1]]))
        self.assertEqual([ax.get_title() for ax in figure.axes[:3]], ["needle1", "kv", "mean"])
        marker = {"quest 5%": "D", "window": "X"}
        for policy, task, right, low, high in PRINTED:
            ax = next(ax for ax in figure.axes if ax.get_title() == task)
            container = next(c for c in ax.containers if c.lines[0].get_marker() == marker[policy])
            self.assertAlmostEqual(container.lines[0].get_ydata()[0], right)
            ends = container.lines[2][0].get_segments()[0][:, 1]
            for end, expected in zip(ends, (low, high)):
                self.assertAlmostEqual(end, expected, 12)
        text = self.error(4, "quality", RECORDS / "eval-full-4096-builtin.jsonl")  # of a version that counted no reads
        self.assertIn("is a log of 500 cases of pig-eval", text)
        self.assertIn("--resume --format jsonl", text)
        own = [{**line, "record": line["case"] + 1, "task": "mine"} for line in lines[4:7]]
        for line in own:
            del line["case"], line["length"]
            for figures in (line["correct"], line["reads"]):
                for by_protocol in figures.values():
                    by_protocol["dense"]["acc"] = by_protocol["dense"].pop("forced")
        path = self.write("own.jsonl", [lines[0], *own])
        figure = self.figure("quality", path)
        self.assertEqual(figure._suptitle.get_text(), "own questions, dense question,\nacc, 3 cases a task")
        both = self.write("both.jsonl", [*lines, *own])
        figure = self.figure("quality", both, "--length", "own", "--score", "acc")
        self.assertEqual([ax.get_title() for ax in figure.axes], ["mine"])
        self.assertIn("expected one of 512, own, found nothing", self.error(2, "quality", both))
        del lines[1]["task"]
        self.assertIn("a line that lacks 'task'", self.error(4, "quality", self.write("bad.jsonl", lines)))

    def test_channels_names_the_model_and_what_is_drawn(self):
        figure = self.figure("channels", *(RECORDS / f"cpu-sirius-{part}.jsonl" for part in ("ppl", "tasks", "keep")))
        self.assertIn("tiny-16m", figure._suptitle.get_text())
        drawn = {(line.get_color(), line.get_marker()) for ax in figure.axes for line in lines_of(ax)}
        handles = {(h.get_color(), h.get_marker()) for h in figure.legends[0].get_lines()}
        self.assertEqual(handles, drawn)
        self.assertNotIn("cats_threshold", legend_of(figure))
        figure.draw_without_rendering()
        self.assertEqual(ticks_of(figure.axes[1]), ["1", "2", "5", "10", "20"])
        self.assertIn("k = 4, 8, 16", figure.axes[2].get_ylabel())
        renderer = figure.canvas.get_renderer()
        boxes = [label.get_window_extent(renderer) for label in figure.axes[2].texts]
        self.assertEqual(len(boxes), 12)
        for i, box in enumerate(boxes):
            self.assertFalse(any(box.overlaps(other) for other in boxes[:i]))

    def test_channels_keeps_the_legend_apart_and_two_ticks_or_more(self):
        rounds = read("cpu-sirius-keep.jsonl")
        for name, aal in (("far", None), ("narrow", 15.0), ("near", 15.9), ("one", 16.0)):
            for i, channels in enumerate(r["spec"]["channels"] for r in rounds if "channels" in r.get("spec", {})):
                channels["aal"] = channels["aal"] if aal is None else aal + (i % 2) * (16 - aal)
            figure = self.figure("channels", self.write(f"{name}.jsonl", rounds))
            figure.draw_without_rendering()
            legend, renderer = figure.legends[0].get_window_extent(), figure.canvas.get_renderer()
            if plot_common.plt.rcParams["savefig.bbox"] != "tight":  # else the picture grows around it
                self.assertTrue(legend.x1 <= figure.bbox.x1 and legend.y0 >= 0, legend)
            for box in [figure._supxlabel.get_window_extent(), *(ax.get_tightbbox(renderer) for ax in figure.axes)]:
                self.assertFalse(legend.overlaps(box))
            self.assertGreaterEqual(len(ticks_of(figure.axes[0])), 2, name)

    def test_places_has_two_ticks_or_more(self):
        figure = self.figure("places", self.write("b.jsonl", self.bench(ms=12.0) + self.bench(ms=14.0, place="host")))
        figure.draw_without_rendering()
        self.assertGreaterEqual(len(ticks_of(figure.axes[0])), 2)

    def test_xy_takes_any_field(self):
        path = RECORDS / "sparse-speed-2-cores.jsonl"
        figure = self.figure("xy", path, "--x", "context_tokens", "--y=decode_tok_s", "--by=cache.kind", "--log=x")
        ax = figure.axes[0]
        self.assertEqual((ax.get_xlabel(), ax.get_ylabel()), ("workload.context_tokens", "throughput.decode_tok_s"))
        self.assertEqual((ax.get_xscale(), ax.get_yscale()), ("log", "linear"))
        self.assertEqual(legend_of(figure), ["full", "lsh", "hybrid"])
        full = [r for r in read(path.name) if r["recipe"]["effective"]["cache"]["kind"] == "full"]
        self.assertEqual(sorted(lines_of(ax)[0].get_ydata()), sorted(r["throughput"]["decode_tok_s"] for r in full))
        figure = self.figure(path, "--x", "workload.batch", "--y", "throughput.decode_tok_s")
        self.assertEqual(figure.axes[0].get_xlabel(), "workload.batch")  # without the plot's name

    def test_xy_joins_names_that_differ_in_numbers_at_the_end(self):
        figure = self.figure("xy", RECORDS / "cpu-smollm2-attention.jsonl", "--x=key_bytes", "--y=error.mean",
                             "--by=policy", "--families")
        names = legend_of(figure)
        self.assertIn("hybrid-1-two-bits", names)
        self.assertEqual(len(lines_of(figure.axes[0])[names.index("lsh")].get_xdata()), 3)

    def test_xy_takes_the_names_of_csv_and_flat(self):
        record = {**self.bench()[0], "steady": True, "quality": {"ppl": {"mean": 2.5}, "list": [1]}}
        record["timing"] = {"prefill": {"mean": 9.0}, "decode_step": {"mean": 4.0, "p50": 2.0, "stddev": 1.0, "n": 7}}
        record["recipe"]["effective"]["run"] = {"device": "cpu", "context": 0}
        del record["workload"]["context_tokens"]
        short = plot_flat.short_fields(plot_fields.fields_of(record))
        self.assertEqual(short, {
            "model": "m", "device": "cpu", "phase": "decode", "method": "quest", "batch": 1, "tok_s": 1e3,
            "tok_s_p50": 2e3, "tok_s_sd": 250, "ms_mean": 4, "ms_p50": 2, "ms_sd": 1, "samples": 7, "steady": True,
            "ppl_mean": 2.5})
        path = RECORDS / "sparse-speed-2-cores.jsonl"
        flat = self.write("flat.jsonl", [{"tool": "pig-bench", "status": "ok", **plot_flat.short_fields(
            plot_fields.fields_of(record))} for record in read(path.name)])
        figures = [self.figure("xy", name, "--x=context", "--y=tok_s_p50", "--by=method") for name in (path, flat)]
        lines = [[(*line.get_xdata(), *line.get_ydata()) for line in lines_of(f.axes[0])] for f in figures]
        self.assertEqual(lines[0], lines[1])
        self.assertEqual(legend_of(figures[0]), legend_of(figures[1]))
        self.assertEqual(figures[0].axes[0].get_ylabel(), "tok_s_p50")
        self.assertIn(f"holds {len(read(path.name))} flat records of pig-bench\n  hint: plot.py xy",
                      self.error(4, "speed", flat))

    def test_xy_draws_the_median_and_the_range(self):
        path = self.write("b.jsonl", [r for ms in (1, 2, 10) for r in self.bench(ms=ms)])
        ax = self.figure("xy", path, "--x", "context_tokens", "--y", "p50").axes[0]
        self.assertEqual(list(lines_of(ax)[0].get_ydata()), [2, 2])
        self.assertEqual(ax.containers[0].lines[2][0].get_segments()[0].tolist(), [[1024, 1], [1024, 10]])
        self.assertIn("median", ax.get_ylabel())
        ax = self.figure("xy", path, "--x", "cache.kind", "--y", "p50").axes[0]
        self.assertEqual([t.get_text() for t in ax.get_xticklabels()], ["quest"])

    def test_xy_explains_what_it_cannot_draw(self):
        path = self.write("b.jsonl", self.bench())
        text = self.error(2, "xy", path, "--x", "batch", "--y", "decode_toks")
        self.assertIn("found 'decode_toks'\n  hint: did you mean throughput.decode_tok_s", text)
        self.assertIn("--fields", text)
        for name, near in (("contxt", "context"), ("bacth", "batch"), ("tok_S", "tok_s"),
                           ("timing.decode_step.p55", "timing.decode_step.p50")):
            self.assertIn(f"did you mean {near}", self.error(2, "xy", path, "--x", name, "--y", "tok_s"))
        for name in ("nofield", "mi", "tok"):  # near to none
            self.assertIn(f"found '{name}'\n  hint: plot.py xy {path} --fields lists all fields\n",
                          self.error(2, "xy", path, "--x", name, "--y", "tok_s"))
        self.assertIn("found phase = decode", self.error(2, "xy", path, "--x", "batch", "--y", "phase"))
        self.assertIn("quest.ratio", self.error(2, "xy", self.write("c.jsonl", self.bench(topk={"ratio": 0.1})),
                                                "--x", "batch", "--y", "ratio"))
        self.assertIn("expected --x FIELD and --y FIELD", self.error(2, "xy", path))
        self.assertIn("found recipe.effective.cache.kind = quest",
                      self.error(2, "xy", path, "--x", "kind", "--y", "p50", "--log", "x"))
        self.figure("xy", path, self.write("c.jsonl", [{**self.bench()[0], "throughput": {}}]), "--x", "batch",
                    "--y", "decode_tok_s")
        self.assertIn("1 of 3 records lack batch or throughput.decode_tok_s", self.stderr)

    def test_xy_lists_all_fields(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            plot.figure_of(["xy", str(self.write("b.jsonl", self.bench())), "--fields"])
        lines = [line.split() for line in out.getvalue().splitlines()]
        self.assertIn(["workload.context_tokens", "1024", "(2", "values)"], lines)
        self.assertIn(["recipe.effective.cache.quest.ratio", "0.05"], lines)
        self.assertIn(["tok_s", "1000.0"], lines)


if __name__ == "__main__":
    done = unittest.main(exit=False).result.wasSuccessful()
    sys.exit(1 if not done else 0 if HAS_MATPLOTLIB else 77)
