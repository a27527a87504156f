#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/text/data/chat_template_vectors.json with the Python package jinja2, set up as transformers does.

Each case (chat_template_cases.py, chat_template_expressions.py) is a template, its variables and the text (or "error": jinja2 refuses it too).

    pip install jinja2==3.1.6 && python3 tools/chat_template_vectors.py tests/text/data/chat_template_vectors.json
"""
import json
import sys
from datetime import datetime

from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2 import nodes

from chat_template_cases import TEMPLATES
from chat_template_expressions import EXPRESSIONS, FAILING, VARIABLES

NOW = datetime(2024, 7, 26, 13, 5, 9)


class Generation(Extension):
    """transformers' AssistantTracker without the tracking."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def main():
    env = environment()

    def case(template, variables):
        try:
            return {"template": template, "text": env.from_string(template).render(**variables)}
        except Exception as error:  # whatever jinja2 raises, the template does not render
            return {"template": template, "error": f"{type(error).__name__}: {error}"}

    expressions = [case("{{ " + e.strip() + " }}", VARIABLES) for e in EXPRESSIONS]
    expressions += [case("{% set v = " + e.strip() + " %}", VARIABLES) for e in FAILING]
    for c in expressions[: len(EXPRESSIONS)]:
        assert "text" in c, c
    for c in expressions[len(EXPRESSIONS) :]:
        assert "error" in c, c
    templates = []
    for template, variables in TEMPLATES:
        templates.append({**case(template, variables), "variables": variables})
    with open(sys.argv[1], "w", encoding="ascii") as out:
        json.dump({"variables": VARIABLES, "expressions": expressions, "templates": templates}, out, indent=0)
        out.write("\n")


if __name__ == "__main__":
    main()
