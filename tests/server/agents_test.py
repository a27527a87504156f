# SPDX-License-Identifier: Apache-2.0
"""Agents through the clients that people use, with a model that makes calls (scripted_model.py): Anthropic's Messages,
OpenAI's Responses, parse() with tools, instructor, langchain. Several turns, whole and streamed.

usage: agents_test.py PROGRAM SOURCE_FOLDER [unittest arguments]   exit code 77: the packages are not installed
"""
import json
import pathlib
import shutil
import sys
import tempfile
import unittest

PROGRAM, SOURCE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
sys.path.insert(0, str(SOURCE / "tests" / "support"))
from client_packages import need  # noqa: E402

need("anthropic", "openai", "instructor", "langchain_openai")

import anthropic  # noqa: E402
import instructor  # noqa: E402
import openai  # noqa: E402
from langchain_core.messages import HumanMessage  # noqa: E402
from langchain_core.tools import tool  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402
from pydantic import BaseModel  # noqa: E402

from scripted_model import SCRIPTS, scripted_model, TOOLS  # noqa: E402
from serve_driver import Server  # noqa: E402

ARGUMENTS = {"city": "Lisbon", "days": 2}
FUNCTION = TOOLS[0]["function"]
CLAUDE_TOOL = {"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": FUNCTION["parameters"]}
FLAT_TOOL = {"type": "function", "strict": False, **FUNCTION}


class get_weather(BaseModel):  # the name is the function's
    """The weather of the next days."""
    city: str
    days: int


def user(name):
    return [{"role": "user", "content": name}]


def setUpModule():
    global server, constrained
    folder = tempfile.mkdtemp(prefix="sluice-agents-")
    unittest.addModuleCleanup(shutil.rmtree, folder)
    scripted_model(SOURCE / "models" / "tiny-nemotron-h", folder, SCRIPTS)
    server = Server(PROGRAM, folder, "--served-model-name", "tiny", "--log-level", "info")
    unittest.addModuleCleanup(server.close)
    constrained = server.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "regex": "a"})[0] == 200


def needs_constraints(test):
    def run(self):
        if not constrained:
            self.skipTest("built without xgrammar")
        test(self)
    return run


class Anthropic(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.client = anthropic.Anthropic(api_key="none", base_url=f"http://127.0.0.1:{server.port}", max_retries=0, timeout=60)
        cls.addClassCleanup(cls.client.close)

    def create(self, name, **more):
        return self.client.messages.create(**{"model": "tiny", "max_tokens": 200, "messages": user(name), "tools": [CLAUDE_TOOL],
                                              **more})

    def stream(self, name, **more):
        """The message of a stream, and its events."""
        with self.client.messages.stream(**{"model": "tiny", "max_tokens": 200, "messages": user(name), "tools": [CLAUDE_TOOL],
                                            **more}) as stream:
            events = list(stream)
            return stream.get_final_message(), events

    @staticmethod
    def blocks(message):
        return [{k: v for k, v in block.model_dump(exclude_none=True).items() if k != "id"} for block in message.content]

    def test_a_loop_with_a_tool(self):
        for create in (self.create, lambda *a, **k: self.stream(*a, **k)[0]):
            messages = user("weather")
            for _ in range(2):
                message = create("", messages=messages)
                self.assertEqual([b.type for b in message.content], ["thinking", "text", "tool_use"])
                call = message.content[2]
                self.assertEqual((message.stop_reason, call.name, call.input), ("tool_use", "get_weather", ARGUMENTS))
                self.assertEqual((message.content[0].thinking, message.content[1].text), ("They want the weather.\n", "I look it up."))
                result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "21 degrees"}]}
                messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
                count = self.client.messages.count_tokens(model="tiny", messages=messages, tools=[CLAUDE_TOOL]).input_tokens
                after = create("", messages=messages)
                self.assertEqual((after.stop_reason, after.content[0].text), ("end_turn", SCRIPTS["after"]))
                self.assertEqual(after.usage.input_tokens + after.usage.cache_read_input_tokens, count)
                self.assertGreater(count, self.client.messages.count_tokens(model="tiny", messages=messages).input_tokens)
                messages += [{"role": "assistant", "content": after.content}, *user("weather")]

    def test_streams_are_the_whole_message(self):
        for name in ("weather", "two", "broken", "hello"):
            whole = self.create(name)
            message, events = self.stream(name)
            self.assertEqual(self.blocks(message), self.blocks(whole))
            self.assertEqual((message.stop_reason, message.usage.output_tokens), (whole.stop_reason, whole.usage.output_tokens))
            inputs = [e.snapshot for e in events if e.type == "input_json"]
            calls = [b.input for b in whole.content if b.type == "tool_use"]
            self.assertEqual([i for i in inputs if i in calls][-len(calls):] if calls else inputs, calls)

    def test_the_tool_runner(self):
        asked = []

        @anthropic.beta_tool
        def get_weather(city: str, days: int) -> str:
            """The weather of the next days.

            Args:
                city: Where.
                days: How many.
            """
            asked.append((city, days))
            return "21 degrees"

        runner = self.client.beta.messages.tool_runner(model="tiny", max_tokens=200, tools=[get_weather], messages=user("two"))
        self.assertEqual(runner.until_done().content[0].text, SCRIPTS["after"])
        self.assertEqual(asked, [("Oslo", 2), ("Riga", 2)])

    def test_choices(self):
        none = self.create("two", tool_choice={"type": "none"})
        self.assertEqual((none.stop_reason, none.content[0].text), ("end_turn", SCRIPTS["two"]))
        one = self.create("two", tool_choice={"type": "auto", "disable_parallel_tool_use": True})
        self.assertEqual([b.type for b in one.content], ["tool_use", "text"])

    @needs_constraints
    def test_promised_calls(self):
        strict = {**CLAUDE_TOOL, "strict": True}
        for more in ({"tool_choice": {"type": "any"}}, {"tool_choice": {"type": "tool", "name": "get_weather"}},
                     {"tools": [strict]}, {"tools": [{**CLAUDE_TOOL, "eager_input_streaming": True}]}):
            whole = self.create("two", **more)
            self.assertEqual([b.input["city"] for b in whole.content], ["Oslo", "Riga"], more)
            message, events = self.stream("two", **more)
            self.assertEqual(self.blocks(message), self.blocks(whole))
            self.assertGreater(len([e for e in events if e.type == "input_json"]), 4, "the inputs came piece by piece")
        for limit in range(1, whole.usage.output_tokens):
            cut, (message, _) = self.create("two", max_tokens=limit, **more), self.stream("two", max_tokens=limit, **more)
            self.assertEqual(cut.stop_reason, "max_tokens")
            self.assertEqual([b["type"] for b in self.blocks(message)], [b["type"] for b in self.blocks(cut)])

    @needs_constraints
    def test_structured_outputs(self):
        for more in ({"tools": []}, {}):  # beside tools, a call may come instead
            parsed = self.client.messages.parse(model="tiny", max_tokens=200, messages=user("json"), output_format=get_weather,
                                                **{"tools": [CLAUDE_TOOL], **more})
            self.assertEqual(parsed.parsed_output, get_weather(**ARGUMENTS))
        called = self.client.messages.parse(model="tiny", max_tokens=200, messages=user("one"), output_format=get_weather,
                                            tools=[CLAUDE_TOOL])
        self.assertEqual((called.stop_reason, called.content[0].input), ("tool_use", ARGUMENTS))


class Responses(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0, timeout=60)
        cls.addClassCleanup(cls.client.close)

    def create(self, given, **more):
        return self.client.responses.create(**{"model": "tiny", "input": given, "tools": [FLAT_TOOL], **more})

    def stream(self, given, **more):
        with self.client.responses.stream(**{"model": "tiny", "input": given, "tools": [FLAT_TOOL], **more}) as stream:
            events = list(stream)
            return stream.get_final_response(), events

    @staticmethod
    def items(response):
        kept = ("type", "name", "arguments", "content", "status")
        return [{k: v for k, v in item.model_dump(exclude_none=True).items() if k in kept} for item in response.output]

    def test_a_loop_with_a_function(self):
        for create in (self.create, lambda given: self.stream(given)[0]):
            given = user("weather")
            for _ in range(2):
                response = create(given)
                self.assertEqual([i.type for i in response.output], ["reasoning", "message", "function_call"])
                call = response.output[2]
                self.assertEqual((response.status, call.name, json.loads(call.arguments), call.status),
                                 ("completed", "get_weather", ARGUMENTS, "completed"))
                given += [item.model_dump(exclude_none=True) for item in response.output]
                given += [{"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}]
                after = create(given)
                self.assertEqual(after.output_text, SCRIPTS["after"])
                given += [*[item.model_dump(exclude_none=True) for item in after.output], *user("weather")]

    def test_streams_are_the_whole_response(self):
        for name in ("weather", "two", "broken", "hello"):
            whole = self.create(name)
            response, events = self.stream(name)
            self.assertEqual([{k: v for k, v in i.items() if v is not None} for i in self.items(response)], self.items(whole))
            done = [e.arguments for e in events if e.type == "response.function_call_arguments.done"]
            self.assertEqual(done, [i.arguments for i in whole.output if i.type == "function_call"])

    def test_choices(self):
        self.assertEqual(self.create("two", tool_choice="none").output_text, SCRIPTS["two"])
        one = self.create("two", parallel_tool_calls=False)
        self.assertEqual([i.type for i in one.output], ["function_call", "message"])
        self.assertEqual((one.parallel_tool_calls, one.tools[0].name), (False, "get_weather"))

    @needs_constraints
    def test_promised_calls(self):
        allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}
        for more in ({"tool_choice": "required"}, {"tool_choice": {"type": "function", "name": "get_weather"}},
                     {"tool_choice": allowed}, {"tools": [{**FLAT_TOOL, "strict": True}]}):
            whole = self.create("two", **more)
            self.assertEqual([json.loads(i.arguments)["city"] for i in whole.output], ["Oslo", "Riga"])
            response, events = self.stream("two", **more)
            self.assertEqual(self.items(response), self.items(whole))
            pieces = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
            self.assertGreater(len(pieces), 4)
            self.assertEqual("".join(pieces), "".join(i.arguments for i in whole.output))

    @needs_constraints
    def test_parse(self):
        tools = [openai.pydantic_function_tool(get_weather)]
        for more in ({}, {"tools": tools}):
            parsed = self.client.responses.parse(model="tiny", input="json", text_format=get_weather, **more)
            self.assertEqual(parsed.output_parsed, get_weather(**ARGUMENTS))
        called = self.client.responses.parse(model="tiny", input="one", text_format=get_weather, tools=tools)
        self.assertEqual(called.output[0].parsed_arguments, get_weather(**ARGUMENTS))
        self.assertEqual(self.create("json", text={"format": {"type": "json_object"}}).output_text, SCRIPTS["json"])

    @needs_constraints
    def test_parsed_chats(self):
        tools, chat = [openai.pydantic_function_tool(get_weather)], self.client.chat.completions
        called = chat.parse(model="tiny", messages=user("two"), tools=tools).choices[0]
        self.assertEqual([c.function.parsed_arguments.city for c in called.message.tool_calls], ["Oslo", "Riga"])
        for name, more in (("one", {}), ("one", {"response_format": get_weather}), ("json", {"response_format": get_weather})):
            message = chat.parse(model="tiny", messages=user(name), tools=tools, **more).choices[0].message
            with chat.stream(model="tiny", messages=user(name), tools=tools, **more) as stream:
                streamed = stream.get_final_completion().choices[0].message
            for got in (message, streamed):
                parsed = got.tool_calls[0].function.parsed_arguments if name == "one" else got.parsed
                self.assertEqual(parsed, get_weather(**ARGUMENTS))

    @needs_constraints
    def test_instructor(self):
        """As instructor itself sends them. JSON puts the schema into a system message and asks for any JSON (json_object); MD_JSON
        puts it there too, appends a request for a code block to the user's message and takes the object from the text."""
        for mode, name in ((instructor.Mode.TOOLS, "one"), (instructor.Mode.TOOLS_STRICT, "one"),
                           (instructor.Mode.RESPONSES_TOOLS, "one"), (instructor.Mode.JSON_SCHEMA, "json"),
                           (instructor.Mode.JSON, "json"), (instructor.Mode.MD_JSON, "fenced")):
            with self.subTest(mode=mode):
                client = instructor.from_openai(self.client, mode=mode)
                asked = {"model": "tiny", "messages": user(name), "max_retries": 0, "response_model": get_weather}
                weather = client.chat.completions.create(**asked)
                self.assertEqual((weather.city, weather.days), ("Lisbon", 2))
                if name != "one":  # whose call has the function's name, and a stream's is another (Partialget_weather)
                    *_, weather = client.chat.completions.create_partial(**asked)
                    self.assertEqual((weather.city, weather.days), ("Lisbon", 2))

    @needs_constraints
    def test_langchain(self):
        @tool("get_weather")
        def look(city: str, days: int = 1) -> str:
            """The weather of the next days."""
            return f"21 degrees in {city}"

        base = {"model": "tiny", "base_url": f"http://127.0.0.1:{server.port}/v1", "api_key": "none", "max_retries": 0}
        for more in ({}, {"use_responses_api": True}):
            chat = ChatOpenAI(**base, **more)
            messages = [HumanMessage("weather")]
            answer = chat.bind_tools([look]).invoke(messages)
            [call] = answer.tool_calls
            self.assertEqual((call["name"], call["args"]), ("get_weather", ARGUMENTS))
            after = chat.bind_tools([look]).invoke([*messages, answer, look.invoke(call)])
            self.assertEqual(after.text if isinstance(after.text, str) else after.text(), SCRIPTS["after"])
            for method, name in (("function_calling", "one"), ("json_schema", "json")):
                for strict in (None, True):
                    weather = chat.with_structured_output(get_weather, method=method, strict=strict).invoke(name)
                    self.assertEqual(weather, get_weather(**ARGUMENTS), (more, method))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
