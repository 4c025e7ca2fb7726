#!/usr/bin/env python3
"""Tests scripts/import-sequoia-tree.py on files laid out as torch.save does, written here without torch."""

import array
import collections
import io
import json
import pickle
import subprocess
import sys
import tempfile
import types
import unittest
import zipfile
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/import-sequoia-tree.py"

torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
sys.modules.update({"torch": torch, "torch._utils": utils})
for name in ("LongStorage", "FloatStorage"):
    setattr(torch, name, type(name, (), {"__module__": "torch"}))


def _rebuild_tensor_v2(*_):
    raise AssertionError("only its name is pickled")


_rebuild_tensor_v2.__module__ = "torch._utils"
utils._rebuild_tensor_v2 = _rebuild_tensor_v2


class Storage:
    def __init__(self, kind, numbers):
        self.kind, self.numbers = kind, numbers


class Tensor:
    """Rows of equal length, or one row; column-major if transposed."""

    def __init__(self, kind, rows, transposed=False):
        rows = [list(r) for r in rows] if isinstance(rows[0], list) else list(rows)
        self.size = (len(rows), len(rows[0])) if isinstance(rows[0], list) else (len(rows),)
        flat = rows
        self.stride = (1,)
        if len(self.size) == 2:
            flat = [x for r in (zip(*rows) if transposed else rows) for x in r]
            self.stride = (1, self.size[0]) if transposed else (self.size[1], 1)
        self.storage = Storage(kind, flat)

    def __reduce__(self):
        return _rebuild_tensor_v2, (self.storage, 0, self.size, self.stride, False,
                                    collections.OrderedDict())


def save(path, content, device="cpu"):
    """What torch.save writes, as far as the reader looks at it."""
    payloads = []

    class Writer(pickle.Pickler):
        def persistent_id(self, value):
            if not isinstance(value, Storage):
                return None
            code = {"LongStorage": "q", "FloatStorage": "f"}[value.kind]
            payloads.append(array.array(code, value.numbers).tobytes())
            return "storage", getattr(torch, value.kind), str(len(payloads) - 1), device, len(value.numbers)

    pickled = io.BytesIO()
    Writer(pickled, protocol=2).dump(content)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{path.stem}/data.pkl", pickled.getvalue())
        for i, payload in enumerate(payloads):
            archive.writestr(f"{path.stem}/data/{i}", payload)
        archive.writestr(f"{path.stem}/version", "3\n")


def growmap(transposed=False):
    mask = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [1, 0, 1, 0, 1]]
    return {"roots": [[0], [1, 2], [3, 4]], "branches": [[2], [1, 1], [0, 0]],
            "Successors": [[1, 2], [3], [4], [], []], "mask": Tensor("LongStorage", mask, transposed),
            "depth": Tensor("LongStorage", [0, 1, 1, 2, 2]), "size": 5}


class Import(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.file = Path(self.folder.name) / "map.pt"
        self.out = Path(self.folder.name) / "out.json"

    def run_script(self, *flags):
        return subprocess.run([sys.executable, SCRIPT, self.file, "-o", self.out, *flags],
                              capture_output=True, text=True)

    def test_tree(self):
        for transposed in (False, True):
            save(self.file, growmap(transposed))
            self.assertEqual(self.run_script("--overwrite").stderr, "")
            self.assertEqual(json.loads(self.out.read_text()), {
                "format": "sequoia-tree/1", "size": 5, "levels": 3, "widths": [1, 2, 2],
                "branch_counts": [2, 1, 1, 0, 0], "parents": [-1, 0, 0, 1, 2],
                "child_positions": [0, 1, 2, 1, 1], "source": "map.pt"})

    def test_maps_that_contradict_themselves(self):
        for key, value in {"size": 6, "roots": [[0], [2, 1], [3, 4]], "depth": Tensor("LongStorage", [0] * 5),
                           "Successors": [[2, 1], [3], [4], [], []], "branches": [[2], [0, 1], [0, 0]],
                           "mask": Tensor("LongStorage", [[1] * 5] * 5)}.items():
            save(self.file, {**growmap(), key: value})
            run = self.run_script()
            self.assertEqual(run.returncode, 1, key)
            self.assertIn("map.pt: ", run.stderr)
            self.assertFalse(self.out.exists())

    def test_vector(self):
        save(self.file, Tensor("FloatStorage", [0, .5, .25, .25]), device="cuda:0")
        self.assertEqual(self.run_script().returncode, 2)  # which layout?
        self.run_script("--layout", "padded_residual")
        self.assertEqual(json.loads(self.out.read_text()), {
            "format": "acceptance-vector/1", "method": "sequoia", "p": [.5, .25], "residual": .25,
            "source": "map.pt"})
        self.assertEqual(self.run_script("--layout", "padded").returncode, 2)  # exists
        self.run_script("--layout", "padded", "--overwrite", "--method", "topk-greedy")
        self.assertEqual(json.loads(self.out.read_text())["p"], [.5, .25, .25])
        save(self.file, Tensor("FloatStorage", [0, .5, .25]))
        self.assertIn("--layout padded?",
                      self.run_script("--layout", "padded_residual", "--overwrite").stderr)

    def test_other_files(self):
        self.file.write_text("no archive")
        self.assertIn("no zip archive", self.run_script().stderr)
        save(self.file, {"size": 3})
        self.assertIn("lacks Successors, branches", self.run_script().stderr)
        save(self.file, collections.Counter())  # a class that no tree needs
        self.assertIn("found a collections.Counter", self.run_script().stderr)


if __name__ == "__main__":
    unittest.main()
