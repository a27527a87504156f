# SPDX-License-Identifier: Apache-2.0
"""LiteLLM against `sluice serve`: chats of several turns that send LiteLLM's own answer objects back.

usage: litellm_test.py PROGRAM SOURCE_FOLDER [unittest arguments]   exit code 77: the package is not installed
"""
import os
import pathlib
import sys
import unittest

PROGRAM, SOURCE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
sys.path.insert(0, str(SOURCE / "tests" / "support"))
from client_packages import need  # noqa: E402

need("litellm")

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for prices
import litellm  # noqa: E402

from serve_driver import Server  # noqa: E402


class LiteLlm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(PROGRAM, SOURCE / "models" / "tiny-nemotron-h", "--served-model-name", "tiny", "--dtype",
                            "float32", "--reasoning-parser", "qwen3")
        cls.addClassCleanup(cls.server.close)

    def ask(self, messages, **more):
        return litellm.completion(model="openai/tiny", api_base=f"http://127.0.0.1:{self.server.port}/v1", api_key="none",
                                  messages=messages, max_tokens=12, temperature=0, num_retries=0, **more)

    def turns(self, say, keep):
        """Three turns; each must be answered from all that was said."""
        messages = []
        for turn, text in enumerate(("Once upon a time", "And then?", "The end?")):
            messages.append({"role": "user", "content": text})
            answer = say(messages)
            self.assertTrue(answer.choices[0].message.content)
            plain = [{"role": m["role"], "content": m["content"]} for m in messages]
            expected = self.server.post("/v1/chat/completions", {"messages": plain, "max_tokens": 12, "temperature": 0})
            self.assertEqual(answer.choices[0].message.content, expected[1]["choices"][0]["message"]["content"], turn)
            messages.append(keep(answer.choices[0].message))

    def test_its_own_answers_come_back(self):
        self.turns(self.ask, lambda message: message)
        self.turns(self.ask, lambda message: message.model_dump())
        self.turns(self.ask, lambda message: message.model_dump(exclude_none=True))

    def test_streams_put_together_come_back(self):
        def say(messages):
            chunks = list(self.ask(messages, stream=True, stream_options={"include_usage": True}))
            return litellm.stream_chunk_builder(chunks, messages=messages)
        self.turns(say, lambda message: message.model_dump())

    def test_errors_are_typed(self):
        with self.assertRaises(litellm.BadRequestError) as caught:
            litellm.completion(model="openai/tiny", api_base=f"http://127.0.0.1:{self.server.port}/v1", api_key="none",
                               messages=[{"role": "user", "content": "a"}], temperature=-1, num_retries=0)
        self.assertIn("temperature", str(caught.exception))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
