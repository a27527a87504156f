# SPDX-License-Identifier: Apache-2.0
"""`sluice serve` that drafts against one that does not: the same answers, and what is said of the drafts.

usage: speculation_test.py PROGRAM SOURCE_FOLDER [unittest arguments]     SLUICE_TEST_MODELS: the trained checkpoints
"""
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from serve_driver import Server  # noqa: E402

PROGRAM, SOURCE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
MODELS = os.environ.get("SLUICE_TEST_MODELS", "")
ADAPTIVE = ("--speculative-algorithm", "NEXTN", "--speculative-num-steps", 3)
NEXTN = (*ADAPTIVE, "--speculative-fixed-steps")
PROMPTS = ("Once upon a time", "Henry meditated awhile all to himself early the next morning as", "The", "1 2 3 4 5 6")


def dummy_model(folder):
    """DeepSeek-V3's shapes with a draft layer and no weights; every tokenizer will do."""
    config = json.loads((SOURCE / "tests" / "fixtures" / "deepseek-v3" / "config.json").read_text())
    config["vocab_size"] = 4096
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).symlink_to(SOURCE / "models" / "tiny-nemotron-h" / name)
    return folder


class Pair:
    """One server with drafts, one without, of the same model."""

    @classmethod
    def start(cls, model, *words):
        words = ("--served-model-name", "tiny", *words)
        cls.plain = Server(PROGRAM, model, *words)
        cls.addClassCleanup(cls.plain.close)
        cls.drafting = Server(PROGRAM, model, *words, *NEXTN)
        cls.addClassCleanup(cls.drafting.close)

    def ok(self, server, path, body):
        status, answer = server.post(path, body)
        self.assertEqual(status, 200, answer)
        return answer

    @staticmethod
    def said(answer):
        """What two servers must agree on."""
        return ([(c.get("text", c.get("message")), c["finish_reason"], c["matched_stop"], c["logprobs"])
                 for c in answer["choices"]], answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"])

    def same(self, path, body):
        """Whole answers of both are equal, and so is the stream's text; the plain one's."""
        plain, drafted = (self.ok(s, path, body) for s in (self.plain, self.drafting))
        self.assertEqual(self.said(drafted), self.said(plain), body)
        status, events = self.drafting.stream(path, body)
        self.assertEqual(status, 200)
        for choice in plain["choices"]:
            mine = [c for e in events for c in e["choices"] if c["index"] == choice["index"]]
            text = "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in mine)
            self.assertEqual(text, choice["text"] if "text" in choice else choice["message"]["content"], body)
            self.assertEqual([c["finish_reason"] for c in mine if c["finish_reason"]], [choice["finish_reason"]])
        return plain

    def test_greedy(self):
        for prompt in PROMPTS:
            self.same("/v1/completions", {"prompt": prompt, "max_tokens": 48, "temperature": 0, "logprobs": 2})
            self.same("/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}], "max_tokens": 24,
                                               "temperature": 0})

    def test_under_a_grammar(self):
        """Drafts that the schema forbids are never accepted, and those that it allows change nothing."""
        schema = {"type": "object", "additionalProperties": False, "required": ["name", "tags"], "properties": {
            "name": {"enum": ["Henry", "Once upon a time"]}, "tags": {
                "type": "array", "items": {"enum": ["red", "green"]}, "minItems": 2, "maxItems": 3}}}
        form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}
        count = lambda: self.drafting.metric("spec_drafted_tokens_total")
        before = count()
        for prompt in PROMPTS:
            for path, words in (("/v1/completions", {"prompt": prompt}),
                                ("/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}]})):
                plain = self.same(path, {**words, "max_tokens": 200, "temperature": 0, "response_format": form})
                choice = plain["choices"][0]
                said = json.loads(choice["text"] if "text" in choice else choice["message"]["content"])
                self.assertEqual(set(said), {"name", "tags"})
                self.assertIn(said["name"], ("Henry", "Once upon a time"))
                self.assertTrue(2 <= len(said["tags"]) <= 3 and set(said["tags"]) <= {"red", "green"}, said)
                self.assertEqual(choice["finish_reason"], "stop")
        self.assertGreater(count(), before)

    def test_sampled(self):  # the random number of a position is its own, whatever was drafted before
        for seed in range(3):
            self.same("/v1/completions", {"prompt": PROMPTS[seed], "max_tokens": 32, "temperature": 0.8, "top_p": 0.95,
                                          "seed": seed, "n": 2, "ignore_eos": True})

    def test_prompts_are_scored(self):
        for tokens in (0, 12):
            body = {"prompt": PROMPTS[1], "max_tokens": tokens, "temperature": 0, "echo": True, "logprobs": 3}
            plain, drafted = (self.ok(s, "/v1/completions", body) for s in (self.plain, self.drafting))
            self.assertEqual(self.said(drafted), self.said(plain))

    def test_lengths_end_inside_a_run(self):
        for tokens in range(1, 10):
            plain = self.same("/v1/completions", {"prompt": PROMPTS[0], "max_tokens": tokens, "temperature": 0,
                                                  "ignore_eos": True})
            self.assertEqual(plain["usage"]["completion_tokens"], tokens)

    def test_stop_tokens_end_inside_a_run(self):
        body = {"text": PROMPTS[0], "sampling_params": {"max_new_tokens": 16, "temperature": 0, "ignore_eos": True}}
        ids = self.ok(self.plain, "/generate", body)["output_ids"]
        for token in sorted(set(ids)):
            plain = self.same("/v1/completions", {"prompt": PROMPTS[0], "max_tokens": 16, "temperature": 0,
                                                  "stop_token_ids": [token]})
            self.assertEqual(plain["usage"]["completion_tokens"], ids.index(token) + 1)

    def test_stop_strings_end_inside_a_run(self):
        body = {"prompt": PROMPTS[0], "max_tokens": 24, "temperature": 0, "ignore_eos": True}
        text = self.ok(self.plain, "/v1/completions", body)["choices"][0]["text"]
        for begin in range(0, len(text) - 4, 3):  # at every place of a token, and across two
            stop = text[begin:begin + 4]
            for trim in (True, False):
                plain = self.same("/v1/completions", {**body, "stop": [stop], "no_stop_trim": not trim})["choices"][0]
                self.assertEqual(plain["matched_stop"], stop)
                at = text.index(stop)
                self.assertEqual(plain["text"], text[:at if trim else at + len(stop)])

    def test_among_others(self):
        bodies = [{"prompt": p, "max_tokens": 20 + i, "temperature": 0} for i in range(4) for p in PROMPTS]
        with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
            answers = list(pool.map(lambda b: self.ok(self.drafting, "/v1/completions", b), bodies))
        for body, answer in zip(bodies, answers):
            self.assertEqual(self.said(answer), self.said(self.ok(self.plain, "/v1/completions", body)))
        self.drafting.wait_for_metric("num_used_tokens", 0)

    def test_what_is_said_of_the_drafts(self):
        body = {"text": PROMPTS[0], "sampling_params": {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True}}
        count = lambda name: self.drafting.metric(f"spec_{name}_tokens_total")
        self.drafting.wait_until_idle()
        self.ok(self.drafting, "/flush_cache", "")  # after the last step, whose numbers its answer may overtake
        before = count("drafted"), count("accepted")
        meta = self.ok(self.drafting, "/generate", body)["meta_info"]
        drafted, accepted, rounds = (meta["spec_" + n] for n in ("draft_token_num", "accept_token_num", "verify_ct"))
        self.assertTrue(0 < rounds <= drafted <= 3 * rounds, meta)
        # The first token is the prompt's; where one is missing to the end, nothing is drafted.
        self.assertIn(40 - (1 + accepted + rounds), (0, 1))
        self.assertAlmostEqual(meta["spec_accept_rate"], accepted / drafted)
        self.assertAlmostEqual(meta["spec_accept_length"], (accepted + rounds) / rounds)
        self.drafting.wait_for_metric("spec_drafted_tokens_total", before[0] + drafted)
        self.assertEqual(count("accepted"), before[1] + accepted)
        rate = self.drafting.metric("spec_accept_rate")
        self.assertAlmostEqual(rate, count("accepted") / count("drafted"), 3)
        self.assertGreaterEqual(self.drafting.metric("spec_accept_length"), 1)
        usage = self.ok(self.drafting, "/v1/completions", {"prompt": PROMPTS[0], "max_tokens": 40, "temperature": 0,
                                                           "ignore_eos": True})["usage"]
        self.assertEqual(usage["completion_tokens_details"], {"reasoning_tokens": 0,
                                                              "accepted_prediction_tokens": accepted,
                                                              "rejected_prediction_tokens": drafted - accepted})
        steps = lambda server: json.loads(server.get("/get_model_info")[2])["speculative_num_steps"]
        self.assertEqual((steps(self.drafting), steps(self.plain)), (3, 0))
        self.assertNotIn("spec_verify_ct", self.ok(self.plain, "/generate", body)["meta_info"])
        self.check_accepted(meta)

    def test_a_reload_keeps_drafting(self):
        body = {"prompt": PROMPTS[1], "max_tokens": 16, "temperature": 0}
        path = json.loads(self.drafting.get("/get_model_info")[2])["model_path"]
        self.assertTrue(self.ok(self.drafting, "/update_weights_from_disk", {"model_path": path})["success"])
        self.same("/v1/completions", body)


class Dummy(Pair, unittest.TestCase):
    """Random weights: nearly every draft is wrong."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="sluice-test-")
        cls.addClassCleanup(folder.cleanup)
        cls.start(dummy_model(pathlib.Path(folder.name)), "--load-format", "dummy")

    def check_accepted(self, meta):
        self.assertLess(meta["spec_accept_rate"], 0.2)

    def test_a_reload_keeps_drafting(self):
        """The folder holds configurations alone: there is nothing to load, and the dummies stay."""
        path = json.loads(self.drafting.get("/get_model_info")[2])["model_path"]
        status, answer = self.drafting.post("/update_weights_from_disk", {"model_path": path})
        self.assertEqual((status, answer["error"]["param"]), (400, "model_path"), answer)
        self.same("/v1/completions", {"prompt": PROMPTS[1], "max_tokens": 16, "temperature": 0})

    def test_as_many_drafts_as_pay(self):
        """The text is the target's, however many drafts are made."""
        model = json.loads(self.plain.get("/get_model_info")[2])["model_path"]
        server = Server(PROGRAM, model, "--served-model-name", "tiny", "--load-format", "dummy", *ADAPTIVE)
        self.addCleanup(server.close)
        bodies = [{"prompt": p, "max_tokens": 60, "temperature": 0, "ignore_eos": True} for p in PROMPTS for _ in range(2)]
        with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
            answers = list(pool.map(lambda b: self.ok(server, "/v1/completions", b), bodies))
        for body, answer in zip(bodies, answers):
            self.assertEqual(self.said(answer), self.said(self.ok(self.plain, "/v1/completions", body)))

    def test_other_backends_for_the_drafts(self):
        """The text is the target's, whatever runs the draft's experts."""
        model = json.loads(self.plain.get("/get_model_info")[2])["model_path"]
        server = Server(PROGRAM, model, "--served-model-name", "tiny", "--load-format", "dummy", *NEXTN,
                        "--speculative-moe-runner-backend", "reference")
        self.addCleanup(server.close)
        body = {"prompt": PROMPTS[0], "max_tokens": 16, "temperature": 0}
        self.assertEqual(self.said(self.ok(server, "/v1/completions", body)),
                         self.said(self.ok(self.plain, "/v1/completions", body)))


@unittest.skipUnless(MODELS, "SLUICE_TEST_MODELS is not set; it names the folder that holds tiny-deepseek-v3")
class Trained(Pair, unittest.TestCase):
    """A trained draft layer: most drafts are right, so that runs are long enough to be cut."""

    @classmethod
    def setUpClass(cls):
        cls.start(pathlib.Path(MODELS) / "tiny-deepseek-v3")

    def check_accepted(self, meta):
        self.assertGreater(meta["spec_accept_rate"], 0.2)
        self.assertGreater(meta["spec_accept_length"], 1.5)


class Refused(unittest.TestCase):
    def refused(self, code, needle, *words):
        result = subprocess.run([PROGRAM, "serve", *map(str, words), "--port", "0"], capture_output=True, text=True,
                                timeout=60)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertRegex(result.stderr, needle)

    def test_options(self):
        with tempfile.TemporaryDirectory(prefix="sluice-test-") as folder:
            model = dummy_model(pathlib.Path(folder))
            plain = SOURCE / "models" / "tiny-nemotron-h"
            self.refused(4, "no multi-token-prediction layer", "--model-path", plain, *NEXTN)
            self.refused(2, "requires --speculative-algorithm", "--model-path", plain,
                         "--speculative-moe-runner-backend", "cpu")
            self.refused(2, "requires --speculative-algorithm", "--model-path", plain, "--speculative-fixed-steps")
            self.refused(2, "nobody.*accepted: .*cpu", "--model-path", model, "--load-format", "dummy", *NEXTN,
                         "--speculative-moe-runner-backend", "nobody")
            self.refused(3, "no model.safetensors", "--model-path", model)
            for option in ("--tp-size", "--tp"):
                for size in ("2", "0", "-1", "x"):
                    self.refused(2, "tp-size: " + re.escape(size) + " is not available; accepted: 1", "--model-path",
                                 plain, option, size)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
