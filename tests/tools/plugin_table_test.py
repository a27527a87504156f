# SPDX-License-Identifier: Apache-2.0
"""bench/plugin_table.py writes a configuration that quantises experts alone, and a table that divides the right numbers."""
import argparse
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import plugin_table  # noqa: E402


class PluginTable(unittest.TestCase):
    def test_experts_alone_are_quantised(self):
        for form, how in plugin_table.FORMATS.items():
            config = plugin_table.config_of(form, 3)
            self.assertEqual(config["num_hidden_layers"], 3)
            if how is None:
                self.assertNotIn("quantization_config", config)
                continue
            kept = config["quantization_config"][how[1]]
            self.assertIn("model.layers.2.self_attn.o_proj", kept)
            self.assertFalse([name for name in kept if "experts" in name or ".3." in name])

    def test_ratio_is_the_plug_ins_rate_over_vllms(self):
        state = {"about": {"gpu": "G", "layers": 24}, "runs": {
            "nvfp4 vllm": {"tok_s": {"1": [200.0], "8": [1000.0]}, "sluice_layers": 0},
            "nvfp4 sluice": {"tok_s": {"1": [250.0]}, "sluice_layers": 24},
            "mxfp8 vllm": {"tok_s": {}, "error": "ValueError: a | b"}}}
        text = "\n".join(plugin_table.table(state, "abc"))
        self.assertIn("24 of its 48 layers", text)
        self.assertIn("Sluice at abc", text)
        self.assertIn("| NVFP4 | 200 / 250 (1.25) | 1,000 / - |  |", text)
        self.assertIn("| MXFP8 | - / - | - / - | vLLM: ValueError: a / b |", text)

    def test_a_column_that_is_not_what_it_says_has_a_note(self):
        state = {"about": {"layers": 48}, "runs": {
            "fp8 vllm": {"tok_s": {"1": [2.0]}, "sluice_layers": 48}, "fp8 sluice": {"tok_s": {"1": [2.0]}, "sluice_layers": 0}}}
        text = "\n".join(plugin_table.table(state, ""))
        self.assertIn("the plug-in ran 0 of 48 layers; the plug-in ran in vLLM's own column", text)

    def test_the_other_engine_has_its_name(self):
        state = {"about": {"engine": "sglang", "version": "0.5"}, "runs": {
            "bf16 sglang": {"tok_s": {"8": [4.0]}, "sluice_layers": 0}, "bf16 sluice": {"tok_s": {"8": [5.0]}, "sluice_layers": 48}}}
        text = "\n".join(plugin_table.table(state, ""))
        self.assertIn("SGLang 0.5, torch ?", text)
        self.assertIn("| BF16 | 4 / 5 (1.25) |  |", text)

    def test_several_processes_have_a_median_and_are_listed(self):
        state = {"about": {"layers": 48}, "runs": {
            "fp8 vllm": {"tok_s": {"1": [200.0, 260.0, 210.0]}}, "fp8 sluice": {"tok_s": {"1": [231.0, 229.0]}, "sluice_layers": 48}}}
        lines = list(plugin_table.table(state, ""))
        self.assertIn("| FP8 per tensor | 210 / 230 (1.10) |  |", lines)
        self.assertIn("| FP8 per tensor | 1 | 200, 260, 210 | 231, 229 |", lines)

    def test_rounds_measure_what_the_state_lacks(self):
        with tempfile.TemporaryDirectory() as folder:
            state = pathlib.Path(folder, "state.json")
            state.write_text(json.dumps({"about": {}, "runs": {"bf16 vllm": {"tok_s": {"1": [2.0, 2.0], "8": [9.0]}}}}))
            table = plugin_table.Table(argparse.Namespace(state=state, seconds=1, batches=[1]), folder)
            self.assertEqual(table.processes("bf16", "vllm"), 2)
            self.assertEqual(table.processes("bf16", "sluice"), 0)
            table.o.batches = [1, 8]
            self.assertEqual(table.processes("bf16", "vllm"), 1)


if __name__ == "__main__":
    unittest.main()
