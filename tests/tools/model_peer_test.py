# SPDX-License-Identifier: Apache-2.0
"""bench/model_peer.py reads what the two llama-bench print, and its table divides the right numbers."""
import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import model_peer  # noqa: E402
import model_shapes  # noqa: E402

BUILD = {"build_commit": "8337e4c", "build_number": 5}


def line(prompt, new, samples, **more):
    return {**BUILD, "n_prompt": prompt, "n_gen": new, "avg_ts": 0, "samples_ts": samples, **more}


class Peer(unittest.TestCase):
    def test_the_fork_says_prompt_and_new_tokens(self):
        text = json.dumps([line(512, 0, [700, 750, 600]), line(512, 64, [50, 57, 56], test="tg64@pp512")])
        self.assertEqual(model_peer.parse_peer(text), ({"512": {"prefill": 700, "decode": 56}}, "8337e4c (5)"))

    def test_the_original_says_depth(self):
        text = json.dumps([line(0, 64, [49], n_depth=512), line(0, 64, [34], n_depth=4096), line(512, 0, [301], n_depth=0)])
        self.assertEqual(model_peer.parse_peer(text)[0],
                         {"512": {"decode": 49, "prefill": 301}, "4096": {"decode": 34}})

    def test_median_over_rounds(self):
        run = lambda ours, theirs: {"case": "qwen3-bf16", "busy": False, "probe": ours, "cells": {
            "sluice": {"512": {"prefill": 10 * ours, "decode": ours}}, "ik": {"512": {"prefill": 10 * theirs, "decode": theirs}}}}
        runs = [run(40, 50), run(60, 80), run(44, 40)]
        self.assertEqual(model_peer.medians(runs), {("qwen3-bf16", False, 512): {
            "sluice": (440, 44), "ik": (500, 50), "probe": 44, "rounds": 3}})
        text = "\n".join(model_peer.table({"about": {"threads": 2, "sluice": "abc"}, "runs": runs}))
        self.assertIn("| 440 / 500 | 0.88 | 44.0 / 50.0 | 0.88 |", text)

    def test_interrupted_round(self):  # the peer did not come to its turn
        runs = [{"case": "qwen3-bf16", "busy": False, "probe": 30, "cells": {"sluice": {"512": {"prefill": 1, "decode": 1}}}}]
        self.assertEqual(model_peer.medians(runs)["qwen3-bf16", False, 512]["rounds"], 1)
        self.assertNotIn("###", "\n".join(model_peer.table({"about": {"threads": 2, "sluice": "abc"}, "runs": runs})))


class Formats(unittest.TestCase):
    def test_the_head_is_in_the_format_of_the_rest(self):
        case = model_peer.CASES["qwen3-mxfp4-8bit"]
        self.assertEqual(model_peer.sluice_words(case), ["--quantization", "mxfp4", "--quantization-rest", "mxfp8",
                                                         "--quantization-head", "mxfp8"])
        self.assertEqual(model_peer.describe(case.theirs), "MXFP4, rest and head Q8_0")
        self.assertEqual(model_peer.describe(model_peer.CASES["qwen3-8bit"].ours), "MXFP8")
        self.assertEqual(model_peer.sluice_words(model_peer.CASES["qwen3-bf16"]), [])

    def test_a_step_reads_the_head_in_8_bits(self):
        # By hand: the head [151936, 2048], and attention (2 x 2048 x 4096 + 2 x 2048 x 512) of 4 layers. Q8_0 has a scale of
        # 16 bits for each 32 values, MXFP8 one of 8.
        values = 151936 * 2048 + 4 * (2 * 2048 * 4096 + 2 * 2048 * 512)
        case = model_peer.CASES["qwen3-mxfp4-8bit"]
        ours, theirs = (model_peer.step_bytes(case, program, 512) for program in ("sluice", "ik"))
        self.assertEqual(theirs - ours, values / 32)
        wide = model_peer.step_bytes(model_peer.CASES["qwen3-mxfp4-bf16"], "sluice", 512)
        self.assertEqual(wide - ours, values * (2 - 33 / 32))


class Shapes(unittest.TestCase):
    def test_bytes_of_a_step(self):
        # By hand: 4 layers of 8 experts (3 x 2048 x 768), attention (2 x 2048 x 4096 + 2 x 2048 x 512), a router and norms
        # in float32, the head, the last norm, and 512 rows of keys and values (4 x 128 each).
        layer = 2 * (8 * 3 * 2048 * 768 + 2 * 2048 * 4096 + 2 * 2048 * 512) + 4 * (128 * 2048 + 2 * 2048 + 2 * 128)
        expected = 4 * layer + 2 * 151936 * 2048 + 4 * 2048 + 4 * 512 * 2 * 512 * 2
        bits = {"experts": 16, "rest": 16, "head": 16}
        self.assertEqual(model_shapes.step_bytes(model_shapes.QWEN3, bits, 512), expected)

    def test_published_sizes(self):
        """With all layers, experts and words, the lists are the published models: 30.5, 671 and 31.6 billion weights."""
        nemotron = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
        whole = [({**model_shapes.QWEN3, "num_hidden_layers": 48}, 30.5),
                 ({**model_shapes.DEEPSEEK, "num_hidden_layers": 61, "first_k_dense_replace": 3, "n_routed_experts": 256,
                   "vocab_size": 129280}, 671.0),
                 ({**model_shapes.NEMOTRON, "num_hidden_layers": 52, "hybrid_override_pattern": nemotron, "vocab_size": 131072}, 31.6)]
        for config, billions in whole:
            total = 0
            for w in model_shapes.weights(config):
                size = 1
                for n in w.shape:
                    size *= n
                total += size
            self.assertAlmostEqual(total / 1e9, billions, delta=0.05)


if __name__ == "__main__":
    unittest.main()
