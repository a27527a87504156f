# SPDX-License-Identifier: Apache-2.0
"""Anthropic's official Python client against `sluice serve`, and OpenAI's for its Responses API.

usage: anthropic_test.py PROGRAM SOURCE_FOLDER [unittest arguments]   exit code 77: the packages are not installed
"""
import pathlib
import sys
import unittest

PROGRAM, SOURCE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
sys.path.insert(0, str(SOURCE / "tests" / "support"))
from client_packages import need  # noqa: E402

need("anthropic", "openai")

import anthropic  # noqa: E402
import openai  # noqa: E402

from serve_driver import Server  # noqa: E402

HELLO = [{"role": "user", "content": "Hello"}]


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(PROGRAM, SOURCE / "models" / "tiny-nemotron-h", "--served-model-name", "tiny", "--dtype",
                            "float32", "--api-key", "secret")
        cls.addClassCleanup(cls.server.close)
        url = f"http://127.0.0.1:{cls.server.port}"
        cls.client = anthropic.Anthropic(api_key="secret", base_url=url, max_retries=0)
        cls.openai = openai.OpenAI(api_key="secret", base_url=url + "/v1", max_retries=0)
        cls.addClassCleanup(cls.client.close)
        cls.addClassCleanup(cls.openai.close)

    def create(self, **more):
        return self.client.messages.create(**{"model": "tiny", "messages": HELLO, "max_tokens": 12, **more},
                                           extra_body={"temperature": 0})

    def test_messages(self):
        message = self.create()
        self.assertEqual((message.type, message.role, message.stop_reason, message.content[0].type),
                         ("message", "assistant", "max_tokens", "text"))
        self.assertEqual(message.usage.output_tokens, 12)
        self.assertTrue(message.id.startswith("msg_"), message.id)
        count = self.client.messages.count_tokens(model="tiny", messages=HELLO)
        self.assertEqual(count.input_tokens, message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0))
        again = self.create(messages=[*HELLO, {"role": "assistant", "content": message.content}, *HELLO])
        self.assertTrue(again.content)

    def test_streams(self):
        expected = self.create()
        with self.client.messages.stream(model="tiny", messages=HELLO, max_tokens=12, extra_body={"temperature": 0}) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, expected.content[0].text)
        self.assertEqual(final.content[0].text, text)
        self.assertEqual((final.stop_reason, final.usage.output_tokens), ("max_tokens", 12))

    def test_errors_are_typed(self):
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.create(max_tokens=5000)
        self.assertEqual(caught.exception.body["error"]["type"], "invalid_request_error")
        with self.assertRaises(anthropic.NotFoundError):
            self.create(model="claude")
        with self.assertRaises(anthropic.AuthenticationError):
            self.client.with_options(api_key="wrong").messages.create(model="tiny", messages=HELLO, max_tokens=2)

    def respond(self, **more):
        return self.openai.responses.create(**{"model": "tiny", "input": "Hello", "max_output_tokens": 12, "temperature": 0, **more})

    def test_responses(self):
        first = self.respond(instructions="Be brief.")
        self.assertEqual((first.status, first.usage.output_tokens), ("incomplete", 12))
        self.assertTrue(first.output_text)
        turns = [{"role": "user", "content": "Hello"}, *[item.model_dump(exclude_none=True) for item in first.output],
                 {"role": "user", "content": "Go on"}]
        self.assertTrue(self.respond(input=turns).output_text)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.respond(previous_response_id=first.id)
        self.assertEqual(caught.exception.param, "previous_response_id")

    def test_streamed_responses(self):
        expected = self.respond()
        with self.openai.responses.stream(model="tiny", input="Hello", max_output_tokens=12, temperature=0) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        self.assertEqual(text, expected.output_text)
        events = list(self.respond(stream=True))
        self.assertEqual((events[0].type, events[-1].type), ("response.created", "response.incomplete"))
        self.assertEqual(events[-1].response.output_text, text)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
