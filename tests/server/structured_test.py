# SPDX-License-Identifier: Apache-2.0
"""Constrained output through the clients that people use: openai's parse(), instructor, LiteLLM, langchain. What they
give back are objects of pydantic, which are valid or not there at all.

usage: structured_test.py PROGRAM SOURCE_FOLDER [unittest arguments]   exit code 77: the packages are not installed
"""
import os
import pathlib
import sys
import unittest
from typing import Literal, Optional

PROGRAM, SOURCE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
sys.path.insert(0, str(SOURCE / "tests" / "support"))
from client_packages import need  # noqa: E402

need("openai", "instructor", "litellm", "langchain_openai")

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for prices
import instructor  # noqa: E402
import litellm  # noqa: E402
import openai  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402
from pydantic import BaseModel, Field  # noqa: E402

from serve_driver import Server  # noqa: E402


class Item(BaseModel):
    kind: Literal["apple", "pear"]
    count: int = Field(ge=1, le=20)


class Order(BaseModel):
    """An order. Every text of it is short: a small model reaches its end."""
    customer: Literal["Ann", "Bob"]
    items: list[Item] = Field(max_length=2)
    gift: bool
    note: Optional[Literal["soon"]]


MESSAGES = [{"role": "user", "content": "Ann wants two apples."}]
TOKENS = 600


class Structured(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(PROGRAM, SOURCE / "models" / "tiny-nemotron-h", "--served-model-name", "tiny", "--dtype", "float32")
        cls.addClassCleanup(cls.server.close)
        cls.base = f"http://127.0.0.1:{cls.server.port}/v1"
        cls.client = openai.OpenAI(base_url=cls.base, api_key="none", max_retries=0)
        cls.addClassCleanup(cls.client.close)
        status, answer = cls.server.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "regex": "a"})
        if status != 200:
            print("skipped:", answer["error"]["message"])
            sys.exit(77)

    def test_openai_parse(self):
        for temperature in (0, 1):
            answer = self.client.chat.completions.parse(model="tiny", messages=MESSAGES, max_tokens=TOKENS,
                                                        temperature=temperature, response_format=Order)
            self.assertIsInstance(answer.choices[0].message.parsed, Order)
        with self.client.chat.completions.stream(model="tiny", messages=MESSAGES, max_tokens=TOKENS,
                                                 response_format=Order) as stream:
            self.assertIsInstance(stream.get_final_completion().choices[0].message.parsed, Order)
        with self.assertRaises(openai.LengthFinishReasonError):
            self.client.chat.completions.parse(model="tiny", messages=MESSAGES, max_tokens=5, response_format=Order)

    def test_openai_refusal_of_a_schema(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model="tiny", messages=MESSAGES, response_format={
                "type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array", "uniqueItems": True}}})
        self.assertEqual(caught.exception.param, "response_format.json_schema.schema")

    def test_instructor(self):
        # JSON and MD_JSON ask for any JSON, or for a text, of which a small model would write anything: the schema is put beside.
        # agents_test.py has them as instructor sends them, with a model that knows what to say.
        for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON, instructor.Mode.MD_JSON):
            with self.subTest(mode=mode):
                client = instructor.from_openai(self.client, mode=mode)
                extra = {} if mode == instructor.Mode.JSON_SCHEMA else {"extra_body": self.schema_beside(mode)}
                order = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=TOKENS, temperature=1,
                                                       max_retries=0, response_model=Order, **extra)
                self.assertIsInstance(order, Order)

    @staticmethod
    def schema_beside(mode):
        # The extra body replaces the response_format json_object that JSON sends.
        schema = Order.model_json_schema()
        if mode == instructor.Mode.JSON:
            return {"response_format": {"type": "json_schema", "json_schema": {"name": "Order", "schema": schema}}}
        return {"guided_json": schema}

    def test_litellm(self):
        answer = litellm.completion(model="openai/tiny", api_base=self.base, api_key="none", messages=MESSAGES,
                                    max_tokens=TOKENS, temperature=1, num_retries=0, response_format=Order)
        self.assertIsInstance(Order.model_validate_json(answer.choices[0].message.content), Order)

    def test_langchain(self):
        chat = ChatOpenAI(model="tiny", base_url=self.base, api_key="none", max_tokens=TOKENS, temperature=1, max_retries=0)
        order = chat.with_structured_output(Order, method="json_schema").invoke("Ann wants two apples.")
        self.assertIsInstance(order, Order)
        pieces = list(chat.with_structured_output(Order, method="json_schema").stream("Ann wants two apples."))
        self.assertIsInstance(pieces[-1], Order)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
