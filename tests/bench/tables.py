#!/usr/bin/env python3
"""Tests scripts/make-tables.py: the tables of all pages are those of their records, and faults are found."""
import contextlib
import importlib.util
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
specification = importlib.util.spec_from_file_location("tables", ROOT / "scripts/make-tables.py")
tables = importlib.util.module_from_spec(specification)
specification.loader.exec_module(tables)

RECORDS = [{"workload": {"phase": "decode", "context_tokens": 1024}, "timing": {"decode_step": {"p50": ms}},
            "recipe": {"effective": {"cache": {"kind": kind}}}, "samples": [1, 2, 6]}
           for kind, ms in (("full", 3.0), ("lsh", 1.5))] + [{"peer": "other", "tokens": 1024, "seconds": 0.009}]
MARKER = """bench.jsonl
rows context: {context_tokens|tokens:,}
column full, ms: {decode_step.p50:.1f} if cache.kind=full
column lsh: {decode_step.p50:.1f} ({median samples}) if cache.kind=lsh
column peer: {seconds * 1000:.0f} if peer!=-
column gain: {[full, ms] / [peer]:.2f}
"""
TABLE = """| context | full, ms | lsh | peer | gain |
| --- | ---: | ---: | ---: | ---: |
| 1,024 | 3.0 | 1.5 (2) | 9 | 0.33 |
"""


class Tables(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder, old = Path(folder.name), tables.RECORDS
        self.addCleanup(setattr, tables, "RECORDS", old)
        tables.RECORDS = self.folder
        (self.folder / "bench.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))

    def run_on(self, text, *flags):
        page, out = self.folder / "page.md", io.StringIO()
        page.write_text(text, encoding="utf-8")
        old, sys.argv = sys.argv, ["make-tables.py", *flags, str(page)]
        with contextlib.redirect_stdout(out):
            status = tables.main()
        sys.argv = old
        return status, out.getvalue(), page.read_text(encoding="utf-8")

    def test_makes_rows_columns_and_ratios(self):
        self.assertEqual(tables.table(MARKER), TABLE)
        self.assertEqual(tables.table("bench.jsonl\nrow a: if line=1|2\nrow b: if file=bench & line=3\n"
                                      "column steps: {count decode_step.p50} if phase=decode\n"
                                      "column s: {seconds} if seconds!=-"),
                         "| | steps | s |\n| --- | ---: | ---: |\n| a | 2 | |\n| b | | 0.009 |\n")
        self.assertEqual(tables.table("bench.jsonl\nrow a: if line=1\n"
                                      "column mean: {mean samples} [{low95 samples:.2f}, {high95 samples:.2f}]"),
                         "| | mean |\n| --- | ---: |\n| a | 3 [-3.57, 9.57] |\n")

    def test_check_finds_a_changed_number(self):
        page = f"# Page\n\n<!-- table: {MARKER}-->\n\n{TABLE}\n<!-- end -->\n"
        self.assertEqual(self.run_on(page, "--check")[0], 0)
        for changed in (page.replace("| 9 |", "| 8 |"), page.replace("| 1,024 | 3.0 | 1.5 (2) | 9 | 0.33 |\n", ""),
                        page.replace("\n\n<!-- end", "\n| 2,048 | 1 | 1 | 1 | 1 |\n\n<!-- end")):
            self.assertNotEqual(changed, page)
            status, out, text = self.run_on(changed, "--check")
            self.assertEqual((status, text), (1, changed))
            self.assertIn("page.md:3: expected '", out)
            self.assertEqual(self.run_on(changed)[2], page)

    def test_says_what_cannot_be_made(self):
        for marker, fault in (("bench.jsonl\nrows c: {line}\ncolumn x: {none}", "expected a value of 'none', found none"),
                              ("bench.jsonl\nrow c: if line=9\ncolumn x: {line}", "row c: expected records, found none"),
                              ("bench.jsonl\nrow c: if line=1\ncolumn x: {line} if line=2", "column x: expected records"),
                              ("bench.jsonl\nrow c: if phase=decode\ncolumn x: {line}", "expected one record for {line}"),
                              ("bench.jsonl\nwhere phase", "expected FIELD=VALUE, found 'phase'"),
                              ("bench.jsonl\nsort x", "expected where, rows, row or column, found 'sort x'"),
                              ("none.jsonl\nrows c: {line}", "No such file")):
            status, out, _ = self.run_on(f"<!-- table: {marker}\n-->\n<!-- end -->\n")
            self.assertEqual(status, 1)
            self.assertIn(fault, out)
        status, out, _ = self.run_on(f"<!-- table: {MARKER}-->\n{TABLE}", "--check")
        self.assertEqual(status, 1)
        self.assertIn("expected '<!-- end -->' after each table", out)


class Pages(unittest.TestCase):
    def test_tables_of_all_pages_are_those_of_their_records(self):
        out, old = io.StringIO(), sys.argv
        sys.argv = ["make-tables.py", "--check"]
        with contextlib.redirect_stdout(out):
            status = tables.main()
        sys.argv = old
        self.assertEqual(status, 0, out.getvalue())


if __name__ == "__main__":
    unittest.main()
