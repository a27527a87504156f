#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/before_after.py runs its programs in turn and calls a cell slower by both ratios only. No program is run here."""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import types
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import before_after  # noqa: E402


class BeforeAfter(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-test-")
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)
        for side in before_after.SIDES:
            (self.work / f"{side}.commit").write_text(f"{side}0123\n")

    def table(self, state):
        (self.work / "times.json").write_text(json.dumps(state))
        with contextlib.redirect_stdout(io.StringIO()) as out:
            slower = before_after.table(types.SimpleNamespace(work=self.work))
        return slower, out.getvalue()

    @staticmethod
    def cell(after, before=(100, 100, 100)):
        return {f"T={t}": {"before": list(before), "after": list(after)} for t in before_after.MOE_TOKENS}

    def test_a_cell_is_slower_by_both_ratios_only(self):
        cell = "moe/qwen3-30b-a3b/bf16"
        for after, slower in (((100, 99, 98), 0), ((97, 97, 97), 1), ((100, 80, 80), 0), ((97, 99, 97), 0)):
            code, text = self.table({cell: self.cell(after)})
            self.assertEqual(code, slower, text)
            self.assertEqual("Below 0.98" in text, bool(slower), text)
        self.assertIn("`before0` against `after01`", text)
        self.assertIn("| qwen3-30b-a3b | bf16 | 0.99 (0.97) |", text)

    def test_programs_take_turns(self):
        ran = []

        def rates(_, side, name, weights):
            ran.append(side)
            return {"T=1": 1.0}

        self.addCleanup(setattr, before_after, "measure_moe", before_after.measure_moe)
        before_after.measure_moe = rates
        options = types.SimpleNamespace(work=self.work, rounds=3, quick=False, cells=["moe/qwen3-30b-a3b/bf16"])
        with contextlib.redirect_stderr(io.StringIO()):
            before_after.measure(options)
        self.assertEqual(ran, ["before", "after", "after", "before", "before", "after"])
        state = json.loads((self.work / "times.json").read_text())
        self.assertEqual(state["moe/qwen3-30b-a3b/bf16"]["T=1"], {"before": [1.0] * 3, "after": [1.0] * 3})


if __name__ == "__main__":
    unittest.main()
