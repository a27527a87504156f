# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema Test Suite (draft 2020-12) against compiled schemas: a schema is refused, or keeps what it says.

Most of the suite's schemas give no type, and are refused for it: with the type that their keywords are for they are tried
again, and then documents of other types are invalid.

A text that a grammar takes must be valid, without exception but those below. The other way round it may be stricter: a
model that is kept from some valid documents still writes valid ones. What is stricter is listed, so that a change shows.

usage: json_schema_suite_test.py ACCEPTOR SOURCE_FOLDER   exit code 77: the suite is not there (scripts/setup.sh test)
"""
import collections
import json
import pathlib
import sys

from acceptor import Acceptor

SUITE = pathlib.Path(sys.argv[2]) / "build" / "third-party" / "json-schema-suite" / "tests" / "draft2020-12"

# As docs/serve.md says.
COUNT = {"schemas": 368, "schemas that compile": 114, "schemas that compile with a type": 21, "valid, taken": 318,
         "valid, not taken": 36, "invalid, not taken": 200}
# (file, schema, test): invalid, and taken all the same.
TAKEN = set()
# (file, schema): some valid instance of it is not taken. Numbers have one form (no 1.0 for 1), constants have no white
# space, patterns match whole texts, properties come in the schema's order, and a schema of objects or arrays without a
# type takes nothing else.
STRICTER = {
    ("additionalProperties", "additionalProperties being false does not allow other properties"),
    ("additionalProperties", "non-ASCII pattern with additionalProperties"),
    ("const", "const with -2.0 matches integer and float types"),
    ("const", "const with 0 does not match other zero-like types"),
    ("const", "const with 1 does not match true"),
    ("const", "const with array"),
    ("const", "const with object"),
    ("const", 'const with {"a": false} does not match {"a": 0}'),
    ("const", 'const with {"a": true} does not match {"a": 1}'),
    ("const", "float and integers are equal up to 64-bit representation limits"),
    ("enum", "enum with 0 does not match false"),
    ("enum", "enum with 1 does not match true"),
    ("enum", "enum with [0] does not match [false]"),
    ("enum", "enum with [1] does not match [true]"),
    ("enum", "heterogeneous enum validation"),
    ("items", "a schema given for items"),
    ("pattern", "pattern is not anchored"),
    ("patternProperties", "regexes are not anchored by default and are case sensitive"),
    ("prefixItems", "a schema given for prefixItems"),
    ("properties", "object properties validation"),
    ("properties", "properties whose names are Javascript object property names"),
    ("ref", "naive replacement of $ref with its destination is not correct"),
    ("ref", "root pointer ref"),
    ("required", "required validation"),
    ("type", "integer type matches integers"),
}


TYPES = {"string": ("minLength", "maxLength", "pattern"),
         "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), "integer": ("multipleOf",),
         "array": ("minItems", "maxItems"),
         "object": ("required", "minProperties", "maxProperties", "patternProperties", "propertyNames")}


def is_a(kind, value):
    if isinstance(value, bool) or kind not in ("number", "integer"):
        return isinstance(value, {"string": str, "array": list, "object": dict}.get(kind, type(None)))
    return isinstance(value, (int, float)) and (kind == "number" or value == int(value))


class Run:
    def __init__(self, program):
        self.acceptor = Acceptor(program)
        self.count, self.refusals = collections.Counter(), collections.Counter()
        self.taken, self.stricter = set(), set()

    def case(self, file, name, schema, tests):
        """tests: (description, data, valid). False when the schema is refused."""
        text = json.dumps(schema, ensure_ascii=False)
        texts = [json.dumps(data, ensure_ascii=False) for _, data, _ in tests]
        error, accepted = self.acceptor.ask("json_schema", text, texts)
        if error is not None:
            return False
        closed = self.acceptor.ask("json_schema", text, texts, closed=True)[1] or [False] * len(tests)
        for (test, _, valid), got, got_closed in zip(tests, accepted, closed):
            self.count[("valid" if valid else "invalid") + (", taken" if got else ", not taken")] += 1
            if not valid and (got or got_closed):
                self.taken.add((file, name, test))
            if valid and not got:
                self.stricter.add((file, name))
        return True

    def file(self, path):
        for case in json.loads(path.read_text(encoding="utf-8")):
            tests = [(t["description"], t["data"], t["valid"]) for t in case["tests"]]
            schema = case["schema"]
            self.count["schemas"] += 1
            if self.case(path.stem, case["description"], schema, tests):
                self.count["schemas that compile"] += 1
                continue
            kinds = [k for k, words in TYPES.items() if isinstance(schema, dict) and "type" not in schema
                     and any(w in schema for w in words)]
            if kinds and self.case(path.stem, case["description"], {"type": kinds[0], **schema},
                                   [(d, data, valid and is_a(kinds[0], data)) for d, data, valid in tests]):
                self.count["schemas that compile with a type"] += 1
            else:
                self.refusals[path.stem] += 1


def main():
    if not SUITE.is_dir():
        print(f"skipped: {SUITE} is not there; scripts/setup.sh test fetches it where PyPI can be reached")
        return 77
    run = Run(sys.argv[1])
    for path in sorted(SUITE.glob("*.json")):
        run.file(path)
    run.acceptor.close()
    print(dict(run.count))
    print("refused:", dict(run.refusals))
    for name, found, known in (("TAKEN", run.taken, TAKEN), ("STRICTER", run.stricter, STRICTER)):
        for row in sorted(found - known):
            print(f"{name}, new:   {row!r},")
        for row in sorted(known - found):
            print(f"{name}, no longer: {row!r},")
    for name in sorted(COUNT):
        if run.count[name] != COUNT[name]:
            print(f"{name}: {run.count[name]}, not {COUNT[name]}")
    return 0 if run.taken == TAKEN and run.stricter == STRICTER and dict(run.count) == COUNT else 1


if __name__ == "__main__":
    sys.exit(main())
