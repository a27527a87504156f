#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/model_table.py writes configurations that hold together, reads bench model's rows, and divides the right numbers."""
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import model_table  # noqa: E402

ROW = {"weight_bytes": 61e9, "load_s": 1.5, "batch_size": 8, "input_len": 64, "prefill_ms": 9.0, "prefill_tok_s": 1.0,
       "new_tokens": 128, "decode_ms": 8.0, "decode_tok_s": 1000.0, "copy_tb_s": 4.2, "floor_ms": 6.4, "ratio": 1.25}
PROMPT = {"weight_bytes": 61e9, "load_s": 1.5, "batch_size": 16, "input_len": 1024, "prefill_ms": 200.0,
          "prefill_tok_s": 81840.0}
PROFILE = {"profile_batch_size": 1, "input_len": 64, "us": 10.0,
           "kernels": [{"name": f"k{i}", "count": 2, "us": 0.5} for i in range(20)]}


class ModelTable(unittest.TestCase):
    def log(self, folder, name, lines):
        path = pathlib.Path(folder) / name
        path.write_text("\n".join(lines) + "\n")
        return path

    def test_configurations(self):
        with tempfile.TemporaryDirectory() as folder:
            model_table.write_configs(folder)
            for name in model_table.CONFIGS:
                config = json.loads((pathlib.Path(folder) / name / "config.json").read_text())
                self.assertEqual(len(config.get("hybrid_override_pattern", "x" * config["num_hidden_layers"])),
                                 config["num_hidden_layers"])

    def test_rows(self):
        with tempfile.TemporaryDirectory() as folder:
            path = self.log(folder, "speed-qwen3-30b-a3b-bf16.log",
                            ["loading", json.dumps(ROW), json.dumps(PROMPT), json.dumps(PROFILE), "{broken"])
            found = model_table.read_logs([path])
        text = "\n".join(model_table.table(found))
        self.assertIn("| qwen3-30b-a3b bf16 | 8 | 8.000 | 6.40 | 1.25 | 1000 | 876 | 1.14 | 1170 | 0.85 |", text)
        self.assertIn("| qwen3-30b-a3b bf16 | 16x1024 | 200.0 | 81840 | 68200 | 1.20 | 92000 | 0.89 |", text)
        self.assertIn("| qwen3-30b-a3b bf16 | 61.0 | 1.50 |", text)
        self.assertNotIn("6 others", text)
        self.assertIn("| 6 others | 12 | 3.0 | 0.25 | 30.0 |", list(model_table.kernel_tables(found)))

    def test_floors_are_at_the_best_rate_of_the_run(self):
        with tempfile.TemporaryDirectory() as folder:
            fast, slow = {**ROW, "step_bytes": 4.2e9 * 6.4}, {**ROW, "copy_tb_s": 3.5, "floor_ms": 7.7, "step_bytes": 4.2e9 * 6.4}
            paths = [self.log(folder, f"speed-qwen3-30b-a3b-{name}.log", [json.dumps(row)])
                     for name, row in (("bf16", fast), ("fp8", slow))]
            text = "\n".join(model_table.table(model_table.read_logs(paths)))
        self.assertIn("at the 4.20 TB/s of copies", text)
        for name in ("bf16", "fp8"):
            self.assertIn(f"| qwen3-30b-a3b {name} | 8 | 8.000 | 6.40 | 1.25 | 1000 |", text)

    def test_other_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            long = {**ROW, "input_len": 8192, "token_bytes": 98304}
            profile = {"profile_batch_size": 8, "input_len": 8192, "us": 9000.0,
                       "kernels": [{"name": "attention_kernel", "count": 48, "us": 3000.0}, {"name": "x", "count": 1, "us": 6000.0}]}
            drafts = [{"decode_tok_s": 500.0}, {"decode_tok_s": 400.0, "accept_length": 1.01, "speculative_num_steps": 1},
                      {"decode_tok_s": 510.0, "accept_length": 1.0, "speculative_num_steps": 3, "speculative_fixed_steps": False}]
            paths = [self.log(folder, "speed-qwen3-30b-a3b-bf16.log", [json.dumps({**ROW, "decode_ms": 6.0})]),
                     self.log(folder, "speed-qwen3-30b-a3b-bf16+long.log", [json.dumps(long), json.dumps(profile)]),
                     self.log(folder, "speed-qwen3-30b-a3b-bf16+deterministic.log", [json.dumps({**ROW, "decode_tok_s": 970.0})]),
                     self.log(folder, "speed-deepseek-v3-4-layers-mtp-bf16+drafts.log", map(json.dumps, drafts))]
            text = "\n".join(model_table.table(model_table.read_logs(paths), paths))
        # 8 * 8192 * 98304 bytes in 3 ms are 2.15 TB/s of 4.2.
        # A step of 64 tokens takes 6 ms: 8 * 8128 * 98304 bytes in the other 2 ms are 3.2 TB/s.
        self.assertIn("| qwen3-30b-a3b bf16 | 8 | 8192 | 8.000 | 6.40 | 1.25 | 1000 | 3000 | 51 | 76 |", text)
        self.assertIn("| qwen3-30b-a3b bf16 | 8 | 970 | 1000 | 0.97 |", text)
        self.assertIn("| deepseek-v3-4-layers-mtp bf16 | 0 | 500 |  | 1.00 |", text)
        self.assertIn("| deepseek-v3-4-layers-mtp bf16 | 1 | 400 | 1.01 | 0.80 |", text)
        self.assertIn("| deepseek-v3-4-layers-mtp bf16 | up to 3 | 510 | 1.00 | 1.02 |", text)
        self.assertEqual(text.count("| qwen3-30b-a3b bf16 | 8 | 6.000 | 6.40 | 1.25 | 1000 |"), 1)

    def test_without_peers(self):
        with tempfile.TemporaryDirectory() as folder:
            path = self.log(folder, "speed-qwen3-30b-a3b-bf16.log", [json.dumps(ROW), json.dumps(PROMPT)])
            text = "\n".join(model_table.table(model_table.read_logs([path]), peers=()))
        self.assertNotIn("vLLM", text)
        for row in ("| qwen3-30b-a3b bf16 | 8 | 8.000 | 6.40 | 1.25 | 1000 |", "| qwen3-30b-a3b bf16 | 16x1024 | 200.0 | 81840 |"):
            self.assertIn(row + "\n", text)

    def test_models_without_figures(self):
        with tempfile.TemporaryDirectory() as folder:
            path = self.log(folder, "speed-deepseek-v3-4-layers-bf16.log",
                            [json.dumps({**ROW, "batch_size": 3, "decode_tok_s": 375.0})])
            found = model_table.read_logs([path])
            self.assertEqual(list(found), [("deepseek-v3-4-layers", "bf16")])
            row = next(iter(model_table.decode_rows(found)))
        self.assertEqual(row.count("|"), 11)
        self.assertIn("| 375 |", row)


if __name__ == "__main__":
    unittest.main()
