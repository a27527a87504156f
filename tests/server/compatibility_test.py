# SPDX-License-Identifier: Apache-2.0
"""docs/compatibility.md has a row for every path and field that the server reads, and says of each what happens.

usage: compatibility_test.py PROGRAM SOURCE_FOLDER [unittest arguments]
"""
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from serve_case import CHAT, main, SOURCE, WithServer  # noqa: E402

PAGE = (SOURCE / "docs" / "compatibility.md").read_text()
# Within OpenAI's messages and log probabilities; docs/serve.md speaks of them.
INNER = {"messages.cc"}


def sections():
    """{title: [cells of a row]}"""
    out = {}
    for part in PAGE.split("\n## ")[1:]:
        title, _, text = part.partition("\n")
        rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("|")]
        out[title] = rows[2:]
    return out


def names(text):
    return re.findall(r"`([^`]+)`", text)


def fields_of_the_source():
    """{field: file} of every getter and list in src/server."""
    found = {}
    getter = r"\b(?:fields|inner|part|one)\.(?:integer|number|boolean|string|has|find|string_or_strings|token_ids|refuse_unless_neutral|accept_only)\(\s*\"([a-z_]+)\""
    helper = r"\b(?:required|read_version|read_rid)\(\s*\w+,\s*\"([a-z_]+)\""
    several = r"\.(?:ignore|refuse_unless_empty)\(\{(.*?)\}\)"
    for file in sorted((SOURCE / "src" / "server").glob("*.cc")):
        if file.name in INNER:
            continue
        text = file.read_text()
        all_of_file = set(re.findall(getter, text)) | set(re.findall(helper, text))
        for block in re.findall(several, text, re.S):
            all_of_file |= set(re.findall(r"\"([a-z_]+)\"", block))
        found.update({name: file.name for name in all_of_file})
    params = (SOURCE / "src" / "server" / "params.h").read_text()
    for block in re.findall(r"ParamNames k\w+\{(.*?)\}", params, re.S):
        found.update({name: "params.h" for name in re.findall(r"\"([a-z_]+)\"", block)})
    return found


def reasons_of_the_source():
    """{field: why it is refused} of refusal_reasons.cc."""
    text = (SOURCE / "src" / "server" / "refusal_reasons.cc").read_text()
    named = dict(re.findall(r"\b(k[A-Z]\w+) = \"(.*?)\"[,;]", text, re.S))
    return {field: named[why] if why in named else why.strip('"')
            for field, why in re.findall(r"Refusal\{\"([a-z_]+)\",\s*(k\w+|\".*?\")\}", text, re.S)}


class Page(unittest.TestCase):
    def test_every_path_has_a_row(self):
        text = (SOURCE / "src" / "server" / "routes.cc").read_text()
        routes = {f"{method} {path}" for method, path in re.findall(r"Route\{\"([A-Z]+)\", \"([^\"]+)\"", text)}
        self.assertGreater(len(routes), 30)
        listed = {name for row in sections()["Endpoints"] for name in names(row[0]) if " " in name}
        self.assertEqual(routes - listed, set(), "no row in docs/compatibility.md")
        self.assertEqual(listed - routes, set(), "no such path in src/server/routes.cc")

    def test_every_field_has_a_row(self):
        found = fields_of_the_source()
        self.assertGreater(len(found), 120)
        listed = {name for title, rows in sections().items() if title != "Endpoints" for row in rows for cell in row
                  for name in names(cell)}
        missing = {name: file for name, file in found.items() if name not in listed}
        self.assertEqual(missing, {}, "no row in docs/compatibility.md")

    def test_every_refusal_has_a_reason(self):
        reasons = reasons_of_the_source()
        self.assertGreater(len(reasons), 40)
        refused = set()
        for file in (SOURCE / "src" / "server").glob("*.cc"):
            text = file.read_text()
            for block in re.findall(r"\.refuse_unless_empty\(\{(.*?)\}\)", text, re.S):
                refused |= set(re.findall(r"\"([a-z_]+)\"", block))
            refused |= set(re.findall(r"\.refuse_unless_neutral\(\"([a-z_]+)\"", text))
        self.assertEqual(refused - reasons.keys(), set(), "no reason in refusal_reasons.cc")
        listed = {name for title, rows in sections().items() if title != "Endpoints" for row in rows for cell in row
                  for name in names(cell)}
        self.assertEqual(reasons.keys() - listed, set(), "no row in docs/compatibility.md")
        for title, rows in sections().items():
            for row in rows:
                if not row[-1].startswith("refused"):
                    continue
                self.assertRegex(row[-1], r"^refused[^:]*: \S", row)
                for name in names(row[0]):
                    self.assertIn(reasons.get(name, ""), row[-1].replace("`", ""), f"{title}: {name}")


class PassedOver(WithServer):
    """A field of every form that says "passed over" is taken by all of them, whatever it is."""

    def test_by_every_form(self):
        fields = [name for row in sections()["Fields of every form"] if row[-1].startswith("passed over") for name in names(row[0])]
        self.assertGreater(len(fields), 0)
        for field in fields:
            for value in (True, "x", None):
                more = {field: value}
                self.ok("/v1/chat/completions", {"messages": CHAT, "max_tokens": 1, **more})
                self.ok("/v1/completions", {"prompt": "a", "max_tokens": 1, **more})
                self.ok("/v1/messages", {"messages": CHAT, "max_tokens": 1, **more})
                self.ok("/v1/responses", {"input": "a", "max_output_tokens": 16, **more})
                self.ok("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 1, **more}})


class Refusals(WithServer):
    """A row that says "refused" is true."""

    def refused_fields(self, *titles):
        return [name for title in titles for row in sections()[title] if row[-1].startswith("refused")
                for name in names(row[0])]

    def check(self, path, good, fields):
        self.ok(path, good)
        for field in fields:
            for value in ("x", {"type": "x"}, ["x"]):
                status, answer = self.server.post(path, {**good, field: value})
                self.assertEqual(status, 400, (path, field, value, answer))
                self.assertTrue((answer["error"]["param"] or "").startswith(field), (field, answer))
                self.assertNotIn(f"{field} is not a parameter that this server knows", answer["error"]["message"])

    def test_chats_and_completions(self):
        fields = self.refused_fields("Fields of chats and completions")
        self.assertGreater(len(fields), 20)
        self.check("/v1/chat/completions", {"messages": CHAT, "max_tokens": 1}, [f for f in fields if f != "suffix"])
        self.check("/v1/completions", {"prompt": "a", "max_tokens": 1},
                   [f for f in fields if f not in ("chat_template", "tools", "tool_choice", "functions", "function_call")])

    def test_the_others(self):
        self.check("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 1}},
                   [f for f in self.refused_fields("Fields of /generate") if f != "custom_params"])
        self.check("/v1/messages", {"messages": CHAT, "max_tokens": 1}, self.refused_fields("Fields of /v1/messages"))
        self.check("/v1/responses", {"input": "a", "max_output_tokens": 1}, self.refused_fields("Fields of /v1/responses"))

    def test_paths(self):
        for row in sections()["Endpoints"]:
            for name in names(row[0]):
                if row[-1].startswith("refused (501)"):
                    status, answer = self.server.post(name.split()[1], {})
                    self.assertEqual(status, 501, name)
                if row[-1].startswith("404"):
                    self.assertEqual(self.server.post(name, {})[0], 404, name)


if __name__ == "__main__":
    main()
