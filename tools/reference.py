#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keeps docs/reference.md equal to what the program says: every command's --help and the environment variables.

usage: reference.py PROGRAM [--write]   without --write: exit 1 and a diff when the document is out of date
"""
import difflib
import os
import pathlib
import re
import subprocess
import sys

DOCUMENT = pathlib.Path(__file__).resolve().parent.parent / "docs" / "reference.md"


def output_of(program, *words):
    # A variable of the caller must not change the text.
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    return subprocess.run([program, *words], env=clean, capture_output=True, text=True, check=True).stdout


def help_sections(program, words=()):
    text = output_of(program, *words, "--help").strip()
    text = "\n".join(line.rstrip() for line in text.splitlines())
    yield f"### `{' '.join(('sluice', *words))}`\n\n```text\n{text}\n```\n"
    listed = re.search(r"^Subcommands:\n((?:  .*\n?)+)", text, re.MULTILINE)
    for name in re.findall(r"^  (\w[\w-]*)", listed[1], re.MULTILINE) if listed else []:
        yield from help_sections(program, (*words, name))


def variables(program):
    yield "| variable | values | default | meaning |\n|---|---|---|---|\n"
    entry = re.compile(r"^  (SLUICE_\w+)=.*\n      (.*); default (.*?): (.*)$", re.MULTILINE)
    for name, kind, default, what in entry.findall(output_of(program, "info")):
        kind = kind.replace("|", ", ")
        yield f"| `{name}` | {kind} | {default} | {what} |\n"


def main():
    program = sys.argv[1]
    old = DOCUMENT.read_text()
    new = old
    for name, parts in (("commands", "\n".join(help_sections(program))), ("variables", "".join(variables(program)))):
        begin, end = f"<!-- {name}: from the program -->\n", f"<!-- {name}: end -->\n"
        head, _, rest = new.partition(begin)
        _, _, tail = rest.partition(end)
        new = head + begin + "\n" + parts + "\n" + end + tail
    if "--write" in sys.argv[2:]:
        DOCUMENT.write_text(new)
    elif new != old:
        sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), "docs/reference.md", "program"))
        print(f"\ndocs/reference.md is out of date; run tools/reference.py {program} --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
