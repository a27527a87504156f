# SPDX-License-Identifier: Apache-2.0
"""Whole checkpoints through the commands: what the goldens and cards say, and what must not depend on how one gets there.

usage: models_test.py PROGRAM SOURCE_FOLDER [unittest arguments]     SLUICE_TEST_MODELS: the trained checkpoints
"""
import array
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM, SOURCE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
BUNDLED = SOURCE / "models" / "tiny-nemotron-h"
MODELS = os.environ.get("SLUICE_TEST_MODELS", "")
TRAINED = ("tiny-qwen3-moe", "tiny-nemotron-h", "tiny-deepseek-v3")
needs_models = unittest.skipUnless(MODELS, "SLUICE_TEST_MODELS is not set; it names the folder that holds tiny-qwen3-moe and others")


def run(*words, env=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    result = subprocess.run([PROGRAM, *map(str, words)], env={**clean, **(env or {})}, text=True, capture_output=True)
    if result.returncode:
        raise AssertionError(f"{words}: {result.stderr}")
    return result


def tensor(path, name):
    """(shape, values) of an F32 or I32 tensor."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(length))[name]
        begin, end = entry["data_offsets"]
        file.seek(8 + length + begin)
        return entry["shape"], array.array({"F32": "f", "I32": "i"}[entry["dtype"]], file.read(end - begin))


def decoded(model, ids):
    """The text of byte-level BPE tokens, from tokenizer.json's own vocabulary."""
    names = {i: name for name, i in json.loads((model / "tokenizer.json").read_text())["model"]["vocab"].items()}
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in visible]
    byte = {chr(b): b for b in visible} | {chr(256 + i): b for i, b in enumerate(hidden)}
    return bytes(byte[c] for i in ids for c in names[i]).decode()


class Models(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def logits(self, model, *options, env=None, ids=None):
        out = self.folder / "logits.safetensors"
        out.unlink(missing_ok=True)
        run("eval", "logits", "--model-path", model, "--input-ids", ids or self.ids(), "-o", out, *options, env=env)
        return tensor(out, "logits")

    def ids(self):
        """40 tokens in a file of their own."""
        path, values = self.folder / "ids.safetensors", array.array("i", [(i * i * 31 + 7 * i) % 4096 for i in range(40)])
        header = json.dumps({"input_ids": {"dtype": "I32", "shape": [1, 40], "data_offsets": [0, 160]}}).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + values.tobytes())
        return path


class Goldens(Models):
    @needs_models
    def test_every_logit(self):
        for name in TRAINED:
            golden = pathlib.Path(MODELS) / name / "golden.safetensors"
            expected_shape, expected = tensor(golden, "logits")
            shape, actual = self.logits(golden.parent, "--dtype", "float32", ids=golden)
            self.assertEqual(shape, expected_shape)
            wrong = sum(not abs(a - e) <= 2e-4 + 2e-4 * abs(e) for a, e in zip(actual, expected))
            self.assertEqual(wrong, 0, name)

    @needs_models
    def test_perplexity(self):
        for name in TRAINED:
            model = pathlib.Path(MODELS) / name
            card = json.loads((model / "expected.json").read_text())["valid"]
            result = json.loads(run("eval", "perplexity", "--model-path", model, "--text", model / "valid.txt", "--dtype",
                                    "float32", "--json").stdout)
            self.assertEqual(set(result), {"ppl", "scored_tokens", "nll_sum", "window_nll"})
            self.assertEqual(len(result["window_nll"]), -(-(result["scored_tokens"] + len(result["window_nll"])) // 512))
            self.assertAlmostEqual(sum(result["window_nll"]) / result["nll_sum"], 1, delta=1e-12)
            self.assertEqual(result["scored_tokens"], card["scored_tokens"])
            self.assertEqual(f"{result['ppl']:.5g}", f"{card['ppl']:.5g}", name)
            self.assertAlmostEqual(result["nll_sum"] / card["nll_sum"], 1, delta=1e-6)

    @needs_models
    def test_greedy_text(self):
        for name in TRAINED:
            model = pathlib.Path(MODELS) / name
            prompt, expected = (list(tensor(model / "golden.safetensors", f"greedy.{part}_ids")[1]) for part in ("prompt", "output"))
            result = json.loads(run("generate", "--model-path", model, "--prompt", decoded(model, prompt), "--max-new-tokens",
                                    len(expected), "--temperature", 0, "--dtype", "float32", "--json", "--ignore-eos").stdout)
            self.assertEqual(result["prompt_ids"], prompt, name)
            self.assertEqual(result["output_ids"], expected, name)
            self.assertEqual(result["text"], decoded(model, expected), name)

    @needs_models
    def test_speculation_gives_the_plain_text_and_prints_its_rate(self):
        model = pathlib.Path(MODELS) / "tiny-deepseek-v3"
        words = ["generate", "--model-path", model, "--prompt", "Once upon a time", "--max-new-tokens", 200, "--ignore-eos"]
        for form in ([], ["--quantization", "fp8_block"], ["--quantization", "nvfp4_online"]):
            plain = run(*words, *form).stdout
            for steps in (1, 2, 3, 5):
                for fixed in ([], ["--speculative-fixed-steps"]):
                    result = run(*words, *form, "--speculative-algorithm", "NEXTN", "--speculative-num-steps", steps, *fixed)
                    self.assertEqual(result.stdout, plain, (form, steps, fixed))
                    self.assertRegex(result.stderr, r"accept rate [01]\.\d{3}, accept length [1-6]\.\d\d")


class Formats(Models):
    def test_online_is_quantize_and_reload(self):
        text = self.folder / "text.txt"
        text.write_text((BUNDLED / "valid.txt").read_text()[:4000])
        for name in ("fp8", "fp8_channel", "fp8_block", "mxfp8", "nvfp4", "mxfp4"):
            calibrated = name == "nvfp4"
            online = self.logits(BUNDLED, "--quantization", name, *(["--calibration-text", text] if calibrated else []))
            written = self.folder / name
            run("quantize", BUNDLED, written, "--format", name, *(["--calibration", text] if calibrated else []))
            self.assertEqual(self.logits(written), online, name)
            self.assertNotEqual(online, self.logits(BUNDLED), name)
            if name == "mxfp8":  # and under ModelOpt's names
                run("quantize", written, self.folder / "modelopt", "--format", name, "--modelopt")
                self.assertEqual(self.logits(self.folder / "modelopt"), online)

    def test_a_head_of_8_bits_is_written_and_read(self):
        words = ["mxfp4", "--quantization-rest", "mxfp8", "--quantization-head", "mxfp8"]
        written = self.folder / "head"
        run("quantize", BUNDLED, written, "--format", *words)
        online = self.logits(BUNDLED, "--quantization", *words)
        self.assertEqual(self.logits(written), online)
        self.assertNotEqual(self.logits(BUNDLED, "--quantization", *words[:3]), online)

    def test_static_inputs_of_the_head_are_calibrated(self):
        text, written = self.folder / "text.txt", self.folder / "head"
        text.write_text((BUNDLED / "valid.txt").read_text()[:4000])
        run("quantize", BUNDLED, written, "--format", "nvfp4", "--format-head", "nvfp4", "--calibration", text)
        self.assertEqual(self.logits(written), self.logits(
            BUNDLED, "--quantization", "nvfp4", "--quantization-head", "nvfp4", "--calibration-text", text))

    def test_the_fixtures_whose_experts_are_fused_or_biased(self):
        for model in sorted((SOURCE / "tests" / "fixtures").glob("*/")):
            for name in ("fp8", "fp8_channel", "fp8_block", "bf16"):
                ids, written = model / "golden.safetensors", self.folder / f"{model.name}-{name}"
                run("quantize", model, written, "--format", name)
                self.assertEqual(self.logits(written, ids=ids), self.logits(model, "--quantization", name, ids=ids), written.name)

    def test_per_token_nvfp4_by_option_and_by_variable(self):
        text, written = self.folder / "text.txt", self.folder / "nvfp4"
        text.write_text((BUNDLED / "valid.txt").read_text()[:4000])
        run("quantize", BUNDLED, written, "--format", "nvfp4", "--calibration", text)
        option = self.logits(written, "--nvfp4-per-token-activation")
        self.assertEqual(self.logits(written, env={"SLUICE_NVFP4_PER_TOKEN_ACTIVATION": "1"}), option)
        self.assertEqual(self.logits(BUNDLED, "--quantization", "nvfp4_online"), option)
        self.assertNotEqual(self.logits(written), option)

    def test_blackwells_extra_rounding(self):
        exact = self.logits(BUNDLED, "--quantization", "fp8_block")
        self.assertEqual(self.logits(BUNDLED, "--quantization", "fp8_block", "--fp8-block-numerics", "exact"), exact)
        self.assertNotEqual(self.logits(BUNDLED, "--quantization", "fp8_block", "--fp8-block-numerics", "trtllm"), exact)

    def test_the_cpu_sums_fp8_in_float32_either_way(self):
        for name in ("fp8", "fp8_block"):
            self.assertEqual(self.logits(BUNDLED, "--quantization", name, "--fp8-sums", "tensor-core"),
                             self.logits(BUNDLED, "--quantization", name), name)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
