# SPDX-License-Identifier: Apache-2.0
"""The official `openai` package, and Prometheus' parser, against `sluice serve`.

usage: openai_test.py PROGRAM SOURCE_FOLDER [unittest arguments]   exit code 77: the package is not installed
"""
import importlib.util
import pathlib
import sys
import tempfile
import unittest

PROGRAM, SOURCE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
sys.path.insert(0, str(SOURCE / "tests" / "support"))
from client_packages import need  # noqa: E402

need("openai")

import openai  # noqa: E402

from serve_driver import endless_model, Server  # noqa: E402

MESSAGES = [{"role": "system", "content": "You tell stories."}, {"role": "user", "content": "Once upon a time"}]
PROMPT = "Henry meditated awhile all to himself early the next morning as"


class WithClient(unittest.TestCase):
    model = SOURCE / "models" / "tiny-nemotron-h"

    @classmethod
    def setUpClass(cls):
        cls.server = Server(PROGRAM, cls.model, "--served-model-name", "tiny", "--api-key", "secret", "--dtype", "float32",
                            "--max-running-requests", 1, "--max-queued-requests", 1)
        cls.addClassCleanup(cls.server.close)
        cls.client = cls.open("secret")
        cls.addClassCleanup(cls.client.close)

    @classmethod
    def open(cls, key):
        return openai.OpenAI(base_url=f"http://127.0.0.1:{cls.server.port}/v1", api_key=key, max_retries=0, timeout=60)


class OpenAi(WithClient):
    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], ["tiny"])
        self.assertEqual(self.client.models.retrieve("tiny").id, "tiny")

    def test_chat(self):
        answer = self.client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=12, temperature=0,
                                                     logprobs=True, top_logprobs=2, user="somebody")
        choice = answer.choices[0]
        self.assertTrue(choice.message.content)
        self.assertEqual((choice.message.role, choice.finish_reason), ("assistant", "length"))
        self.assertEqual(len(choice.logprobs.content), 12)
        self.assertEqual(len(choice.logprobs.content[0].top_logprobs), 2)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + 12)

    def test_chat_stream(self):
        whole = self.client.chat.completions.create(model="tiny", messages=MESSAGES, max_completion_tokens=20, seed=3)
        text, usage = "", None
        for chunk in self.client.chat.completions.create(model="tiny", messages=MESSAGES, max_completion_tokens=20,
                                                         seed=3, stream=True, stream_options={"include_usage": True}):
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
            usage = chunk.usage or usage
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_completion(self):
        answer = self.client.completions.create(model="tiny", prompt=PROMPT, max_tokens=10, temperature=0, logprobs=1,
                                                echo=True, extra_body={"ignore_eos": True})
        choice = answer.choices[0]
        self.assertTrue(choice.text.startswith(PROMPT + " he went down"))
        self.assertEqual("".join(choice.logprobs.tokens), choice.text)
        pieces = self.client.completions.create(model="tiny", prompt=PROMPT, max_tokens=10, temperature=0, stream=True)
        self.assertEqual(PROMPT + "".join(p.choices[0].text for p in pieces), choice.text)

    def test_errors_are_typed(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.completions.create(model="tiny", prompt="a", temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")
        self.assertEqual(caught.exception.type, "invalid_request_error")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.completions.create(model="tiny", prompt="word " * 5000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.completions.create(model="gpt-4", prompt="a")
        self.assertEqual(caught.exception.code, "model_not_found")
        with self.open("wrong") as stranger, self.assertRaises(openai.AuthenticationError):
            stranger.models.list()
        with self.assertRaises(openai.BadRequestError):
            self.client.chat.completions.create(model="tiny", messages=MESSAGES, response_format={"type": "xml"})


class Leaving(WithClient):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="sluice-serve-")
        cls.addClassCleanup(folder.cleanup)
        cls.model = endless_model(cls.model, folder.name)
        super().setUpClass()

    def test_leaving_a_stream_frees_the_slot(self):
        stream = self.client.completions.create(model="tiny", prompt="a", max_tokens=1_000_000, stream=True,
                                                extra_body={"ignore_eos": True})  # which does not end by itself
        next(iter(stream))
        stream.close()
        self.server.wait_until_idle()  # the only slot
        answer = self.client.completions.create(model="tiny", prompt="a", max_tokens=1)
        self.assertEqual(answer.usage.completion_tokens, 1)


@unittest.skipUnless(importlib.util.find_spec("prometheus_client"), "prometheus-client is not installed")
class Prometheus(unittest.TestCase):
    def test_metrics(self):
        from prometheus_client.parser import text_string_to_metric_families
        server = Server(PROGRAM, SOURCE / "models" / "tiny-nemotron-h", "--served-model-name", 'a "b" \\c')
        self.addCleanup(server.close)
        server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 8, "ignore_eos": True})
        server.wait_for_metric("generation_tokens_total", 8)
        families = {f.name: f for f in text_string_to_metric_families(server.get("/metrics")[2])}
        self.assertEqual(families["sluice:generation_tokens"].type, "counter")
        self.assertGreater(families.pop("process_resident_memory_bytes").samples[0].value, 0)
        for family in families.values():
            self.assertIn(family.type, ("counter", "gauge", "histogram"))
            self.assertTrue(family.documentation and family.samples, family.name)
            self.assertEqual({s.labels["model_name"] for s in family.samples}, {'a "b" \\c'})
        latency = families["sluice:e2e_request_latency_seconds"]
        values = {(s.name, s.labels.get("le")): s.value for s in latency.samples}
        self.assertEqual(values[latency.name + "_count", None], values[latency.name + "_bucket", "+Inf"])
        self.assertGreater(values[latency.name + "_sum", None], 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
