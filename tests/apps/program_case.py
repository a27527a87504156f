# SPDX-License-Identifier: Apache-2.0
"""What the tests of the program from outside share: running it, and the sentence of a refusal."""
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM, SOURCE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
MODEL = SOURCE / "models" / "tiny-nemotron-h"
SPEC = "experts=8 top_k=2 hidden=64 inter=48 weights=bf16 act=swiglu routing=renormalize"
# The checkpoint's card: 16 tokens of a held-out text and how transformers goes on in float32.
PROMPT = "Henry meditated awhile all to himself early the next morning as"
CONTINUATION = " he went down the hill to the house. He had been in the house for a long time, and had been in the house"

# Address sanitizer takes terabytes of addresses: no limit of memory is possible under it.
SANITIZED = b"__asan_init" in PROGRAM.read_bytes()

OK, USAGE, FILE, UNSUPPORTED, MEMORY, INTERRUPTED = 0, 2, 3, 4, 5, 130


def run(*words, env=None, **options):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    return subprocess.run([PROGRAM, *map(str, words)], env={**clean, **(env or {})}, text=True, timeout=300,
                          capture_output="stdout" not in options, **options)


def memory_limit(megabytes):
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))


def wait_until_it_listens(process):
    """Until the program has its handlers of SIGINT and, after it, SIGTERM: a loaded machine may take seconds to get there."""
    while process.poll() is None:
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        if int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.001)


def commands(words=()):
    """Every command and group, as tuples of words."""
    yield words
    listed = re.search(r"^Subcommands:\n((?:  .*\n?)+)", run(*words, "--help").stdout, re.MULTILINE)
    for name in re.findall(r"^  (\w[\w-]*)", listed[1], re.MULTILINE) if listed else []:
        yield from commands((*words, name))


class Program(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-test-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def refused(self, code, needle, *words, **options):
        """One sentence on standard error that holds `needle`, nothing on standard output, the documented code."""
        result = run(*words, **options)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, "")
        lines = [line for line in result.stderr.splitlines() if line.startswith("sluice: ")]
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertIn(needle, lines[0])
        return lines[0]

    def short_text(self, characters):
        path = self.folder / "text.txt"
        path.write_text((MODEL / "valid.txt").read_text()[:characters])
        return path

    def copy_of_model(self):
        copy = self.folder / "model"
        shutil.copytree(MODEL, copy)
        return copy

    def edit_config(self, folder, **changes):
        path = folder / "config.json"
        config = json.loads(path.read_text())
        config.update(changes)
        path.write_text(json.dumps(config))
