# SPDX-License-Identifier: Apache-2.0
"""Bad requests to `sluice serve`, keys and origins: S1 to S17 and S19 of docs/robustness.md.

usage: bad_requests_test.py PROGRAM SOURCE_FOLDER [unittest arguments]
"""
import json
import pathlib
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from serve_case import CHAT, CONTEXT, main, MODEL, WithServer  # noqa: E402


class Numbers(WithServer):
    words = ("--enable-priority-scheduling",)

    def test_no_number_makes_an_error_of_the_servers(self):
        """Every numeric field at both ends of what a double and an int64 hold, with text that repeats; through every form
        of a request."""
        numbers = [0, -0.0, 5e-324, 1e-300, 1e-38, 1e-10, 0.001, 0.5, 1, 2, 20, 100, 1e10, 1e38, 1e39, 1e300,
                   1.7976931348623157e308, 2**31 - 1, 2**31, 2**53, 2**63 - 1, -2**63]
        names = ["temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
                 "seed", "n", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs", "timeout", "queue_timeout",
                 "priority", "top_logprobs_num", "logprob_start_len", "top_logprobs"]
        bodies = [{name: sign * value} for name in names for value in numbers for sign in (1, -1)]
        bodies += [{"logit_bias": {"7": v, "0": -v}} for v in (100, -100, 1e-300)]
        bodies += [{"temperature": t, "top_p": p, "min_p": m, "top_k": k} for t in (5e-324, 1e300) for p in (5e-324, 1)
                   for m in (0, 1) for k in (-1, 1, 2**31 - 1)]
        bodies += [{"allowed_token_ids": [5], "bad_words": ["a"], "min_tokens": 2, "repetition_penalty": 0.001},
                   {"min_tokens": 3, "stop_token_ids": list(range(1024)), "allowed_token_ids": list(range(900))}]
        bodies = [body for body in bodies if body.get("n", 1) <= 2]
        text, chat = "a a a a", [{"role": "user", "content": "a a a a"}]
        outer = ("timeout", "queue_timeout", "priority", "top_logprobs_num", "logprob_start_len")

        def generate(body):
            names = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"}
            inner = {names.get(k, k): v for k, v in body.items() if k not in outer}
            return {"text": text, "return_logprob": True, "sampling_params": {"max_new_tokens": 3, **inner},
                    **{k: v for k, v in body.items() if k in outer}}

        with_logprobs = lambda body: {"logprobs": True, **body} if "top_logprobs" in body else body
        forms = {"/v1/completions": lambda body: {"prompt": text, "max_tokens": 3, **body},
                 "/v1/chat/completions": lambda body: {"messages": chat, "max_tokens": 3, **with_logprobs(body)},
                 "/generate": generate,
                 "/v1/messages": lambda body: {"messages": chat, "max_tokens": 3, **body},
                 "/v1/responses": lambda body: {"input": text, "max_output_tokens": 3, **{
                     "max_output_tokens" if k == "max_tokens" else k: v for k, v in body.items()}}}
        for path, form in forms.items():
            served = 0
            for body in bodies:
                status, answer = self.server.post(path, form(body))
                # 503: the time that a request gives itself may be over before its first step.
                accepted = (200, 400, 503) if body.keys() & {"timeout", "queue_timeout"} else (200, 400)
                self.assertIn(status, accepted, (path, body, answer))
                served += status == 200
            self.assertGreater(served, 100, path)


class BadRequests(WithServer):
    def test_s1_counts(self):
        huge = [10**9, 2**63, -1, 0, 1.5, "7", [], {}, True, 1e300]
        for value in huge:
            self.refused("/v1/completions", {"prompt": "a", "n": value}, "n")
            if value != 0:
                self.refused("/generate", {"text": "a", "sampling_params": {"max_new_tokens": value}},
                             "sampling_params.max_new_tokens" if value != 10**9 else "text")
        for value in huge:
            if value in (0, True):
                continue
            self.refused("/v1/chat/completions", {"messages": CHAT, "logprobs": True, "top_logprobs": value},
                         "top_logprobs")
            self.refused("/v1/completions", {"prompt": "a", "logprobs": value}, "logprobs")
            self.refused("/v1/completions", {"prompt": "a", "max_tokens": value},
                         "max_tokens" if value != 10**9 else "prompt")
        self.refused("/v1/completions", {"prompt": "a", "best_of": 10**9}, "best_of")
        self.refused("/v1/completions", {"prompt": ["a"] * 1000, "n": 128}, "n")
        self.refused("/v1/completions", {"prompt": "a", "seed": 2**63}, "seed",
                     "an integer from -9223372036854775808 to 9223372036854775807")
        self.ok("/v1/completions", {"prompt": "a", "max_tokens": None, "n": None, "stop": None, "seed": None})

    def test_s1_sampling_ranges(self):
        for name, values in {"temperature": [-1, "x", 1e400, True], "top_p": [-0.5, 0, 7], "top_k": [-5, 2**40, 1.5],
                             "min_p": [9, -1], "presence_penalty": [3, -3], "frequency_penalty": [3],
                             "repetition_penalty": [0, 1e-300, 3, -1], "seed": [2**64, 1.5, "x"], "stop": ["", [""], 7, [7]],
                             "logit_bias": [{str(10**9): 1}, {"x": 1}, {"1": 1000}, [], 3], "min_tokens": [-1, 10**6],
                             "stop_token_ids": [[10**9], [-1], "x"], "ignore_eos": ["yes"], "stream": [1],
                             "echo": ["x"], "user_defined": [1], "n_keep": [-100], "n_discard": [-1], "id_slot": [99],
                             "samplers": [["nope"]], "stream_options": [{"include_usage": True}, 7]}.items():
            for value in values:
                body = json.dumps({"prompt": "a", name: value}).replace("Infinity", "1e400")
                error = self.refused("/v1/completions", body)
                if "1e400" not in body:
                    self.assertIn(name.replace("stop_token_ids", "stop_token"), error["message"])

    def test_s3_prompts_and_messages(self):
        for prompt in (None, "", [], [""], [[]], 7, {}, [-1], [10**9], [1.5], [[1], "a", 7], [[[1]]], [True], ["a", [10**9]]):
            self.refused("/v1/completions", {"prompt": prompt}, "prompt")
        self.refused("/v1/completions", {}, "prompt")
        for messages in (None, [], "hello", [123], [None], [{}], [{"role": 123, "content": "a"}],
                         [{"role": "nobody", "content": "a"}], [{"role": "user"}], [{"role": "user", "content": 123}],
                         [{"role": "user", "content": None}], [{"role": "user", "content": [{"type": "nonsense"}]}],
                         [{"role": "user", "content": [{"text": "a"}]}], [{"role": "user", "content": [7]}],
                         [{"role": "user", "content": [{"type": "text"}]}]):
            error = self.refused("/v1/chat/completions", {"messages": messages})
            self.assertIn("messages", error["param"])

    def test_s1_s3_the_same_in_sglangs_form(self):
        for name, values in {"top_logprobs_num": [10**6, 2**63, -1, 1.5, "7", [], True],
                             "logprob_start_len": [10**9, 2**63, -5, 1.5, "7"], "rid": [7, "", "x" * 1000],
                             "image_data": ["file:///etc/passwd"], "lora_path": ["/etc"], "custom_logit_processor": ["x"],
                             "sampling_params": [[], 7, "x", [7], {"n": 10**9}, {"n": 0}, {"n": "x"}, {"regex": "("},
                                                 {"stop_regex": "("}, {"ebnf": "("}, {"temperature": -1}, {"unknown": 1}]}.items():
            for value in values:
                error = self.refused("/generate", {"text": "a", "return_logprob": True, name: value})
                self.assertTrue(error["param"].startswith(name), error)
        for body in ({}, {"text": None}, {"text": ""}, {"text": []}, {"text": 7}, {"input_ids": []}, {"input_ids": [[]]},
                     {"input_ids": [-1]}, {"input_ids": [10**9]}, {"input_ids": "x"}, {"text": "a", "input_ids": [1]}):
            self.assertIn(self.refused("/generate", body)["param"], ("text", "input_ids"))
        for path, bodies in {"/v1/tokenize": [{}, {"prompt": None}, {"prompt": 7}, {"prompt": [7]}, {"messages": "x"},
                                              {"messages": [{}]}, {"prompt": "a", "x": 1}],
                             "/v1/apply-template": [{}, {"messages": []}], "/abort_request": [{"abort_all": "x"}, {"rid": 7}],
                             "/update_weights_from_disk": [{"model_path": 7}, {"load_format": "pickle"}, {"x": 1},
                                                           {"flush_cache": "x"}]}.items():
            for body in bodies:
                self.refused(path, body)

    def test_calls_in_the_history_are_never_dropped(self):
        call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for content in (None, "", "text"):
            messages = [*CHAT, {"role": "assistant", "content": content, "tool_calls": [call]}, *CHAT]
            self.refused("/v1/chat/completions", {"messages": messages}, "messages[1].tool_calls", "knows none",
                         code="unsupported_parameter")
        items = [{"role": "user", "content": "Hello"}, {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}]
        error = self.refused("/v1/responses", {"input": items}, needle="knows none", code="unsupported_parameter")
        self.assertEqual(error["param"], "input")

    def test_s4_s5_constraints_are_never_ignored(self):
        for body in ({"response_format": {"type": "grammar"}}, {"tools": [{"type": "function", "function": {"name": "f"}}]},
                     {"tools": "x"}, {"tool_choice": "required"}, {"verbosity": "high"}, {"modalities": ["audio"]},
                     {"audio": {"voice": "x"}}, {"grammar": "root ::= x"}, {"stop_regex": "x"},
                     {"structured_outputs": {"whitespace_pattern": " "}}, {"guided_whitespace_pattern": " "}):
            name = next(iter(body))
            inner = {"structured_outputs": "structured_outputs.whitespace_pattern", "response_format": "response_format.type"}.get(name, name)
            error = self.refused("/v1/chat/completions", {"messages": CHAT, **body}, inner)
            self.assertIn(error["code"], ("unsupported_parameter", "unknown_parameter"))
        # constraint_test.py has more of them.
        for body in ({"response_format": 7}, {"regex": "^(?<=x)*{3}$"}, {"ebnf": "(" * 60000},
                     {"json_schema": {"pattern": "(" * 100000}}, {"guided_json": {"not": {}}}):
            self.refused("/v1/chat/completions", {"messages": CHAT, **body}, next(iter(body)))
        self.refused("/generate", {"text": "a", "sampling_params": {"json_schema": "{"}}, "sampling_params.json_schema")
        self.ok("/v1/chat/completions", {"messages": CHAT, "max_tokens": 1, "response_format": {"type": "text"},
                                         "tools": [], "tool_choice": "none", "user": "me", "metadata": {"a": "b"}})

    def test_errors_name_the_requests_own_field(self):
        chat, plain, sampling = "/v1/chat/completions", "/v1/completions", "sampling_params."
        part = lambda **keys: {"messages": [*CHAT, {"role": "assistant", "content": "a"}, *CHAT, {"role": "user", "content": [
            {"type": "text", "text": "a"}, {"type": "text", **keys}]}]}
        tools = {"tools": [{"type": "function", "function": {"name": "f"}}]}
        for path, body, param in (
                (plain, {"stop_token_ids": [10**9]}, "stop_token_ids"), (plain, {"stop_token_ids": [5000]}, "stop_token_ids"),
                (chat, {"stop_token_ids": [5000]}, "stop_token_ids"),
                ("/generate", {"sampling_params": {"stop_token_ids": [5000]}}, sampling + "stop_token_ids"),
                ("/generate", {"sampling_params": {"logit_bias": {"5000": 1}}}, sampling + "logit_bias"),
                ("/generate", {"sampling_params": {"max_new_tokens": 4, "min_new_tokens": 5}}, sampling + "min_new_tokens"),
                ("/generate", {"sampling_params": {"sampling_seed": "x"}}, sampling + "sampling_seed"),
                (plain, {"logit_bias": {"7": 1000}}, "logit_bias.7"), (plain, {"max_tokens": 4, "min_tokens": 5}, "min_tokens"),
                (chat, part(), "messages[3].content[1].text"), (chat, part(text=7), "messages[3].content[1].text"),
                (chat, part(text="a", type="input_audio"), "messages[3].content[1].type"),
                (chat, {"messages": [*CHAT, {"role": "user", "content": ["a"]}]}, "messages[1].content[0]"),
                (chat, {"messages": [*CHAT, {"role": "user", "content": 7}]}, "messages[1].content"),
                (chat, {"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
                (chat, {**tools, "tool_choice": "required"}, "tools"), (chat, {**tools, "tool_choice": {"type": "x"}}, "tools"),
                (chat, {"include_reasoning": False}, "include_reasoning"), (chat, {"stream_reasoning": False}, "stream_reasoning"),
                (chat, {"functions": [{}], "function_call": {"name": "f"}}, "functions"),
                (chat, {"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage")):
            prompt = {plain: {"prompt": "a"}, chat: {"messages": CHAT}, "/generate": {"text": "a"}}[path]
            self.assertEqual(self.refused(path, {**prompt, **body})["param"], param)
        ids = {"input_ids": [7] * (CONTEXT + 1)}
        self.assertEqual(self.refused("/generate", ids)["param"], "input_ids")

    def test_s7_s11_bodies(self):
        for body in ("", "{", "[]", "7", "null", '"x"', "{}garbage", '{"prompt": "a", "prompt": "b"}', "not json",
                     b'{"prompt": "\xff\xfe"}', b'{"prompt": "\xc0\xaf"}', b'{"prompt": "\xed\xa0\x80"}',
                     '{"prompt": "\\ud800"}', "[" * 100000, '{"a":' * 100000, '{"prompt": 01}', '{"prompt": NaN}',
                     b'{"prompt": "a"}\0'):
            error = self.refused("/v1/completions", body)
            self.assertLess(len(error["message"]), 600)
        self.ok("/v1/completions", {"prompt": "half of a pair: \ufffd", "max_tokens": 1})

    def test_s12_context(self):
        word = self.ok("/v1/tokenize", {"prompt": " the"})["tokens"]
        self.assertEqual(len(word), 1)
        for tokens, wanted in ((CONTEXT + 1, None), (CONTEXT, 1), (CONTEXT - 3, 4), (5, CONTEXT)):
            error = self.refused("/v1/completions", {"prompt": word * tokens, "max_tokens": wanted},
                                 code="context_length_exceeded")
            self.assertIn(str(CONTEXT), error["message"])
            self.assertIn(str(tokens), error["message"])
            self.assertEqual("is longer than the model's context length" in error["message"], tokens > CONTEXT)
        exact = self.ok("/v1/completions", {"prompt": word * (CONTEXT - 3), "max_tokens": 3, "ignore_eos": True})
        self.assertEqual(exact["choices"][0]["finish_reason"], "length")
        filled = self.ok("/v1/completions", {"prompt": word * (CONTEXT - 3), "ignore_eos": True})
        self.assertEqual(filled["usage"]["completion_tokens"], 3)
        self.refused("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 5000}]},
                     "messages", "is longer than the model's context length", code="context_length_exceeded")

    def test_s13_templates_come_from_the_checkpoint(self):
        self.refused("/v1/chat/completions", {"messages": CHAT, "chat_template": "{{ 1 }}"}, "chat_template")
        for name in ("chat_template", "messages", "tokenize", "bos_token", "add_generation_prompt"):
            self.refused("/v1/chat/completions", {"messages": CHAT, "chat_template_kwargs": {name: "x"}},
                         "chat_template_kwargs")
        self.refused("/v1/chat/completions", {"messages": CHAT, "chat_template_kwargs": 7}, "chat_template_kwargs")
        self.ok("/v1/chat/completions", {"messages": CHAT, "max_tokens": 1, "chat_template_kwargs": {"enable_thinking": False}})

    def test_s14_text_that_is_hard_to_tokenize(self):
        for text in ("A" * 1_000_000, "\n" * 200_000, " " * 200_000, "!" * 200_000, "7" * 200_000, "\u4e16" * 100_000,
                     "a" * 500_000 + " " + "b" * 500_000, "\u0301" * 100_000):
            begin = time.monotonic()
            self.assertGreater(self.ok("/v1/tokenize", {"prompt": text})["count"], 100)
            self.assertLess(time.monotonic() - begin, 100 if self.server.sanitized() else 20)

    def test_s19_no_request_reaches_the_file_system(self):
        for path in ("/../../etc/passwd", "/..%2f..%2fetc%2fpasswd", "/v1/models/..%2F..%2Fetc%2Fpasswd", "//etc/passwd",
                     "/playground.html", "/%00", "/static/../../etc/passwd"):
            status, _, text = self.server.get(path)
            self.assertEqual(status, 404, path)
            self.assertNotIn("root:", text)
        for url in ("file:///etc/passwd", "http://127.0.0.1:1/x.png"):
            self.refused("/v1/chat/completions", {"messages": [{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": url}}]}]})
        sentences = {re.sub(r'is ".*?";', "", self.refused("/update_weights_from_disk", {"model_path": p},
                                                           "model_path")["message"])
                     for p in ("/etc", "/nowhere", "../..", str(MODEL) + "/../..", "\0")}
        self.assertEqual(len(sentences), 1)  # which files there are stays unsaid

    def test_other_models_and_paths(self):
        self.refused("/v1/completions", {"model": "gpt-4", "prompt": "a"}, "model", status=404, code="model_not_found")
        self.refused("/v1/embeddings", {"input": "a"}, status=404)
        status, headers, text = self.server.request("GET", "/v1/completions")
        self.assertEqual((status, headers["Allow"]), (405, "POST"))
        status, headers, _ = self.server.request("DELETE", "/v1/models")
        self.assertEqual((status, headers["Allow"]), (405, "GET, HEAD"))
        status, headers, text = self.server.request("HEAD", "/health")
        self.assertEqual((status, text), (200, ""))

    def test_s10_framing(self):
        body = b'{"prompt": "a", "max_tokens": 1}'
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
        length = f"Content-Length: {len(body)}\r\n"
        chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        accepted = {
            "plain": (head + length + "\r\n").encode() + body,
            "chunked": (head + "Transfer-Encoding: chunked\r\n\r\n").encode() + chunks,
            "expect": (head + length + "Expect: 100-continue\r\n\r\n").encode() + body,
            "absolute": (head + length + "\r\n").replace("POST /", "POST http://localhost/").encode() + body,
            "http/1.0": (head + length + "\r\n").replace("HTTP/1.1", "HTTP/1.0").encode() + body,
        }
        for name, data in accepted.items():
            answer = self.server.raw(data)
            self.assertIn(" 200 OK\r\n", answer, name)
            self.assertIn('"text_completion"', answer, name)
        both = self.server.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
                               b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")  # pipelined
        self.assertEqual(both.count("200 OK"), 2)
        bad = {
            "length and chunks": (head + length + "Transfer-Encoding: chunked\r\n\r\n").encode() + chunks,
            "two lengths": (head + length + "Content-Length: 7\r\n\r\n").encode() + body,
            "length -1": (head + "Content-Length: -1\r\n\r\n").encode() + body,
            "length 10^20": (head + f"Content-Length: {10**20}\r\n\r\n").encode() + body,
            "chunk of 2^64": (head + "Transfer-Encoding: chunked\r\n\r\n").encode() + b"FFFFFFFFFFFFFFFF\r\n" + body,
            "chunk without end": (head + "Transfer-Encoding: chunked\r\n\r\n").encode() + b"3\r\nabcdef\r\n0\r\n\r\n",
            "no such chunk size": (head + "Transfer-Encoding: chunked\r\n\r\n").encode() + b"xyz\r\n",
            "long header line": (head + "X: " + "a" * 1_000_000 + "\r\n\r\n").encode(),
            "many headers": (head + "X: a\r\n" * 10_000 + "\r\n").encode(),
            "bare NUL in the path": b"GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "a TLS hello": bytes.fromhex("16030100a5010000a10303") + b"\0" * 200,
            "garbage": b"\xff\xfe\xfd garbage\r\n\r\n",
            "no method": b"   / HTTP/1.1\r\n\r\n",
            "chunks in gzip": (head + "Transfer-Encoding: chunked, gzip\r\n\r\n").encode() + chunks,
            "gzip in chunks": (head + "Transfer-Encoding: gzip, chunked\r\n\r\n").encode() + chunks,
            "no coding": (head + "Transfer-Encoding: identity\r\n\r\n").encode() + body,
            "two codings": (head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n").encode() + chunks,
            "line feed in a chunk extension": (head + "Transfer-Encoding: chunked\r\n\r\n").encode() + b"20;a\nb\r\n" + body,
            "carriage return in a chunk extension": (head + "Transfer-Encoding: chunked\r\n\r\n").encode() + b"20;a\rb\r\n" + body,
            "chunk of -1": (head + "Transfer-Encoding: chunked\r\n\r\n").encode() + b"-1\r\n" + body,
            "length +5": (head + "Content-Length: +5\r\n\r\n").encode() + body,
            "length 0x20": (head + "Content-Length: 0x20\r\n\r\n").encode() + body,
            "no host": (head.replace("Host: localhost\r\n", "") + length + "\r\n").encode() + body,
            "two hosts": (head + "Host: evil.example\r\n" + length + "\r\n").encode() + body,
            "space before the colon": b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n",
            "bare line feeds": (head.replace("\r\n", "\n") + f"Content-Length: {len(body)}\n\n").encode() + body,
            "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "another version": b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
            "compressed body": (head + "Content-Encoding: gzip\r\n" + length + "\r\n").encode() + body,
            "1 GB announced": (head + f"Content-Length: {10**9}\r\n\r\n").encode(),
        }
        for name, data in bad.items():
            answer = self.server.raw(data)
            self.assertRegex(answer, r"^HTTP/1\.1 4(00|13|15|31) ", name)
            self.assertIn('{"error":{"message":', answer, name)
            self.assertRegex(answer, r"\r\nX-Request-Id: req-[0-9a-f]{28}\r\n", name)
        self.assertEqual(self.server.get("/health")[0], 200)

    def test_parameters_of_the_content_type(self):
        body = {"prompt": "a", "max_tokens": 1}
        for form in ("application/json; charset=utf-8", "application/json \t; charset=utf-8", "Application/JSON\t;x=y"):
            self.ok("/v1/completions", body, headers={"Content-Type": form})
        for form in ("application/json x; charset=utf-8", "\t;", "text/plain; application/json"):
            self.refused("/v1/completions", body, status=415, headers={"Content-Type": form})

    def test_s11_large_body(self):
        status, answer = self.server.post("/v1/completions", b'{"prompt": "' + b"a" * (33 << 20) + b'"}')
        self.assertEqual(status, 413, answer)
        self.assertIn(str(32 << 20), answer["error"]["message"])


class Keys(WithServer):
    words = ("--api-key", "secret", "--admin-api-key", "boss", "--cors-origins", "http://friend.example")

    def status(self, path, key=None, method="GET", name="Authorization"):
        headers = {} if key is None else {name: key}
        body = None if method == "GET" else {}
        return self.server.request(method, path, body, headers)[0]

    def test_s16_keys(self):
        for path in ("/health", "/ping", "/"):
            self.assertEqual(self.status(path), 200)
        for path in ("/v1/models", "/metrics", "/version", "/get_model_info", "/health_generate"):
            for key in (None, "Bearer wrong", "Bearer secre", "Bearer secret2", "Bearer", "Basic secret", "secret",
                        "Bearer " + "x" * 8000):
                self.assertEqual(self.status(path, key), 401, (path, key))
            self.assertEqual(self.status(path, "Bearer secret"), 200, path)
            self.assertEqual(self.status(path, "secret", name="X-API-Key"), 200)
            self.assertEqual(self.status(path, "Bearer boss"), 200)
        for path in ("/v1/completions", "/v1/chat/completions", "/generate", "/v1/tokenize", "/v1/detokenize"):
            self.assertEqual(self.status(path, None, "POST"), 401)
            self.assertEqual(self.status(path, "Bearer secret", "POST"), 400)
        for path in ("/flush_cache", "/abort_request", "/update_weights_from_disk", "/update_weights_from_tensor",
                     "/pause_generation", "/continue_generation", "/weights_checker", "/get_weights_by_name",
                     "/update_weight_version", "/release_memory_occupation", "/resume_memory_occupation"):
            self.assertEqual(self.status(path, "Bearer secret", "POST"), 401)
            self.assertNotEqual(self.status(path, "Bearer boss", "POST"), 401)
        status, headers, text = self.server.get("/v1/models")
        self.assertEqual(json.loads(text)["error"]["type"], "authentication_error")
        self.assertEqual(headers["WWW-Authenticate"], "Bearer")

    def test_s17_named_origins(self):
        status, headers, _ = self.server.request("OPTIONS", "/v1/completions", headers={"Origin": "http://friend.example"})
        self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (204, "http://friend.example"))
        self.assertIsNone(headers["Access-Control-Allow-Credentials"])
        self.assertEqual(headers["Access-Control-Allow-Headers"], "Authorization, Content-Type, X-API-Key, X-Request-Id")
        # What OpenAI's and Anthropic's clients in a browser ask for; what is no list of names is not repeated.
        asked = ("authorization,content-type,x-stainless-arch,x-stainless-os",
                 "anthropic-dangerous-direct-browser-access, anthropic-version, x-api-key")
        for names, is_allowed in (*((a, True) for a in asked), ("x" * 1025, False), ("a\"b", False), ("a: b", False),
                                  ("\u00e9", False)):
            _, headers, _ = self.server.request("OPTIONS", "/v1/messages", headers={
                "Origin": "http://friend.example", "Access-Control-Request-Headers": names})
            self.assertEqual(headers["Access-Control-Allow-Headers"] == names, is_allowed, names)
        status, headers, _ = self.server.request("OPTIONS", "/v1/completions", headers={"Origin": "http://evil.example"})
        self.assertEqual(status, 403)
        for origin, status in (("http://friend.example", 200), ("http://evil.example", 403)):
            got, headers, _ = self.server.request("GET", "/v1/models", headers={"Origin": origin, "X-API-Key": "secret"})
            self.assertEqual(got, status)
            self.assertEqual(headers["Access-Control-Allow-Origin"], origin if status == 200 else None)
            self.assertEqual(headers["Access-Control-Expose-Headers"],
                             "X-Request-Id, Retry-After" if status == 200 else None)


if __name__ == "__main__":
    main()
