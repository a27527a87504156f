# SPDX-License-Identifier: Apache-2.0
"""What clients written for OpenAI, SGLang and vLLM send to `sluice serve`, and what they read from its answers.

usage: clients_test.py PROGRAM SOURCE_FOLDER [unittest arguments]
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from serve_case import CHAT, CONTINUATION, main, PROMPT, WithServer  # noqa: E402

# An answer as libraries between client and server hand it back: LiteLLM, OpenRouter, Vercel's AI SDK, LangChain.
KEPT_ANSWER = {"role": "assistant", "content": "Hi", "refusal": None, "annotations": [], "audio": None,
               "function_call": None, "tool_calls": None, "reasoning": None, "reasoning_content": None,
               "reasoning_details": [{"type": "reasoning.text", "text": "x"}],
               "thinking_blocks": [{"type": "thinking", "thinking": "x", "signature": ""}],
               "provider_specific_fields": {"refusal": None, "matched_stop": 2}, "id": "msg_1", "name": None,
               "createdAt": "2026-01-01T00:00:00Z", "images": [], "metadata": {"a": {}}, "parsed": None}


class Messages(WithServer):
    def prompt(self, messages, **more):
        return self.ok("/v1/apply-template", {"messages": messages, **more})["prompt"]

    def test_keys_that_other_software_adds(self):
        plain = self.prompt([*CHAT, {"role": "assistant", "content": "Hi"}, *CHAT])
        self.assertEqual(self.prompt([*CHAT, KEPT_ANSWER, {**CHAT[0], "id": "1", "createdAt": 7, "name": None}]), plain)
        part = {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}, "citations": None, "id": "p"}
        cached = [{"role": "user", "content": [part], "cache_control": {"type": "ephemeral"}}]
        self.assertEqual(self.prompt([*cached, KEPT_ANSWER, *cached]), plain)
        self.ok("/v1/chat/completions", {"messages": [*cached, KEPT_ANSWER, *cached], "max_tokens": 1})

    def test_answers_without_text(self):
        empty = self.prompt([*CHAT, {"role": "assistant", "content": ""}, *CHAT])
        for content in ({}, {"content": None}, {"content": []}, {"content": None, "reasoning_content": "hm"},
                        {"content": None, "tool_calls": []}, {"content": [{"type": "text", "text": ""}]}):
            self.assertEqual(self.prompt([*CHAT, {"role": "assistant", **content}, *CHAT]), empty, content)
        refusal = self.prompt([*CHAT, {"role": "assistant", "content": "No."}, *CHAT])
        for said in ({"refusal": "No."}, {"content": [{"type": "refusal", "refusal": "No."}]}):
            self.assertEqual(self.prompt([*CHAT, {"role": "assistant", **said}, *CHAT]), refusal, said)

    def test_strict_at_the_top(self):
        self.refused("/v1/chat/completions", {"messages": CHAT, "annotations": [1]}, "annotations",
                     code="unknown_parameter")
        self.ok("/v1/chat/completions", {"messages": CHAT, "annotations": None, "max_tokens": 1})


class UnknownFields(WithServer):
    words = ("--unknown-fields", "ignore", "--log-level", "info")

    def test_ignored_and_named_once(self):
        for _ in range(3):
            self.ok("/v1/completions", {"prompt": "a", "max_tokens": 1, "made_up": 1})
            self.ok("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 1, "invented": [1]}, "made_up": {}})
        log = self.server.log()
        self.assertEqual([log.count(f"the field {name},") for name in ("made_up", "sampling_params.invented")], [1, 1], log)
        # What would change the answer is still refused, and so is a value that cannot be.
        self.refused("/v1/completions", {"prompt": "a", "stop_regex": "x"}, "stop_regex", code="unsupported_parameter")
        self.refused("/v1/completions", {"prompt": "a", "temperature": -1}, "temperature")


class PeersFields(WithServer):
    """Fields of vLLM and SGLang that OpenAI has not."""

    def ids(self, **body):
        """Text and token ids of a greedy /generate."""
        answer = self.ok("/generate", {"text": PROMPT, "sampling_params": {"max_new_tokens": 12, "temperature": 0}, **body})
        return answer["text"], answer["output_ids"]

    def test_values_that_ask_for_nothing(self):
        chats, completions, responses = "/v1/chat/completions", "/v1/completions", "/v1/responses"
        chat, completion = {"messages": CHAT, "max_tokens": 1}, {"prompt": "a", "max_tokens": 1}
        response = {"input": "a", "max_output_tokens": 1}
        for path, body, fields in (
                (chats, chat, {"echo": False, "add_special_tokens": False, "length_penalty": 1, "verbosity": "medium"}),
                (chats, chat, {"length_penalty": 1.0, "use_beam_search": False, "truncate_prompt_tokens": 0.0}),
                (completions, completion, {"length_penalty": 1.0, "verbosity": ""}),
                # Of other endpoints: SGLang's clients send their defaults.
                (chats, chat, {"return_prompt_token_ids": False, "return_sampling_mask": False, "suffix": ""}),
                (responses, response, {"text": {"verbosity": "medium"}})):
            for name, value in fields.items():
                self.ok(path, {**body, name: value})
        for path, body, name, value in ((chats, chat, "echo", True), (chats, chat, "add_special_tokens", True),
                                        (chats, chat, "length_penalty", 0.5), (completions, completion, "length_penalty", 2),
                                        (chats, chat, "verbosity", "low"), (chats, chat, "return_sampling_mask", True), (chats, chat, "truncate_prompt_tokens", 0.5),
                                        (responses, response, "text", {"verbosity": "high"})):
            error = self.refused(path, {**body, name: value}, code="unsupported_parameter")
            self.assertEqual(error["param"], "text.verbosity" if name == "text" else name)
        for special in (True, False):
            count = self.ok("/v1/tokenize", {"prompt": "a", "add_special_tokens": special})["count"]
            answer = self.ok(completions, {**completion, "add_special_tokens": special})
            self.assertEqual(answer["usage"]["prompt_tokens"], count)

    def test_request_ids_are_vllms(self):
        for path, body, id in (("/v1/chat/completions", {"messages": CHAT, "max_tokens": 1}, "chatcmpl-mine"),
                               ("/v1/completions", {"prompt": "a", "max_tokens": 1}, "cmpl-mine"),
                               ("/v1/responses", {"input": "a", "max_output_tokens": 1}, "mine"),
                               ("/v1/messages", {"messages": CHAT, "max_tokens": 1}, "msg_mine")):
            self.assertEqual(self.ok(path, {**body, "request_id": "mine"})["id"], id)
            self.ok(path, {**body, "request_id": "mine", "rid": "mine"})
            self.assertNotEqual(self.ok(path, {**body, "rid": "mine"})["id"], id)  # SGLang's says nothing of the id here
        for body in ({"request_id": "a", "rid": "b"}, {"request_id": ""}, {"request_id": 7}, {"request_id": "x" * 1000}):
            self.refused("/v1/completions", {"prompt": "a", **body}, "request_id")

    def test_usage_in_every_chunk(self):
        for path, prompt in (("/v1/completions", {"prompt": PROMPT}), ("/v1/chat/completions", {"messages": CHAT})):
            for last in (False, True):
                status, events = self.server.stream(path, {**prompt, "max_tokens": 6, "n": 2, "ignore_eos": True,
                                                           "stream_options": {"continuous_usage_stats": True,
                                                                              "include_usage": last}})
                self.assertEqual(status, 200, events)
                total = events.pop() if last else None
                self.assertTrue(all(e["choices"] for e in events))
                prompt_tokens = {e["usage"]["prompt_tokens"] for e in events}
                self.assertEqual(len(prompt_tokens), 1)
                for index in (0, 1):  # as the peers: of the chunk's own choice
                    counts = [e["usage"]["completion_tokens"] for e in events if e["choices"][0]["index"] == index]
                    self.assertEqual(counts, sorted(counts))
                    self.assertEqual(counts[-1], 6)
                if last:
                    self.assertEqual(total["usage"]["completion_tokens"], 12)
                    self.assertEqual(total["usage"]["prompt_tokens"], prompt_tokens.pop())

    def test_logprobs_0_shows_the_chosen_token(self):
        body = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0}
        zero, two = (self.ok("/v1/completions", {**body, "logprobs": k})["choices"][0]["logprobs"] for k in (0, 2))
        self.assertEqual([list(d.items()) for d in zero["top_logprobs"]],
                         [[(token, p)] for token, p in zip(zero["tokens"], zero["token_logprobs"])])
        self.assertEqual([len(d) for d in two["top_logprobs"]], [2] * 4)
        chat = self.ok("/v1/chat/completions", {"messages": CHAT, "max_tokens": 2, "ignore_eos": True, "logprobs": True, "top_logprobs": 0})
        self.assertEqual([t["top_logprobs"] for t in chat["choices"][0]["logprobs"]["content"]], [[], []])

    def test_no_tokens_and_no_prompt(self):
        for path, body in (("/v1/completions", {"prompt": PROMPT, "max_tokens": 0}),
                           ("/v1/completions", {"prompt": "a", "max_tokens": 0}),
                           ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 0}),
                           ("/v1/chat/completions", {"messages": CHAT, "max_completion_tokens": 0})):
            answer = self.ok(path, body)
            self.assertEqual(answer["usage"]["completion_tokens"], 0)
            self.assertEqual(answer["choices"][0]["finish_reason"], "length")
            self.assertEqual(self.server.stream(path, body)[1][-1]["choices"][0]["finish_reason"], "length")
        answer = self.ok("/generate", {"text": PROMPT, "sampling_params": {"max_new_tokens": 0}, "return_logprob": True})
        self.assertEqual((answer["text"], answer["output_ids"]), ("", []))
        self.assertEqual(answer["meta_info"]["input_token_logprobs"], [])
        answer = self.ok("/v1/responses", {"input": "a", "max_output_tokens": 0})
        self.assertEqual((answer["incomplete_details"], answer["usage"]["output_tokens"]), ({"reason": "max_output_tokens"}, 0))
        self.refused("/v1/messages", {"messages": CHAT, "max_tokens": 0}, "max_tokens", "1 or more")  # as Anthropic and vLLM
        for path, body, param in (("/v1/completions", {"prompt": ""}, "prompt"), ("/generate", {"text": ""}, "text"),
                                  ("/v1/completions", {"prompt": ["a", ""]}, "prompt"),
                                  ("/v1/completions", {"prompt": [[7], []]}, "prompt")):
            self.refused(path, body, param, "is empty; at least one token is needed")
        for path, param in (("/v1/completions", "prompt"), ("/generate", "input_ids")):
            self.refused(path, {param: []}, param, "is an array of 0 values; accepted: ")

    def test_prompt_logprobs(self):
        echo = self.ok("/v1/completions", {"prompt": PROMPT, "max_tokens": 0, "echo": True, "logprobs": 1})
        expected = echo["choices"][0]["logprobs"]["token_logprobs"]
        for n in (1, 2):
            answer = self.ok("/v1/completions", {"prompt": [PROMPT, "a"], "max_tokens": 2, "prompt_logprobs": 3, "n": n,
                                                 "return_token_ids": True, "logprobs": 1})
            for choice in answer["choices"][:n]:
                ids, positions = choice["prompt_token_ids"], choice["prompt_logprobs"]
                self.assertIsNone(positions[0])
                self.assertEqual([p[str(i)]["logprob"] for i, p in zip(ids[1:], positions[1:])], expected[1:])
                for i, position in zip(ids[1:], positions[1:]):
                    self.assertIn(len(position), (3, 4))
                    ranked = sorted((e for e in position.values() if e["rank"]), key=lambda e: e["rank"])
                    self.assertEqual([e["rank"] for e in ranked], [1, 2, 3])
                    self.assertEqual([e["logprob"] for e in ranked], sorted((e["logprob"] for e in ranked), reverse=True))
                    self.assertLessEqual(position[str(i)]["logprob"], ranked[0]["logprob"])
                self.assertEqual([len(d) for d in choice["logprobs"]["top_logprobs"]][0] <= 2, True)
            self.assertEqual(answer["choices"][-1]["prompt_logprobs"], [None])
        chat = self.ok("/v1/chat/completions", {"messages": CHAT, "max_tokens": 1, "prompt_logprobs": 0,
                                                "return_token_ids": True})
        self.assertEqual(len(chat["prompt_logprobs"]), len(chat["prompt_token_ids"]))
        self.assertEqual([list(p) for p in chat["prompt_logprobs"][1:]], [[str(i)] for i in chat["prompt_token_ids"][1:]])
        self.refused("/v1/completions", {"prompt": "a", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs")
        self.refused("/v1/completions", {"prompt": "a", "prompt_logprobs": 21}, "prompt_logprobs")

    def test_logprobs_of_named_tokens(self):
        body = {"messages": CHAT, "max_tokens": 3, "temperature": 0, "logprobs": True}
        top = self.ok("/v1/chat/completions", {**body, "top_logprobs": 5})["choices"][0]["logprobs"]["content"]
        wanted = top[0]["top_logprobs"][3]
        named = self.ok("/v1/tokenize", {"prompt": wanted["token"]})["tokens"]
        got = self.ok("/v1/chat/completions", {**body, "logprob_token_ids": [named[0], 7]})
        content = got["choices"][0]["logprobs"]["content"]
        self.assertEqual([len(t["top_logprobs"]) for t in content], [2] * 3)
        self.assertEqual(content[0]["top_logprobs"][0], wanted)
        lists = self.ok("/v1/completions", {"prompt": PROMPT, "max_tokens": 2, "logprobs": 0, "logprob_token_ids": [7, 9]})
        self.assertIn(len(lists["choices"][0]["logprobs"]["top_logprobs"][0]), (2, 3))
        for path, prompt in (("/v1/completions", {"prompt": "a", "logprobs": 1}), ("/v1/chat/completions", body)):
            self.refused(path, {**prompt, "logprob_token_ids": [10**9]}, "logprob_token_ids")
        self.refused("/v1/completions", {"prompt": "a", "logprob_token_ids": [1]}, "logprob_token_ids", "logprobs is not")
        # SGLang's form, of the prompt too.
        ids = self.ok("/v1/tokenize", {"prompt": PROMPT})["tokens"]
        meta = self.ok("/generate", {"text": PROMPT, "sampling_params": {"max_new_tokens": 2, "temperature": 0},
                                     "return_logprob": True, "logprob_start_len": 0, "token_ids_logprob": [ids[3], 9]})
        meta = meta["meta_info"]
        self.assertEqual([t[1] for t in meta["output_token_ids_logprobs"][1]], [ids[3], 9])
        rows = meta["input_token_ids_logprobs"]
        self.assertEqual((rows[0], len(rows)), (None, len(ids)))
        self.assertEqual(rows[3][0], meta["input_token_logprobs"][3])
        self.assertNotIn("output_top_logprobs", meta)

    def test_the_prompts_first_logprob_is_null_wherever_it_starts(self):
        """As SGLang's lists; at the prompt's end there are none."""
        ids = self.ok("/v1/tokenize", {"prompt": PROMPT})["tokens"]
        body = {"text": PROMPT, "sampling_params": {"max_new_tokens": 1, "temperature": 0}, "return_logprob": True,
                "top_logprobs_num": 1, "token_ids_logprob": [7]}
        keys = ["input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs"]
        whole = self.ok("/generate", {**body, "logprob_start_len": 0})["meta_info"]
        for start in (1, len(ids) - 1):
            part = self.ok("/generate", {**body, "logprob_start_len": start})["meta_info"]
            self.assertEqual(part[keys[0]][0][:2], [None, ids[start]])
            self.assertEqual([part[key][0] for key in keys[1:]], [None, None])
            for key in keys:
                self.assertEqual(part[key][1:], whole[key][start + 1:])
        end = self.ok("/generate", {**body, "logprob_start_len": len(ids)})["meta_info"]
        self.assertEqual([end[key] for key in keys], [[], [], []])
        self.refused("/generate", {**body, "logprob_start_len": len(ids) + 1}, "logprob_start_len")

    def test_every_choice_of_generate_has_the_prompts_logprobs(self):
        body = {"text": PROMPT * 100, "return_logprob": True, "top_logprobs_num": 1, "token_ids_logprob": [7],
                "sampling_params": {"max_new_tokens": 2, "temperature": 0, "n": 3}}
        keys = ["input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs"]
        for answer in self.ok("/generate", body):  # also puts the prompt into the cache, so that the second choice is quick
            self.assertEqual([answer["meta_info"][key] for key in keys], [[], [], []])
            self.assertEqual(len(answer["meta_info"]["output_token_logprobs"]), 2)
        body["logprob_start_len"] = 0
        answers = self.ok("/generate", body)
        for answer in answers:
            for key in keys:
                self.assertEqual(len(answer["meta_info"][key]), answer["meta_info"]["prompt_tokens"])
                self.assertEqual(answer["meta_info"][key], answers[0]["meta_info"][key])
        status, events = self.server.stream("/generate", body)
        for event in events:
            self.assertEqual([event["meta_info"][key] for key in keys], [answers[0]["meta_info"][key] for key in keys])
            self.assertEqual(event["meta_info"]["output_token_logprobs_length"], len(event["output_ids"]))
        last = {event["index"]: event["output_ids"] for event in events}
        self.assertEqual(last, {answer["index"]: answer["output_ids"] for answer in answers})

    def test_tokens_are_named_by_their_ids(self):
        named = lambda i: f"token_id:{i}"
        more = {"max_tokens": 5, "temperature": 0, "return_token_ids": True, "return_tokens_as_token_ids": True}
        choice = self.ok("/v1/completions", {"prompt": PROMPT, "logprobs": 2, "echo": True, **more})["choices"][0]
        lists = choice["logprobs"]
        self.assertEqual(lists["tokens"], [named(i) for i in choice["prompt_token_ids"] + choice["token_ids"]])
        self.assertTrue(all(token in top for token, top in zip(lists["tokens"][1:], lists["top_logprobs"][1:])))
        plain = self.ok("/v1/completions", {"prompt": PROMPT, "logprobs": 2, "echo": True, **more,
                                            "return_tokens_as_token_ids": False})["choices"][0]["logprobs"]
        self.assertEqual((lists["token_logprobs"], lists["text_offset"]), (plain["token_logprobs"], plain["text_offset"]))
        self.assertEqual([list(top.values()) for top in lists["top_logprobs"][1:]],
                         [list(top.values()) for top in plain["top_logprobs"][1:]])
        chat = {"messages": CHAT, "logprobs": True, "top_logprobs": 2, **more}
        choice = self.ok("/v1/chat/completions", chat)["choices"][0]
        content = choice["logprobs"]["content"]
        self.assertEqual([t["token"] for t in content], [named(i) for i in choice["token_ids"]])
        self.assertEqual([t["top_logprobs"][0]["token"] for t in content], [t["token"] for t in content])
        status, events = self.server.stream("/v1/chat/completions", chat)
        streamed = [t for e in events for t in ((e["choices"][0].get("logprobs") or {}).get("content") or [])]
        self.assertEqual(streamed, content)

    def test_token_ids_come_back(self):
        text, ids = self.ids()
        body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "return_token_ids": True}
        prompt = self.ok("/v1/tokenize", {"prompt": PROMPT})["tokens"]
        whole = self.ok("/v1/completions", body)["choices"][0]
        self.assertEqual((whole["token_ids"], whole["prompt_token_ids"]), (ids, prompt))
        status, events = self.server.stream("/v1/completions", body)
        self.assertEqual([i for e in events for i in e["choices"][0]["token_ids"]], ids)
        self.assertEqual([e["choices"][0].get("prompt_token_ids") for e in events], [prompt] + [None] * (len(events) - 1))
        chat = {"messages": CHAT, "max_tokens": 5, "temperature": 0, "return_token_ids": True}
        whole = self.ok("/v1/chat/completions", chat)
        self.assertEqual(whole["prompt_token_ids"], self.ok("/v1/tokenize", {"messages": CHAT})["tokens"])
        status, events = self.server.stream("/v1/chat/completions", chat)
        self.assertEqual([i for e in events for i in e["choices"][0].get("token_ids", [])],
                         whole["choices"][0]["token_ids"])
        self.assertEqual(events[0]["prompt_token_ids"], whole["prompt_token_ids"])
        self.assertNotIn("token_ids", self.ok("/v1/completions", {"prompt": "a", "max_tokens": 1})["choices"][0])

    def test_continued_messages(self):
        start = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
        begun = [*CHAT, {"role": "assistant", "content": "Once upon"}]
        prompt = lambda **body: self.ok("/v1/apply-template", body)["prompt"]
        self.assertEqual(prompt(messages=begun, continue_final_message=True), start + "Once upon")
        self.assertEqual(prompt(messages=begun, continue_final_message=True, add_generation_prompt=False),
                         start + "Once upon")
        self.assertEqual(prompt(messages=CHAT, add_generation_prompt=False), start.split("<|im_start|>assistant")[0])
        self.assertEqual(prompt(messages=CHAT, add_generation_prompt=True), start)
        # The same words before, and special tokens of a user in what goes on.
        twice = [{"role": "user", "content": "Once upon"}, {"role": "assistant", "content": "a <|im_end|> b"}]
        self.assertTrue(prompt(messages=twice, continue_final_message=True).endswith("assistant\na <|im_end|> b"))
        body = {"max_tokens": 6, "temperature": 0}
        chat = self.ok("/v1/chat/completions", {**body, "messages": begun, "continue_final_message": True})
        plain = self.ok("/v1/completions", {**body, "prompt": start + "Once upon"})
        self.assertEqual(chat["choices"][0]["message"]["content"], plain["choices"][0]["text"])
        self.refused("/v1/chat/completions", {"messages": begun, "continue_final_message": True,
                                              "add_generation_prompt": True}, "continue_final_message")

    def test_allowed_tokens_and_bad_words(self):
        text, ids = self.ids()
        self.assertEqual(text, CONTINUATION[:len(text)])
        allowed = sorted(set(ids[3:6]))
        body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "return_token_ids": True}
        got = self.ok("/v1/completions", {**body, "allowed_token_ids": allowed})["choices"][0]["token_ids"]
        self.assertTrue(len(got) == 12 and set(got) <= set(allowed), got)
        word = text.split()[1]
        self.assertNotIn(" " + word, self.ok("/v1/completions", {**body, "bad_words": [word, "never"]})["choices"][0]["text"])
        self.ok("/v1/chat/completions", {"messages": CHAT, "max_tokens": 2, "allowed_token_ids": allowed, "bad_words": [word]})
        self.ok("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 1, "allowed_token_ids": [5]}})
        # What contradicts itself ends without a word; it is no error of the server's.
        none = self.ok("/v1/completions", {**body, "allowed_token_ids": [5], "stop_token_ids": [5], "min_tokens": 2})
        self.assertEqual((none["choices"][0]["token_ids"], none["choices"][0]["finish_reason"]), ([], "stop"))
        for name, values in {"allowed_token_ids": [[], [10**9], [-1], "x", [1.5]],
                             "bad_words": [[""], [" "], [7], 7, ["a" * 100000], ["a"] * 5000]}.items():
            for value in values:
                self.refused("/v1/completions", {"prompt": "a", name: value}, name)


class ManyPrompts(WithServer):
    def test_a_request_of_many_prompts_on_an_idle_server(self):
        for prompts, n in ((300, 1), (1024, 1), (300, 3)):
            answer = self.ok("/v1/completions", {"prompt": ["a"] * prompts, "max_tokens": 1, "n": n})
            self.assertEqual([c["index"] for c in answer["choices"]], list(range(prompts * n)))
        several = self.ok("/generate", {"text": ["a"] * 300, "sampling_params": {"max_new_tokens": 1}})
        self.assertEqual(len(several), 300)

    def test_what_can_never_be_served_is_said_with_the_number(self):
        self.refused("/v1/completions", {"prompt": ["a"] * 1025}, "prompt", "1024")
        self.refused("/v1/completions", {"prompt": ["a"] * 513, "n": 2}, "n", "1024")
        self.refused("/generate", {"text": ["a"] * 513, "sampling_params": {"n": 2}}, "sampling_params.n", "1024")


class SglangLists(WithServer):
    """Fields of /generate with a value for each prompt."""

    def test_values_for_each_prompt(self):
        texts, sampling = [PROMPT, "Once upon a time"], {"max_new_tokens": 3, "temperature": 0}
        both = self.ok("/generate", {"text": texts, "sampling_params": sampling, "model": ["tiny", "tiny"],
                                     "rid": ["one", "two"], "return_logprob": [True, False], "top_logprobs_num": [2, 0],
                                     "logprob_start_len": [1, -1], "token_ids_logprob": [[5, 6], None]})
        self.assertEqual([a["meta_info"]["id"] for a in both], ["one", "two"])
        for key in ("output_token_logprobs", "output_token_logprobs_length"):
            self.assertNotIn(key, both[1]["meta_info"])
        alone = self.ok("/generate", {"text": PROMPT, "sampling_params": sampling, "model": "tiny", "return_logprob": True,
                                      "top_logprobs_num": 2, "logprob_start_len": 1, "token_ids_logprob": [5, 6]})
        for key in ("output_token_logprobs", "output_top_logprobs", "input_token_logprobs", "output_token_ids_logprobs"):
            self.assertEqual(both[0]["meta_info"][key], alone["meta_info"][key], key)
        for name, value in {"model": ["tiny"], "rid": ["one"], "return_logprob": [True] * 3,
                            "token_ids_logprob": [[1]]}.items():
            self.refused("/generate", {"text": texts, name: value}, name, "2 prompts")
        for value in ([[1]], [[0], [1, 2]]):
            self.refused("/generate", {"text": PROMPT, "return_logprob": True, "token_ids_logprob": value}, "token_ids_logprob",
                         "a flat list of integers")
        self.refused("/generate", {"text": texts, "model": ["tiny", "other"]}, "model", status=404)
        self.refused("/generate", {"text": texts, "rid": ["same", "same"]}, "rid", 'rid holds "same" twice')
        several = self.ok("/generate", {"text": texts, "rid": [None, None], "sampling_params": sampling})
        self.assertEqual(len({a["meta_info"]["id"] for a in several}), 2)
        self.ok("/generate", {"text": texts, "rid": ["same", "other"], "sampling_params": sampling})  # nothing was kept


if __name__ == "__main__":
    main()
