# SPDX-License-Identifier: Apache-2.0
"""Random schemas and documents: what a compiled schema takes, the jsonschema package validates; and an open one takes
what validates, with properties in the schema's order. Random regular expressions are held against Python's.

usage: random_schemas_test.py ACCEPTOR SOURCE_FOLDER   exit code 77: the jsonschema package is not installed
"""
import collections
import json
import os
import pathlib
import random
import re
import sys

ACCEPTOR, SOURCE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
sys.path.insert(0, str(SOURCE / "tests" / "support"))
from client_packages import need  # noqa: E402

need("jsonschema")

import jsonschema  # noqa: E402
from acceptor import Acceptor  # noqa: E402

SCHEMAS, DOCUMENTS = 300, 12
NAMES = ["a", "b", "name", "x y", "\u00e9", 'q"']


class Maker:
    """Schemas of what is supported, and documents that fit or are off by one change."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def schema(self, depth=0):
        kinds = ["null", "boolean", "integer", "number", "string", "enum", "const"]
        if depth < 3:
            kinds += ["object", "object", "array", "array", "tuple", "anyOf", "types"]
        return getattr(self, "make_" + self.r.choice(kinds))(depth)

    def make_null(self, depth):
        return {"type": "null"}

    def make_boolean(self, depth):
        return {"type": "boolean"}

    def make_integer(self, depth):
        s = {"type": "integer"}
        low = self.r.randint(-1000, 1000)
        if self.r.random() < 0.5:
            s["minimum"] = low
        if self.r.random() < 0.5:
            s["maximum"] = low + self.r.randint(0, 10 ** self.r.randint(0, 5))
        return s

    def make_number(self, depth):
        s = {"type": "number"}
        low = self.r.randint(-50, 50)
        if self.r.random() < 0.3:
            s["minimum"] = low
        if self.r.random() < 0.3:
            s["maximum"] = low + self.r.randint(1, 100)
        return s

    def make_string(self, depth):
        s = {"type": "string"}
        if self.r.random() < 0.3:
            s["pattern"] = self.r.choice(["^[a-z]{2,4}$", "^(yes|no)$", "^[0-9]+-[A-F]$"])
            return s
        low = self.r.randint(0, 4)
        if self.r.random() < 0.4:
            s["minLength"] = low
        if self.r.random() < 0.4:
            s["maxLength"] = low + self.r.randint(0, 4)
        return s

    def value(self):
        return self.r.choice([None, True, 3, -1.5, "text", "\u00e9\n", [1, "a"], {"k": None}, [], {}])

    def make_enum(self, depth):
        return {"enum": [self.value() for _ in range(self.r.randint(1, 4))]}

    def make_const(self, depth):
        return {"const": self.value()}

    def make_object(self, depth):
        names = self.r.sample(NAMES, self.r.randint(0, 4))
        s = {"type": "object", "properties": {n: self.schema(depth + 1) for n in names}}
        required = [n for n in names if self.r.random() < 0.5]
        if required:
            s["required"] = required
        if self.r.random() < 0.3:
            s["additionalProperties"] = self.r.choice([False, True, {"type": "integer"}])
        return s

    def make_array(self, depth):
        s = {"type": "array", "items": self.schema(depth + 1)}
        low = self.r.randint(0, 3)
        if self.r.random() < 0.4:
            s["minItems"] = low
        if self.r.random() < 0.4:
            s["maxItems"] = low + self.r.randint(0, 3)
        return s

    def make_tuple(self, depth):
        return {"type": "array", "prefixItems": [self.schema(depth + 1) for _ in range(self.r.randint(1, 3))], "items": False}

    def make_anyOf(self, depth):
        return {"anyOf": [self.schema(depth + 1) for _ in range(self.r.randint(1, 3))]}

    def make_types(self, depth):
        return {"type": self.r.sample(["null", "boolean", "integer", "string"], 2)}

    def mutant(self, text):
        at = self.r.randint(0, len(text))
        other = self.r.choice(['"', "\\", "\n", "\t", "\x12", "a", "0", "-", ".", ",", "}", "]", " ", "\u00e9", ""])
        return text[:at] + other + text[at + self.r.randint(0, 1):]

    def document(self, s):
        """A document that mostly fits `s`."""
        if self.r.random() < 0.08:
            return self.value()
        if "enum" in s:
            return self.r.choice(s["enum"])
        if "const" in s:
            return s["const"]
        if "anyOf" in s:
            return self.document(self.r.choice(s["anyOf"]))
        kind = s["type"] if isinstance(s["type"], str) else self.r.choice(s["type"])
        off = self.r.choice([0, 0, 0, 0, 1, -1])
        if kind == "null":
            return None
        if kind == "boolean":
            return self.r.random() < 0.5
        if kind in ("integer", "number"):
            low, high = s.get("minimum", -20), s.get("maximum", s.get("minimum", 0) + 40)
            n = self.r.choice([low + min(off, 0), high + max(off, 0), self.r.randint(min(low, high), max(low, high))])
            return n + self.r.choice([0, 0.25]) if kind == "number" else n
        if kind == "string":
            if "pattern" in s:
                return self.r.choice(["abc", "yes", "no", "12-A", "a", "", "abcde"])
            low = s.get("minLength", 0)
            size = max(0, self.r.choice([low, s.get("maxLength", low + 3), low + off]))
            return "".join(self.r.choice(["a", "Z", " ", "\u00e9", "\U0001f600", '"', "\\", "\n"]) for _ in range(size))
        if kind == "array":
            if "prefixItems" in s:
                items = [self.document(i) for i in s["prefixItems"]]
                return items[: len(items) + min(off, 0)]
            low = s.get("minItems", 0)
            size = max(0, self.r.choice([low, s.get("maxItems", low + 2)]) + off)
            return [self.document(s["items"]) for _ in range(size)]
        out = {}
        for name, inner in s["properties"].items():  # in the schema's order, as a grammar wants them
            if name in s.get("required", ()) or self.r.random() < 0.5:
                out[name] = self.document(inner)
        if out and self.r.random() < 0.1:
            out.pop(self.r.choice(list(out)))
        if self.r.random() < 0.1:
            out["more"] = 7
        return out


BROKEN = object()  # what a text stands for that may be no JSON


def is_valid(validator, text):
    try:
        return validator.is_valid(json.loads(text))
    except ValueError:
        return False


class RegexMaker:
    """Regular expressions of the syntax that both know, and texts that mostly match."""

    ATOMS = [("a", ["a"]), ("b", ["b"]), ("0", ["0"]), ("\\.", ["."]), ("\\d", ["7", "0"]), ("[a-c]", ["a", "c"]),
             ("[^a-c]", ["d", "\u00e9", " "]), ("\\w", ["_", "Z"]), ("[+*(]", ["*", "("]), ("\\\\", ["\\"]), ("\u00e9", ["\u00e9"]),
             ("\\[", ["["]), ("[x\\-z]", ["-", "x"]), ("/", ["/"]), ('"', ['"']), ("\\n", ["\n"])]

    def __init__(self, r):
        self.r = r

    def make(self, depth=0, repeated=False):
        """(pattern, a function that writes a text). Repetitions do not nest: Python's time would be exponential."""
        kinds = ["atom", "atom", "sequence", "choice"] + ["repeat"] * (not repeated)
        kind = self.r.choice(kinds if depth < 3 else ["atom"])
        if kind == "atom":
            pattern, texts = self.r.choice(self.ATOMS)
            return pattern, lambda: self.r.choice(texts)
        if kind == "repeat":
            pattern, text = self.make(depth + 1, True)
            low, more = self.r.randint(0, 3), self.r.randint(0, 3)
            form, most = self.r.choice([("*", 4), ("+", 4), ("?", 1), (f"{{{low}}}", low), (f"{{{low},}}", low + 3),
                                        (f"{{{low},{low + more}}}", low + more)])
            least = {"*": 0, "+": 1, "?": 0}.get(form, low)
            return f"({pattern}){form}", lambda: "".join(text() for _ in range(self.r.randint(least, most)))
        parts = [self.make(depth + 1, repeated) for _ in range(self.r.randint(1, 3))]
        if kind == "sequence":
            return "".join(f"({p})" for p, _ in parts), lambda: "".join(t() for _, t in parts)
        return "(" + "|".join(p for p, _ in parts) + ")", lambda: self.r.choice(parts)[1]()


def check_regexes(make, acceptor, counts, failures):
    regexes = RegexMaker(make.r)
    for _ in range(SCHEMAS):
        pattern, write = regexes.make()
        texts = [write() for _ in range(8)]
        texts += [make.mutant(t) for t in texts]
        error, accepted = acceptor.ask("regex", pattern, texts)
        counts["regexes"] += 1
        if error is not None:
            failures.append(("refused", pattern, error))
            continue
        for text, got in zip(texts, accepted):
            fits = re.fullmatch(pattern, text, re.ASCII) is not None
            counts["fits" if fits else "does not fit"] += 1
            if got != fits:
                failures.append(("taken" if got else "not taken", pattern, text))


def main():
    seed = int(os.environ.get("SLUICE_TEST_SEED") or random.randrange(2**32))
    print(f"SLUICE_TEST_SEED={seed}")
    make = Maker(seed)
    acceptor = Acceptor(ACCEPTOR)
    counts = collections.Counter()
    failures = []
    for _ in range(SCHEMAS):
        schema = make.schema()
        counts["schemas"] += 1
        validator = jsonschema.Draft202012Validator(schema)
        documents = [make.document(schema) for _ in range(DOCUMENTS)]
        # Constants are taken as the library writes them: without white space.
        texts = [json.dumps(d, ensure_ascii=make.r.random() < 0.5, separators=(",", ":")) for d in documents]
        mutants = [make.mutant(t) for t in texts for _ in range(2)]
        texts += mutants
        documents += [BROKEN] * len(mutants)
        for closed in (False, True):
            error, accepted = acceptor.ask("json_schema", json.dumps(schema), texts, closed)
            if error is not None:
                counts["refused"] += 1
                # Where other properties are allowed, names must be those that JSON writes in one way.
                if "names of ASCII" not in error or (closed and "additionalProperties" not in json.dumps(schema)):
                    failures.append(("refused", schema, error))
                continue
            for text, document, got in zip(texts, documents, accepted):
                if got is not None and document is BROKEN:
                    valid = is_valid(validator, text)
                    counts["valid" if valid else "invalid"] += 1
                    if got and not valid:
                        failures.append(("taken", closed, schema, text))
                    continue
                valid = validator.is_valid(document)
                counts["valid" if valid else "invalid"] += 1
                if got == valid:
                    continue
                # Stricter it may be: a closed schema takes no property that it does not name, and strings with a length
                # or a pattern are taken without escapes.
                if got or not (closed or "\\" in text):
                    failures.append(("taken" if got else "not taken", closed, schema, text))
    check_regexes(make, acceptor, counts, failures)
    acceptor.close()
    print(dict(counts))
    for failure in failures[:5]:
        print(*failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
