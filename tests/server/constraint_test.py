# SPDX-License-Identifier: Apache-2.0
"""Constrained output over HTTP: every field of OpenAI, vLLM and SGLang that asks for it, greedy and at temperature 2, whole
and streamed; answers are checked by Python's json and re modules. What is refused, and what a constraint does beside
other fields. Without xgrammar in the program: the sentence that says so.

usage: constraint_test.py PROGRAM SOURCE_FOLDER [unittest arguments]
"""
import json
import re
import threading
import time

from serve_case import CHAT, MODEL, PROGRAM, WithServer, main
from serve_driver import Server, TIMEOUT

# Every text of it is short: a small model at temperature 2 reaches the end.
ORDER = {"type": "object", "properties": {
    "size": {"enum": ["small", "large"]}, "count": {"type": "integer", "minimum": 1, "maximum": 99},
    "notes": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2}, "gift": {"type": "boolean"}},
    "required": ["size", "count", "notes", "gift"], "additionalProperties": False}
CODE = "[A-Z]{2}-[0-9]{3,5}(/(north|south))?"
EBNF = 'root ::= "<" word ("," word)? ">"\nword ::= "red" | "green" | [0-9]'
TAG = {"triggers": ["<f>"], "structures": [{"begin": "<f>", "schema": ORDER, "end": "</f>"}]}
TOKENS = 700


def is_order(text):
    d = json.loads(text)
    return (list(d) == list(ORDER["properties"]) and d["size"] in ("small", "large") and type(d["count"]) is int
            and 1 <= d["count"] <= 99 and len(d["notes"]) <= 2 and all(type(n) is str and len(n) <= 4 for n in d["notes"])
            and type(d["gift"]) is bool)


def is_code(text):
    return re.fullmatch(CODE, text) is not None


def is_list(text):
    return re.fullmatch(r"<(red|green|\d)(,(red|green|\d))?>", text) is not None


SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"name": "order", "schema": ORDER, "strict": True}}
OPENAI = [({"response_format": SCHEMA_FORMAT}, is_order), ({"guided_json": ORDER}, is_order),
          ({"guided_json": json.dumps(ORDER)}, is_order), ({"guided_regex": CODE}, is_code),
          ({"guided_choice": ["yes", "no way"]}, lambda t: t in ("yes", "no way")), ({"guided_grammar": EBNF}, is_list),
          ({"structured_outputs": {"json": ORDER}}, is_order), ({"structured_outputs": {"regex": CODE}}, is_code),
          ({"structured_outputs": {"choice": ["a b", "c"]}}, lambda t: t in ("a b", "c")),
          ({"structured_outputs": {"grammar": EBNF}}, is_list), ({"regex": CODE}, is_code), ({"ebnf": EBNF}, is_list),
          ({"json_schema": json.dumps(ORDER)}, is_order)]
SGLANG = [({"json_schema": json.dumps(ORDER)}, is_order), ({"regex": CODE}, is_code), ({"ebnf": EBNF}, is_list)]


def slow_schema(number):
    """One that takes seconds to compile, and that no other number has."""
    return {"type": "object", "properties": {f"property {i} of {number}": {"type": "string", "maxLength": 500 + i}
                                             for i in range(700)}}


class SlowGrammars(WithServer):
    """While grammars compile, other requests are answered."""

    def setUp(self):
        status, answer = self.server.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "regex": "a"})
        if status != 200:
            self.assertIn("built without xgrammar", answer["error"]["message"])
            self.skipTest(answer["error"]["message"])

    def ask_slowly(self, count, server=None):
        """Threads that wait for constrained answers, two for each schema, and what they got: (status, answer)."""
        got = []

        def ask(number):
            got.append((server or self.server).post("/v1/completions", {"prompt": "a", "max_tokens": 1,
                                                                        "guided_json": slow_schema(number)}))
        threads = [threading.Thread(target=ask, args=(i // 2,)) for i in range(count)]
        for t in threads:
            t.start()
        return threads, got

    def wait_until_they_wait(self, server, count):
        begin = time.monotonic()
        while json.loads(server.get("/v1/loads?include=queues")[2])["loads"][0]["queues"]["grammar"] < count:
            self.assertLess(time.monotonic() - begin, TIMEOUT)
            time.sleep(0.01)

    def test_they_keep_nobody_waiting(self):
        threads, got = self.ask_slowly(8)
        self.wait_until_they_wait(self.server, 4)  # the four schemas, each compiled once
        for _ in range(4):
            self.ok("/v1/completions", {"prompt": "Once", "max_tokens": 1})
            self.ok("/v1/chat/completions", {"messages": CHAT, "max_tokens": 1, "guided_regex": "a"})  # compiled before
        self.assertEqual(got, [])
        for t in threads:
            t.join(TIMEOUT)
        self.assertEqual(len(got), 8)
        for status, answer in got:
            self.assertIn(status, (200, 400, 503))
            if status == 400:
                self.assertEqual(answer["error"]["param"], "guided_json")
                self.assertIn("takes longer than 10 s to compile", answer["error"]["message"])
            if status == 503:
                self.assertRegex(answer["error"]["message"], "grammars|not compiled within 30 s")

    def test_the_end_does_not_wait_for_them(self):
        server = Server(PROGRAM, MODEL, "--served-model-name", "tiny", "--dtype", "float32")
        self.addCleanup(server.close)
        threads, got = self.ask_slowly(4, server)
        self.wait_until_they_wait(server, 2)
        begin = time.monotonic()
        while server.metric("http_bodies_waiting") < 4:  # the second of each schema as well
            self.assertLess(time.monotonic() - begin, TIMEOUT)
            time.sleep(0.01)
        self.assertEqual(server.stop(), 0, server.log())
        for t in threads:
            t.join(TIMEOUT)
        for status, answer in got:
            self.assertEqual(status, 503)
            self.assertIn("shutting down", answer["error"]["message"])
        self.assertEqual(len(got), 4)


class Constraints(WithServer):
    words = ("--context-length", "2048")

    def setUp(self):
        status, answer = self.server.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "regex": "a"})
        if status != 200:
            self.assertIn("built without xgrammar", answer["error"]["message"])
            self.skipTest(answer["error"]["message"])

    def test_answers_fit(self):
        for temperature in (0, 2):
            for fields, fits in OPENAI:
                with self.subTest(fields=fields, temperature=temperature):
                    more = {"max_tokens": TOKENS, "temperature": temperature, "n": 2, **fields}
                    for choice in self.ok("/v1/chat/completions", {"messages": CHAT, **more})["choices"]:
                        self.assertEqual(choice["finish_reason"], "stop", choice)
                        self.assertTrue(fits(choice["message"]["content"]), choice)
                    for choice in self.ok("/v1/completions", {"prompt": "Once", **more})["choices"]:
                        self.assertTrue(fits(choice["text"]), choice)
            for fields, fits in SGLANG:
                with self.subTest(fields=fields, temperature=temperature):
                    sampling = {"max_new_tokens": TOKENS, "temperature": temperature, **fields}
                    answer = self.ok("/generate", {"text": "Once", "sampling_params": sampling})
                    self.assertEqual(answer["meta_info"]["finish_reason"]["type"], "stop", answer)
                    self.assertTrue(fits(answer["text"]), answer)

    def test_streams_are_the_whole_answers(self):
        body = {"messages": CHAT, "max_tokens": TOKENS, "temperature": 1, "seed": 3, "response_format": SCHEMA_FORMAT}
        whole = self.ok("/v1/chat/completions", body)["choices"][0]["message"]["content"]
        status, chunks = self.server.stream("/v1/chat/completions", body)
        self.assertEqual(status, 200, chunks)
        parts = [c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"]]
        self.assertEqual("".join(parts), whole)
        self.assertGreater(len(parts), 3)

    def test_json_mode(self):
        # A small model does not end an object of free form by itself; whatever it wrote until then is the beginning of one.
        answer = self.ok("/v1/chat/completions", {"messages": CHAT, "max_tokens": 60, "temperature": 1,
                                                  "response_format": {"type": "json_object"}})["choices"][0]
        self.assertTrue(answer["message"]["content"].startswith("{"), answer)
        if answer["finish_reason"] == "stop":
            self.assertIsInstance(json.loads(answer["message"]["content"]), dict)
        for form in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}):
            answer = self.ok("/v1/completions", {"prompt": "a", "max_tokens": 5, "logit_bias": self.bias("}"), **form})
            self.assertEqual(json.loads(answer["choices"][0]["text"]), {})

    def bias(self, text):
        return {str(self.ok("/v1/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"][0]): 100}

    def test_structural_tags(self):
        for fields in ({"response_format": {"type": "structural_tag", **TAG}}, {"structural_tag": json.dumps(TAG)},
                       {"structured_outputs": {"structural_tag": json.dumps(TAG)}}):
            answer = self.ok("/v1/completions", {"prompt": "a", "max_tokens": TOKENS, "temperature": 0, **fields,
                                                 "logit_bias": self.bias("<f>")})["choices"][0]["text"]
            call = re.search("<f>(.*?)</f>", answer, re.DOTALL)
            if call is not None:
                self.assertTrue(is_order(call[1]), answer)
        # The trigger may stand at the prompt's end, but a grammar begins with the answer.
        format = {"type": "triggered_tags", "triggers": ["<f>"], "at_least_one": True, "stop_after_first": True,
                  "tags": [{"begin": "<f>", "content": {"type": "json_schema", "json_schema": ORDER}, "end": "</f>"}]}
        sampling = {"max_new_tokens": TOKENS, "temperature": 2,
                    "structural_tag": json.dumps({"type": "structural_tag", "format": format})}
        text = self.ok("/generate", {"text": "a", "sampling_params": sampling})["text"]
        self.assertTrue(text.startswith("<f>") and text.endswith("</f>") and is_order(text[3:-4]), text)

    def test_structures_hold_no_control_tokens(self):
        # An answer shows no <|im_start|>: as a part of a value it would be missing there.
        for schema in ({"type": "string", "minLength": 5, "maxLength": 12}, {"const": "<|im_start|>"}):
            format = {"type": "tag", "begin": "<x>", "content": {"type": "json_schema", "json_schema": schema}, "end": "</x>"}
            text = self.ok("/v1/completions", {
                "prompt": "a", "max_tokens": TOKENS, "temperature": 0, "logit_bias": self.bias("<|im_start|>"),
                "response_format": {"type": "structural_tag", "format": format}})["choices"][0]["text"]
            self.assertTrue(text.startswith("<x>") and text.endswith("</x>"), text)
            self.assertTrue(5 <= len(json.loads(text[3:-4])) <= 12, text)

    def test_cut_off_inside_the_structure(self):
        answer = self.ok("/v1/chat/completions", {"messages": CHAT, "max_tokens": 3, "response_format": SCHEMA_FORMAT})
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")
        answer = self.ok("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 3, "json_schema": json.dumps(ORDER)}})
        self.assertEqual(answer["meta_info"]["finish_reason"], {"type": "length", "length": 3})

    def test_beside_other_fields(self):
        base = {"prompt": "Once", "max_tokens": TOKENS, "guided_regex": CODE, "temperature": 2}
        for more in ({"ignore_eos": True}, {"min_tokens": 60}, {"logprobs": 3}, {"echo": False, "top_k": 5, "top_p": 0.5},
                     {"repetition_penalty": 1.5, "frequency_penalty": 1}, {"stop": ["zzz"]}):
            choice = self.ok("/v1/completions", {**base, **more})["choices"][0]
            self.assertTrue(is_code(choice["text"]), (more, choice))
            self.assertEqual(choice["finish_reason"], "stop")
        # Log probabilities are the model's own: what the grammar forced may be unlikely.
        tokens = self.ok("/v1/completions", {**base, "temperature": 0, "logprobs": 2})["choices"][0]["logprobs"]
        self.assertLess(min(tokens["token_logprobs"]), -1)
        self.assertEqual(len(tokens["tokens"]), len(tokens["token_logprobs"]))

    def test_refusals(self):
        deep = {"type": "object"}
        for _ in range(200):
            deep = {"anyOf": [deep]}
        chat = lambda **fields: {"messages": CHAT, "max_tokens": 5, **fields}
        schema = lambda s: {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": s}}}
        inside = "response_format.json_schema.schema"
        for body, param, needle in (
                (schema({"type": "strnig"}), inside, "strnig"),
                (schema({"type": "object", "not": {}}), inside, "not"),
                (schema({"type": "array", "items": {}, "uniqueItems": True}), inside, "uniqueItems"),
                (schema({"$ref": "#"}), inside, "leads back to itself"),
                (schema({"type": "array", "items": {}, "minItems": 10**9}), inside, "minItems 1000000000"),
                (schema({"enum": ["x" * 100] * 5000}), inside, "bytes"),
                (schema(7), inside, "a JSON schema"),
                ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
                ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, inside, "missing"),
                ({"response_format": {"type": "grammar"}}, "response_format.type", "\"grammar\"; accepted: text, json_object, json_schema, structural_tag"),
                ({"response_format": 7}, "response_format", "7"), ({"response_format": {}}, "response_format.type", "missing"),
                ({"response_format": {"type": "text", "more": 1}}, "response_format.more", "more"),
                ({"guided_json": "{"}, "guided_json", "guided_json"), ({"guided_json": [1]}, "guided_json", "array"),
                ({"guided_regex": "a("}, "guided_regex", "not closed"),
                ({"guided_regex": "^(?<=x)*{3}$"}, "guided_regex", "regular expression"),
                ({"guided_regex": "(" * 5000 + ")" * 5000}, "guided_regex", "bytes"),
                ({"guided_regex": "a{0,2000000000}"}, "guided_regex", "repeats a part"),
                ({"guided_grammar": 'root ::= "a"\nb = "c"'}, "guided_grammar", "line 2"),
                ({"ebnf": "(" * 60000}, "ebnf", "nested more than"), ({"guided_choice": []}, "guided_choice", "array"),
                ({"guided_choice": ["a", 7]}, "guided_choice", "7"), ({"guided_regex": 7}, "guided_regex", "7"),
                ({"json_schema": {"type": "string", "pattern": "(" * 7000}}, "json_schema", "pattern"),
                ({"regex": "a", "ebnf": EBNF}, "ebnf", "beside regex"),
                ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex", "beside response_format"),
                ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice", "beside"),
                ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern", ""),
                ({"structured_outputs": {"made_up": 1}}, "structured_outputs.made_up", ""),
                ({"structural_tag": {"triggers": ["<a>"], "structures": [{"begin": "<b>", "schema": {}, "end": ""}]}},
                 "structural_tag", "trigger"),
                ({"structural_tag": {"structures": 7}}, "structural_tag", "structures")):
            with self.subTest(body=str(body)[:80]):
                begin = time.monotonic()
                self.refused("/v1/chat/completions", chat(**body), param, needle)
                self.assertLess(time.monotonic() - begin, 25)  # before the patience with a compilation ends
        self.refused("/v1/chat/completions", chat(**schema(deep)))
        for name, value in (("json_schema", "{"), ("regex", "("), ("ebnf", "("), ("structural_tag", "{}")):
            self.refused("/generate", {"text": "a", "sampling_params": {name: value}}, f"sampling_params.{name}")
        # An empty one is none, as SGLang's clients send it.
        self.ok("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 1, "regex": "", "json_schema": ""}})


class Thoughts(WithServer):
    words = ("--reasoning-parser", "deepseek-r1")

    def test_a_model_without_the_token(self):
        # The bundled model's vocabulary has no </think>, so where thoughts begin no constraint could.
        status, answer = self.server.post("/v1/chat/completions", {"messages": CHAT, "max_tokens": TOKENS, "regex": CODE})
        if status == 400 and "built without xgrammar" in answer["error"]["message"]:
            self.skipTest(answer["error"]["message"])
        self.refused("/v1/chat/completions", {"messages": CHAT, "max_tokens": TOKENS, "regex": CODE}, "regex", "</think>")
        answer = self.ok("/v1/chat/completions", {"messages": CHAT, "max_tokens": TOKENS, "regex": CODE,
                                                  "separate_reasoning": False})
        self.assertTrue(is_code(answer["choices"][0]["message"]["content"]), answer)


if __name__ == "__main__":
    main()
