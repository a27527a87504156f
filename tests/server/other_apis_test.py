# SPDX-License-Identifier: Apache-2.0
"""Anthropic's Messages and OpenAI's Responses: the same text as a chat's, whole and streamed, and bad requests.

usage: other_apis_test.py PROGRAM SOURCE_FOLDER [unittest arguments]
"""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from serve_case import CHAT, CONTEXT, main, WithServer  # noqa: E402

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"


class OtherApi(WithServer):
    def chat(self, messages, **more):
        return self.ok("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 12, **more})

    def events(self, path, body):
        """[(name, object)] of a stream with named events."""
        status, headers, text = self.server.request("POST", path, {**body, "stream": True})
        self.assertEqual(status, 200, text)
        self.assertTrue(headers["Content-Type"].startswith("text/event-stream"))
        out = []
        for block in (b for b in text.split("\n\n") if b and not b.startswith(":")):
            name, data = block.split("\n")
            out.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
            self.assertEqual(out[-1][0], out[-1][1]["type"])
        return out


class Anthropic(OtherApi):
    def create(self, messages=CHAT, **more):
        return self.ok(MESSAGES, {"messages": messages, "max_tokens": 12, "temperature": 0, **more})

    def refused_in_their_form(self, body, param=None, status=400, kind="invalid_request_error", path=MESSAGES):
        got, answer = self.server.post(path, body)
        self.assertEqual((got, answer["type"], answer["error"]["type"]), (status, "error", kind), answer)
        self.assertTrue(answer["error"]["message"])
        if param is not None:
            self.assertEqual(answer["error"]["param"], param, answer)

    def test_the_text_is_a_chats(self):
        system = {"role": "system", "content": "Be brief."}
        turns = [{"role": "user", "content": "Once"}, {"role": "assistant", "content": "upon"}, {"role": "user", "content": "a time"}]
        parts = [{"role": "user", "content": [{"type": "text", "text": "On", "cache_control": {"type": "ephemeral"}},
                                              {"type": "text", "text": "ce"}]},
                 {"role": "assistant", "content": [{"type": "text", "text": "upon"}, {"type": "redacted_thinking", "data": "x"}]},
                 {"role": "user", "content": [{"type": "text", "text": "a time"}]}]
        for messages, more, chat in ((CHAT, {}, CHAT), (turns, {}, turns), (parts, {}, turns),
                                     (turns, {"system": "Be brief."}, [system, *turns]),
                                     (turns, {"system": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
                                      [system, *turns])):
            expected = self.chat(chat)
            got = self.create(messages, **more)
            self.assertEqual((got["type"], got["role"], got["model"], got["stop_sequence"]), ("message", "assistant", "tiny", None))
            self.assertEqual([b["type"] for b in got["content"]], ["text"])
            self.assertEqual(got["content"][0]["text"], expected["choices"][0]["message"]["content"])
            usage = got["usage"]
            self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"], expected["usage"]["prompt_tokens"])
            self.assertEqual(usage["output_tokens"], expected["usage"]["completion_tokens"])
            count = self.ok(MESSAGES + "/count_tokens", {"messages": messages, **more})
            self.assertEqual(count, {"input_tokens": expected["usage"]["prompt_tokens"]})

    def test_a_last_message_of_the_assistant_is_gone_on_with(self):
        begun = [*CHAT, {"role": "assistant", "content": "Once upon"}]
        expected = self.chat(begun, continue_final_message=True)["choices"][0]["message"]["content"]
        self.assertEqual(self.create(begun)["content"][0]["text"], expected)

    def test_stop_reasons(self):
        self.assertEqual(self.create()["stop_reason"], "max_tokens")
        text = self.create()["content"][0]["text"]
        word = text.split()[-1]
        cut = self.create(stop_sequences=["never", word])
        self.assertEqual((cut["stop_reason"], cut["stop_sequence"]), ("stop_sequence", word))
        self.assertEqual(cut["content"][0]["text"], text[:text.index(word)])
        ended = self.create(allowed_token_ids=[2], max_tokens=3)  # <|im_end|>
        self.assertEqual((ended["stop_reason"], ended["content"]), ("end_turn", []))

    def test_streams(self):
        whole = self.create()
        events = self.events(MESSAGES, {"messages": CHAT, "max_tokens": 12, "temperature": 0})
        names = [name for name, _ in events]
        self.assertEqual(names[:2], ["message_start", "content_block_start"])
        self.assertEqual(names[-3:], ["content_block_stop", "message_delta", "message_stop"])
        self.assertEqual(events[0][1]["message"]["content"], [])
        text = "".join(e["delta"]["text"] for name, e in events if name == "content_block_delta")
        self.assertEqual(text, whole["content"][0]["text"])
        self.assertEqual(events[-2][1]["delta"], {"stop_reason": "max_tokens", "stop_sequence": None})
        self.assertEqual(events[-2][1]["usage"]["output_tokens"], 12)

    def test_bad_requests(self):
        good = {"messages": CHAT, "max_tokens": 4}
        part = lambda **block: {"messages": [*CHAT, {"role": "user", "content": [{"type": "text", "text": "a"}, block]}]}
        where = "messages[1].content[1]"
        for body, param in (
                ({"messages": None}, "messages"), ({"messages": []}, "messages"), ({"messages": "x"}, "messages"),
                ({"messages": [7]}, "messages[0]"), ({"messages": [{}]}, "messages[0].role"),
                ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
                ({"messages": [{"role": "user"}]}, "messages[0].content"),
                ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
                ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
                ({"messages": [*CHAT, {"role": "assistant", "content": "B"}, {"role": "user", "content": []}]},
                 "messages[2].content"),
                (part(type="image", source={}), where + ".type"), (part(type="text"), where + ".text"), (part(), where + ".type"),
                (part(type="tool_use", id="a", name="f", input={}), where + ".type"),
                ({"max_tokens": None}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": "x"}, "max_tokens"),
                ({"max_tokens": CONTEXT}, "messages"), ({"system": 7}, "system"), ({"system": [{"type": "image"}]}, "system[0].type"),
                ({"stop_sequences": [""]}, "stop_sequences"), ({"stop_sequences": 7}, "stop_sequences"),
                ({"temperature": -1}, "temperature"), ({"top_k": "x"}, "top_k"), ({"stream": "x"}, "stream"), ({"n": 2}, "n"),
                ({"thinking": 7}, "thinking"), ({"thinking": {"type": "x"}}, "thinking.type"),
                ({"thinking": {"type": "enabled", "budget_tokens": "x"}}, "thinking.budget_tokens"),
                ({"tools": [{"name": "f"}]}, "tools"), ({"tool_choice": {"type": "any"}}, "tool_choice"),
                ({"mcp_servers": [{}]}, "mcp_servers"), ({"container": "x"}, "container"), ({"service_tier": "x"}, "service_tier"),
                ({"context_management": {"edits": [1]}}, "context_management.edits"),
                ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits"),
                ({"context_management": {"edits": 7}}, "context_management.edits"), ({"context_management": {"x": 1}}, "context_management.x"),
                ({"context_management": [1]}, "context_management"), ({"unknown": 1}, "unknown")):
            self.refused_in_their_form({**good, **body}, param)
        for body in ("", "[]", "{", "7"):
            self.refused_in_their_form(body)
            self.refused_in_their_form(body, path=MESSAGES + "/count_tokens")
        self.refused_in_their_form({**good, "max_tokens": 4}, "max_tokens", path=MESSAGES + "/count_tokens")
        self.refused_in_their_form({"messages": [*CHAT, {"role": "user", "content": []}]}, "messages[1].content",
                                   path=MESSAGES + "/count_tokens")
        self.refused_in_their_form({**good, "model": "claude"}, "model", 404, "not_found_error")
        self.ok(MESSAGES, {**good, "metadata": {"user_id": "me"}, "tools": [], "tool_choice": {"type": "auto"},
                           "service_tier": "auto", "thinking": {"type": "disabled"}})

    def test_what_the_server_refuses_itself(self):
        good = json.dumps({"messages": CHAT, "max_tokens": 4})
        origin, length = {"Origin": "http://evil.example"}, {"Content-Length": str(10**9)}
        for method, path, body, headers, expected in (
                ("POST", MESSAGES, good, origin, (403, "permission_error")),
                ("POST", MESSAGES + "/batches", good, {}, (404, "not_found_error")),
                ("GET", MESSAGES, None, {}, (405, "invalid_request_error")),
                ("GET", MESSAGES + "/count_tokens?beta=true", None, {}, (405, "invalid_request_error")),
                ("POST", MESSAGES, "", length, (413, "request_too_large")),
                ("POST", MESSAGES + "?beta=true", "", length, (413, "request_too_large")),
                ("POST", MESSAGES, good, {"Content-Type": "text/plain"}, (415, "invalid_request_error"))):
            status, headers, text = self.server.request(method, path, body, headers)
            answer = json.loads(text)
            self.assertEqual((status, answer["error"]["type"]), expected, answer)
            self.assertEqual(answer["type"], "error", answer)
            self.assertEqual(headers["Allow"], "POST" if status == 405 else None)
        self.refused("/v1/messagess", good, status=404)  # another path: OpenAI's form

    def test_no_edits_of_the_context(self):
        keeps = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
        for edits in ({"edits": []}, {}, keeps):
            self.create(context_management=edits)
            self.ok(MESSAGES + "/count_tokens", {"messages": CHAT, "context_management": edits})
        keeps["edits"][0]["keep"] = {"type": "thinking_turns", "value": 1}
        body = {"messages": CHAT, "max_tokens": 1, "context_management": keeps}
        self.refused_in_their_form(body, "context_management.edits")
        self.assertIn("edits are not applied", self.server.post(MESSAGES, body)[1]["error"]["message"])


class Keys(OtherApi):
    words = ("--api-key", "secret")

    def test_a_wrong_key(self):
        for path in (MESSAGES, MESSAGES + "/count_tokens"):
            status, headers, text = self.server.request("POST", path, {}, {"X-API-Key": "x"})
            self.assertEqual((status, headers["WWW-Authenticate"]), (401, "Bearer"))
            answer = json.loads(text)
            self.assertEqual((answer["type"], answer["error"]["type"]), ("error", "authentication_error"))


class EditsPassedOver(OtherApi):
    words = ("--unknown-fields", "ignore", "--log-level", "info")

    def test_edits(self):
        edits = {"edits": [{"type": "clear_tool_uses_20250919"}]}
        self.ok(MESSAGES, {"messages": CHAT, "max_tokens": 1, "context_management": edits})
        self.assertIn("the field context_management.edits,", self.server.log())


class Responses(OtherApi):
    def create(self, given="Hello", **more):
        return self.ok(RESPONSES, {"input": given, "max_output_tokens": 12, "temperature": 0, **more})

    def text(self, response):
        self.assertEqual([item["type"] for item in response["output"]], ["message"])
        return response["output"][0]["content"][0]["text"]

    def test_the_text_is_a_chats(self):
        turns = [{"role": "user", "content": "Once"}, {"role": "assistant", "content": "upon"}, {"role": "user", "content": "a time"}]
        items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Once"}]},
                 {"type": "reasoning", "id": "rs", "summary": []},
                 {"type": "message", "id": "m", "status": "completed", "role": "assistant",
                  "content": [{"type": "output_text", "text": "upon", "annotations": []}]},
                 {"role": "user", "content": "a time"}]
        system = {"role": "system", "content": "Be brief."}
        for given, more, chat in (("Hello", {}, CHAT), (turns, {}, turns), (items, {}, turns),
                                  (turns, {"instructions": "Be brief."}, [system, *turns]),
                                  ([{"role": "developer", "content": "Be brief."}, *turns], {}, [system, *turns])):
            expected = self.chat(chat)
            got = self.create(given, **more)
            self.assertEqual(self.text(got), expected["choices"][0]["message"]["content"])
            self.assertEqual((got["object"], got["status"], got["incomplete_details"]),
                             ("response", "incomplete", {"reason": "max_output_tokens"}))
            self.assertEqual([got["usage"][k] for k in ("input_tokens", "output_tokens", "total_tokens")],
                             [expected["usage"][k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")])
            self.assertEqual(got["instructions"], more.get("instructions"))
        done = self.create(stop="e", metadata={"a": "b"}, user="me", store=True)
        self.assertEqual((done["status"], done["metadata"], done["user"], done["store"]), ("completed", {"a": "b"}, "me", False))

    def test_streams(self):
        whole = self.create()
        events = self.events(RESPONSES, {"input": "Hello", "max_output_tokens": 12, "temperature": 0})
        names = [name for name, _ in events]
        self.assertEqual(names[:4], ["response.created", "response.in_progress", "response.output_item.added",
                                     "response.content_part.added"])
        self.assertEqual(names[-4:], ["response.output_text.done", "response.content_part.done", "response.output_item.done",
                                      "response.incomplete"])
        self.assertEqual([e["sequence_number"] for _, e in events], list(range(len(events))))
        text = "".join(e["delta"] for name, e in events if name == "response.output_text.delta")
        self.assertEqual(text, self.text(whole))
        last = events[-1][1]["response"]
        self.assertEqual(self.text(last), text)
        self.assertEqual(last["usage"]["output_tokens"], 12)
        self.assertEqual({e["item_id"] for _, e in events if "item_id" in e}, {last["output"][0]["id"]})

    def test_log_probabilities_are_a_chats(self):
        chat = self.chat(CHAT, logprobs=True, top_logprobs=3)["choices"][0]["logprobs"]["content"]
        asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 3}
        whole = self.create(**asked)
        self.assertEqual(whole["output"][0]["content"][0]["logprobs"], chat)
        self.assertEqual(whole["top_logprobs"], 3)
        events = self.events(RESPONSES, {"input": "Hello", "max_output_tokens": 12, "temperature": 0, **asked})
        deltas = [e["logprobs"] for name, e in events if name == "response.output_text.delta"]
        self.assertEqual([entry for d in deltas for entry in d], chat)
        for name, e in events:
            if name == "response.output_text.done":
                self.assertEqual(e["logprobs"], chat)
        self.assertEqual(events[-1][1]["response"]["output"][0]["content"][0]["logprobs"], chat)
        self.assertEqual(self.create()["output"][0]["content"][0]["logprobs"], [])
        # What ends an answer is no part of its text.
        stopped = self.create(include=asked["include"], stop_token_ids=[self.ok("/v1/tokenize", {"prompt": chat[5]["token"]})["tokens"][0]])
        self.assertEqual([t["token"] for t in stopped["output"][0]["content"][0]["logprobs"]], [t["token"] for t in chat[:5]])

    def test_bad_requests(self):
        good = {"input": "Hello", "max_output_tokens": 4}
        for body, param in (
                ({"input": None}, "input"), ({"input": 7}, "input"), ({"input": []}, "input"), ({"input": [7]}, "input[0]"),
                ({"input": [{}]}, "input[0].role"), ({"input": [{"role": "robot", "content": "a"}]}, "input[0].role"),
                ({"input": [{"role": "user"}]}, "input[0].content"), ({"input": [{"role": "user", "content": 7}]}, "input[0].content"),
                ({"input": [{"role": "user", "content": [7]}]}, "input[0].content[0]"),
                ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
                ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
                ({"input": [{"type": "computer_call"}]}, "input[0].type"), ({"input": [{"type": "function_call"}]}, "input[0].call_id"),
                ({"instructions": 7}, "instructions"), ({"max_output_tokens": CONTEXT}, "input"), ({"max_output_tokens": "x"}, "max_output_tokens"),
                ({"temperature": -1}, "temperature"), ({"max_output_tokens": -1}, "max_output_tokens"), ({"n": 2}, "n"), ({"previous_response_id": "resp_1"}, "previous_response_id"),
                ({"conversation": "c"}, "conversation"), ({"background": True}, "background"), ({"tools": [{"type": "web_search"}]}, "tools"),
                ({"tool_choice": "required"}, "tool_choice"), ({"truncation": "auto"}, "truncation"), ({"include": ["x"]}, "include"),
                ({"text": {"format": {"type": "grammar"}}}, "text.format.type"), ({"text": 7}, "text"), ({"text": {"x": 1}}, "text.x"),
                ({"reasoning": {"effort": "huge"}}, "reasoning.effort"), ({"reasoning": 7}, "reasoning"), ({"top_logprobs": 2}, "top_logprobs"),
                ({"include": ["message.output_text.logprobs"], "top_logprobs": 21}, "top_logprobs"),
                ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
                ({"prompt": {"id": "x"}}, "prompt"), ({"service_tier": "flex"}, "service_tier"), ({"unknown": 1}, "unknown"),
                ({"parallel_tool_calls": 7}, "parallel_tool_calls")):
            self.assertEqual(self.refused(RESPONSES, {**good, **body})["param"], param)
        for body, needle in (({"n": 2}, "n is 2; accepted: 1"), ({"truncation": "auto"}, "truncation is \"auto\"; accepted: disabled"),
                             ({"service_tier": "flex"}, "service_tier is \"flex\"; accepted: auto, default"),
                             ({"text": {"format": {"type": "grammar"}}}, "is \"grammar\"; accepted: text, json_object, json_schema")):
            self.refused(RESPONSES, {**good, **body}, needle=needle)
        self.ok(RESPONSES, {**good, "max_output_tokens": 1, "log_metrics": True, "prompt_cache_key": "x", "store": True})
        self.refused(RESPONSES, {**good, "model": "gpt-4"}, "model", status=404)
        self.assertEqual(self.server.get(RESPONSES + "/resp_1")[0], 404)  # nothing is stored


class Thoughts(OtherApi):
    """A template that opens the thought: everything is one until </think>, which this model does not write."""
    words = ("--reasoning-parser", "deepseek-r1")

    def test_thoughts_stand_apart(self):
        chat = self.chat(CHAT)["choices"][0]["message"]
        self.assertTrue(chat["reasoning_content"])
        message = self.ok(MESSAGES, {"messages": CHAT, "max_tokens": 12, "temperature": 0})
        self.assertEqual([(b["type"], b["thinking"]) for b in message["content"]], [("thinking", chat["reasoning_content"])])
        events = self.events(MESSAGES, {"messages": CHAT, "max_tokens": 12, "temperature": 0})
        deltas = [e["delta"] for name, e in events if name == "content_block_delta"]
        self.assertEqual("".join(d["thinking"] for d in deltas), chat["reasoning_content"])
        response = self.ok(RESPONSES, {"input": "Hello", "max_output_tokens": 12, "temperature": 0})
        self.assertEqual([(i["type"], i["content"][0]["text"]) for i in response["output"]],
                         [("reasoning", chat["reasoning_content"])])
        self.assertGreater(response["usage"]["output_tokens_details"]["reasoning_tokens"], 0)
        events = self.events(RESPONSES, {"input": "Hello", "max_output_tokens": 12, "temperature": 0})
        self.assertEqual("".join(e["delta"] for name, e in events if name == "response.reasoning_text.delta"),
                         chat["reasoning_content"])


if __name__ == "__main__":
    main()
