# SPDX-License-Identifier: Apache-2.0
"""Tools through `sluice serve`, with a model that makes calls (scripted_model.py): our own requests, then the official
`openai` package, LiteLLM and langchain, each skipped where it is not installed.

usage: tools_test.py PROGRAM SOURCE_FOLDER [unittest arguments]
"""
import importlib.util
import json
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

PROGRAM, SOURCE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
sys.path.insert(0, str(SOURCE / "tests" / "support"))
from client_packages import prefer  # noqa: E402

prefer("openai")

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for prices
from scripted_model import SCRIPTS, scripted_model, TOOLS  # noqa: E402
from serve_driver import Server  # noqa: E402

CHAT = "/v1/chat/completions"
ARGUMENTS = {"city": "Lisbon", "days": 2}


def user(name):
    return [{"role": "user", "content": name}]


def setUpModule():
    global server
    folder = tempfile.mkdtemp(prefix="sluice-tools-")
    unittest.addModuleCleanup(shutil.rmtree, folder)
    scripted_model(SOURCE / "models" / "tiny-nemotron-h", folder, SCRIPTS)
    server = Server(PROGRAM, folder, "--served-model-name", "tiny", "--log-level", "info")
    unittest.addModuleCleanup(server.close)


def needs(package):
    return unittest.skipUnless(importlib.util.find_spec(package), f"{package} is not installed")


class Tools(unittest.TestCase):
    def ask(self, name, status=200, **more):
        got, answer = server.post(CHAT, {"messages": user(name), **more})
        self.assertEqual(got, status, answer)
        return answer["choices"][0] if status == 200 else answer["error"]

    def streamed(self, name, **more):
        """The message that a stream's pieces make, and the reason of its end."""
        status, events = server.stream(CHAT, {"messages": user(name), **more})
        self.assertEqual(status, 200, events)
        message, reason = {"content": "", "reasoning_content": ""}, None
        calls = []
        for event in events:
            choice = event["choices"][0]
            reason = choice["finish_reason"] or reason
            delta = choice["delta"]
            for key in message:
                message[key] += delta.get(key) or ""
            for part in delta.get("tool_calls", []):
                if "id" in part:
                    self.assertEqual((part["index"], part["type"], part["function"]["arguments"]),
                                     (len(calls), "function", ""))
                    calls.append({"id": part["id"], "name": part["function"]["name"], "arguments": ""})
                else:
                    self.assertEqual(set(part), {"index", "function"})
                    calls[part["index"]]["arguments"] += part["function"]["arguments"]
        return message, calls, reason

    def test_the_formats_come_from_the_template(self):
        self.assertIn("tool-call parser: hermes; reasoning parser: qwen3", server.log())

    def test_scripts_are_said(self):
        self.assertEqual(self.ask("hello")["message"]["content"], SCRIPTS["hello"])
        self.assertEqual(self.ask("weather", separate_reasoning=False)["message"]["content"], SCRIPTS["weather"])

    def test_whole_and_streamed_calls(self):
        for name, cities in (("weather", ["Lisbon"]), ("two", ["Oslo", "Riga"])):
            choice = self.ask(name, tools=TOOLS)
            message, calls = choice["message"], choice["message"]["tool_calls"]
            self.assertEqual([json.loads(c["function"]["arguments"])["city"] for c in calls], cities)
            self.assertEqual({c["function"]["name"] for c in calls}, {"get_weather"})
            self.assertEqual(len({c["id"] for c in calls}), len(calls))
            self.assertEqual(message["content"], "I look it up." if name == "weather" else None)
            self.assertEqual(message["reasoning_content"], "They want the weather.\n" if name == "weather" else None)
            self.assertEqual(choice["finish_reason"], "tool_calls")
            streamed, pieces, reason = self.streamed(name, tools=TOOLS)
            self.assertEqual([p["arguments"] for p in pieces], [c["function"]["arguments"] for c in calls])
            self.assertEqual((streamed["content"] or None, streamed["reasoning_content"] or None, reason),
                             (message["content"], message["reasoning_content"], "tool_calls"))

    def test_what_is_no_call_is_text(self):
        for more in ({"tools": TOOLS}, {}, {"tools": TOOLS, "tool_choice": "none"}):
            choice = self.ask("broken", **more)
            self.assertEqual((choice["message"]["content"], choice["finish_reason"]), (SCRIPTS["broken"], "stop"))
            self.assertEqual(self.streamed("broken", **more)[0]["content"], SCRIPTS["broken"])
        self.assertEqual(self.ask("two", tools=TOOLS, tool_choice="none")["message"]["content"], SCRIPTS["two"])

    def test_a_limit_inside_a_call(self):
        whole = self.ask("two", tools=TOOLS, logprobs=True)
        tokens = [t["token"] for t in whole["logprobs"]["content"]]
        for limit in range(1, len(tokens)):
            choice = self.ask("two", tools=TOOLS, max_tokens=limit)
            said = "".join(tokens[:limit])
            calls = choice["message"].get("tool_calls", [])
            self.assertEqual(choice["finish_reason"], "length")
            if not calls:
                self.assertEqual(choice["message"]["content"], said)
            else:
                self.assertEqual(calls[0]["function"], whole["message"]["tool_calls"][0]["function"])
                if len(calls) == 1 and choice["message"]["content"]:
                    self.assertTrue(said.endswith(choice["message"]["content"]), (said, choice["message"]["content"]))

    def test_stop_strings_logprobs_choices_usage(self):
        stopped = self.ask("two", tools=TOOLS, stop=["</tool_call>"])
        self.assertEqual((stopped["finish_reason"], stopped["matched_stop"]), ("tool_calls", "</tool_call>"))
        self.assertEqual(len(stopped["message"]["tool_calls"]), 1)
        status, events = server.stream(CHAT, {"messages": user("two"), "tools": TOOLS, "n": 2, "logprobs": True,
                                              "stream_options": {"include_usage": True}})
        self.assertEqual(status, 200)
        usage = events.pop()["usage"]
        counted = sum(len((e["choices"][0]["logprobs"] or {"content": []})["content"]) for e in events)
        self.assertEqual(counted, usage["completion_tokens"])
        self.assertEqual([e["choices"][0]["finish_reason"] for e in events if e["choices"][0]["finish_reason"]],
                         ["tool_calls"] * 2)

    def test_one_call_at_most(self):
        choice = self.ask("two", tools=TOOLS, parallel_tool_calls=False)
        self.assertEqual(len(choice["message"]["tool_calls"]), 1)
        self.assertIn("Riga", choice["message"]["content"])

    def test_promised_calls(self):
        """The scripted model would say something else; under a constraint it has to call."""
        strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
        named = {"type": "function", "function": {"name": "get_weather"}}
        for more, param in (({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
                            ({"tools": TOOLS, "tool_choice": named}, "tool_choice"),
                            ({"tools": strict, "tool_choice": named}, "tool_choice")):
            status, answer = server.post(CHAT, {"messages": user("hello"), "max_tokens": 400, "parallel_tool_calls": False,
                                                "seed": 1, "separate_reasoning": False, **more})
            if status == 400 and "built without xgrammar" in answer["error"]["message"]:
                self.assertEqual(answer["error"]["param"], param)
                self.skipTest(answer["error"]["message"])
            self.assertEqual(status, 200, answer)
            choice = answer["choices"][0]
            if choice["finish_reason"] == "length":
                continue  # a city of 400 letters
            [call] = choice["message"]["tool_calls"]
            self.assertEqual((call["function"]["name"], choice["finish_reason"]), ("get_weather", "tool_calls"))
            self.assertIsInstance(json.loads(call["function"]["arguments"])["city"], str)

    def test_a_parser_can_be_named_or_switched_off(self):
        other = Server(PROGRAM, SOURCE / "models" / "tiny-nemotron-h", "--tool-call-parser", "glm47", "--reasoning-parser",
                       "none", "--enable-auto-tool-choice", "--log-level", "info")
        self.addCleanup(other.close)
        self.assertIn("tool-call parser: glm45; reasoning parser: none", other.log())
        status, answer = other.post(CHAT, {"messages": user("a"), "tools": TOOLS})
        self.assertEqual((status, answer["error"]["param"]), (400, "tools"))  # its template shows no tools


@needs("openai")
class OpenAi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import openai
        cls.client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0, timeout=60)
        cls.addClassCleanup(cls.client.close)

    def test_a_loop_with_a_tool(self):
        messages = user("weather")
        answer = self.client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS, tool_choice="auto")
        choice = answer.choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        [call] = choice.message.tool_calls
        self.assertEqual((call.type, call.function.name, json.loads(call.function.arguments)),
                         ("function", "get_weather", ARGUMENTS))
        messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}]
        answer = self.client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS)
        self.assertEqual(answer.choices[0].message.content, SCRIPTS["after"])
        self.assertIsNone(answer.choices[0].message.tool_calls)

    def test_streams(self):
        with self.client.chat.completions.stream(model="tiny", messages=user("two"), tools=TOOLS) as stream:
            done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
            message = stream.get_final_completion().choices[0].message
        self.assertEqual([json.loads(e.arguments)["city"] for e in done], ["Oslo", "Riga"])
        self.assertEqual([json.loads(c.function.arguments)["city"] for c in message.tool_calls], ["Oslo", "Riga"])

    def test_parse(self):
        answer = self.client.chat.completions.parse(model="tiny", messages=user("hello"))
        self.assertEqual(answer.choices[0].message.content, SCRIPTS["hello"])


@needs("litellm")
class LiteLlm(unittest.TestCase):
    def ask(self, messages, **more):
        import litellm
        litellm.suppress_debug_info = True
        return litellm.completion(model="openai/tiny", api_base=f"http://127.0.0.1:{server.port}/v1", api_key="none",
                                  messages=messages, tools=TOOLS, num_retries=0, **more)

    def test_a_loop_with_a_tool(self):
        import litellm
        for stream in (False, True):
            messages = user("weather")
            answer = self.ask(messages, stream=stream)
            if stream:
                answer = litellm.stream_chunk_builder(list(answer), messages=messages)
            message = answer.choices[0].message
            [call] = message.tool_calls
            self.assertEqual((answer.choices[0].finish_reason, call.function.name), ("tool_calls", "get_weather"))
            self.assertEqual(json.loads(call.function.arguments), ARGUMENTS)
            messages += [message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}]
            self.assertEqual(self.ask(messages).choices[0].message.content, SCRIPTS["after"])


@needs("langchain_openai")
class LangChain(unittest.TestCase):
    def test_bind_tools(self):
        from langchain_core.messages import HumanMessage, ToolMessage
        from langchain_core.tools import tool
        from langchain_openai import ChatOpenAI

        @tool
        def get_weather(city: str, days: int = 1) -> str:
            """The weather of the next days."""
            return f"{21 * days // days} degrees in {city}"

        model = ChatOpenAI(model="tiny", base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)
        bound = model.bind_tools([get_weather])
        for stream in (False, True):
            messages = [HumanMessage("weather")]
            if stream:
                answer = None
                for chunk in bound.stream(messages):
                    answer = chunk if answer is None else answer + chunk
            else:
                answer = bound.invoke(messages)
            [call] = answer.tool_calls
            self.assertEqual((call["name"], call["args"]), ("get_weather", ARGUMENTS))
            self.assertEqual(answer.invalid_tool_calls, [])
            result = get_weather.invoke(call)
            self.assertIsInstance(result, ToolMessage)
            self.assertEqual(bound.invoke([*messages, answer, result]).content, SCRIPTS["after"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
