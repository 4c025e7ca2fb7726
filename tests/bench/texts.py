#!/usr/bin/env python3
"""Tests scripts/compare-texts.py and scripts/bench/ranks.sh: they find each fault of planted texts."""
import contextlib
import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
specification = importlib.util.spec_from_file_location("texts", ROOT / "scripts/compare-texts.py")
texts = sys.modules["texts"] = importlib.util.module_from_spec(specification)
specification.loader.exec_module(texts)


def token(seq, at):
    return {"event": "token", "seq": seq, "id": 7 + at, "text": f" {at}", "logprob": -0.5, "t_ms": 1.0}


def events_of(case):
    """Three tokens of each sequence, its end, and a summary."""
    for seq in range(len(case.prompts)):
        yield from (token(seq, at) for at in range(3))
        yield {"event": "finish", "seq": seq, "text": "", "reason": "length"}
    yield {"event": "summary", "rounds": 5, "decode_ms": 1.0}


class CompareTexts(unittest.TestCase):
    def status(self, old, new):
        """The exit status where each build changes its events of a case by a function."""
        changes, out = {"old": old, "new": new}, io.StringIO()
        run = lambda build, case, seed: list(changes[build.folder.name](list(events_of(case))))
        with mock.patch.object(texts.Build, "run", run), mock.patch.object(sys, "argv", ["compare-texts.py", "old", "new"]), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), self.assertRaises(SystemExit) as end:
            texts.main()
        return end.exception.code

    def test_equal_texts_pass_and_each_difference_is_found(self):
        same = lambda events: events
        change = lambda kind, **fields: lambda events: [
            e | fields if e["event"] == kind and e.get("seq", 0) == 0 else e for e in events]
        self.assertEqual(self.status(same, same), 0)
        self.assertEqual(self.status(same, change("token", t_ms=9.0)), 0)
        for fault, status in ((change("token", id=3), 1), (change("token", text="x"), 1), (change("token", logprob=-0.51), 1),
                              (change("finish", reason="stop"), 1), (change("summary", rounds=6), 1),
                              (lambda events: events[1:], 1), (lambda events: events[4:], 2),
                              (lambda events: events + [token(99, 0)], 2)):
            self.assertEqual(self.status(same, fault), status)
        without = lambda events: [e for e in events if e["event"] != "token"]
        self.assertEqual(self.status(without, without), 2)


# A tool that writes tokens. Rank 0 of two makes the fault planted for its arguments.
TOOL = """#!/bin/sh
case "$*" in *run.rank=0*) faults=$FAULTS ;; esac
fault=
for pair in $faults; do case "$*" in *${pair%%:*}*) fault=${pair##*:} ;; esac; done
id=$([ "$fault" = token ] && echo 8 || echo 7)
case "$*" in
  *jsonl\\ -q*) line='{"event": "token", "id": '$id', "logprob": -0.1, "top": [[7, -0.1], [8, -2]]}' ;;
  *) line="pass $id" ;;
esac
case $fault in none) ;; cut) printf %.20s "$line" ;; *) echo "$line" ;; esac
[ "$fault" != status ]
"""


class Ranks(unittest.TestCase):
    def start(self, faults):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        tools = dict.fromkeys(("pig-generate", "sequoia-generate", "triforce-generate", "sirius-generate", "spec-check"), TOOL)
        for tool, text in (tools | {"nvidia-smi": "#!/bin/sh\n"}).items():  # no two GPUs: two processes share one
            path = Path(folder.name) / tool
            path.write_text(text)
            path.chmod(0o755)
        variables = {"FAULTS": " ".join(faults), "PATH": f"{folder.name}:{os.environ['PATH']}"}
        return subprocess.Popen(["bash", ROOT / "scripts/bench/ranks.sh", folder.name, f"{folder.name}/out", "texts"],
                                env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def test_equal_texts_pass_and_each_difference_is_found(self):
        planted = {"run.batch=20:token": "tree: differs", "self-tiny-16m:status": "self-draft: differs",
                   "triforce/:none": "nested: differs", "kind=hybrid:token": "hybrid: 0 of 1 tokens", "attend=cpu:cut": "hybrid-host-cpu: fails",
                   "weights=int8:status": "int8: fails", "weights=fp8:none": "fp8: fails", "n_prompts=4:status": "spec-check on two GPUs: pass"}
        run, faulty = self.start([]), self.start(planted)
        out = run.communicate()[0]
        self.assertEqual((run.returncode, out.count("equal")), (0, 19), out)
        out = faulty.communicate()[0]
        self.assertEqual(faulty.returncode, 1, out)
        for fault, line in planted.items():
            self.assertIn(f"\n{line}", out, fault)
        self.assertEqual(out.count("DIFFERS"), 6, out)


if __name__ == "__main__":
    unittest.main()
