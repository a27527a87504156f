# SPDX-License-Identifier: Apache-2.0
"""The program from outside: help, exit codes, sentences, streams, interrupts, full disks.

usage: program_test.py PROGRAM SOURCE_FOLDER [unittest arguments]
"""
import json
import math
import os
import pathlib
import pty
import random
import re
import resource
import shutil
import signal
import struct
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
    """Until the program has its handler of SIGINT: a loaded machine may take seconds to get that far."""
    while process.poll() is None:
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        if int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> (signal.SIGINT - 1) & 1:
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

    def copy_of_model(self):
        copy = self.folder / "model"
        shutil.copytree(MODEL, copy)
        return copy

    def edit_config(self, folder, **changes):
        path = folder / "config.json"
        config = json.loads(path.read_text())
        config.update(changes)
        path.write_text(json.dumps(config))


class Frame(Program):
    def test_every_command_has_help_with_examples(self):
        names = list(commands())
        self.assertIn(("generate",), names)
        self.assertIn(("info",), names)
        for words in names:
            result = run(*words, "--help")
            self.assertEqual((result.returncode, result.stderr), (OK, ""), words)
            self.assertTrue(result.stdout.isascii(), words)
            if "Subcommands:" not in result.stdout:
                self.assertIn("Examples:\n  sluice " + " ".join(words), result.stdout, words)

    def test_version_and_info(self):
        self.assertRegex(run("--version").stdout, r"^sluice \d+\.\d+\.\d+ \(.*\nCPU: ")
        self.assertIn("SLUICE_THREADS=3\n", run("info", env={"SLUICE_THREADS": "3"}).stdout)
        self.assertIn("threads: 3\n", run("info", env={"SLUICE_THREADS": "3"}).stdout)
        self.assertIn("threads: 2\n", run("info", "--threads", "2", env={"SLUICE_THREADS": "3"}).stdout)

    def test_usage_errors(self):
        for words in [(), ("no-such-command",), ("--no-such-option",), ("info", "--threads", "x"),
                      ("info", "--threads", "-1"), ("info", "extra"), ("generate",), ("eval",),
                      ("generate", "--model-path", MODEL, "--prompt", "x", "--no-such-option"),
                      ("generate", "--model-path", MODEL, "--prompt", "x", "--max-new-tokens", "-3")]:
            result = run(*words)
            self.assertEqual(result.returncode, USAGE, (words, result.stderr))
            self.assertEqual(result.stdout, "", words)
            self.assertNotEqual(result.stderr, "", words)
        for words in commands():
            if words:
                self.assertEqual(run(*words, "--no-such-option").returncode, USAGE, words)

    def test_environment_errors(self):
        self.refused(USAGE, "SLUICE_THREADS", "info", env={"SLUICE_THREADS": "many"})
        self.refused(USAGE, "SLUICE_LOG", "info", env={"SLUICE_LOG": "loud"})

    def test_full_standard_output(self):
        with open("/dev/full", "w") as full:
            result = run("info", stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(result.returncode, FILE)
        self.assertIn("standard output", result.stderr)


class Models(Program):
    def generate(self, folder, *more, **options):
        return run("generate", "--model-path", folder, "--prompt", PROMPT, "--max-new-tokens", 24, "--temperature", 0,
                   *more, **options)

    def refused_model(self, code, needle, folder):
        return self.refused(code, needle, "generate", "--model-path", folder, "--prompt", "x")

    def test_generates_what_the_card_says(self):
        result = self.generate(MODEL, "--dtype", "float32")
        self.assertEqual(result.returncode, OK, result.stderr)
        self.assertIn(result.stdout.strip("\n").removeprefix(PROMPT), CONTINUATION)
        self.assertGreater(len(result.stdout), 60)
        self.assertTrue(result.stderr.isascii())
        self.assertEqual(re.findall(r"[\r\x1b#]", result.stderr), [], "no bars in a log")

    def test_json_is_all_of_standard_output(self):
        result = self.generate(MODEL, "--dtype", "float32", "--json")
        self.assertTrue(CONTINUATION.startswith(json.loads(result.stdout)["text"]))

    def test_prompt_of_broken_utf8_and_nul(self):
        result = subprocess.run([PROGRAM, "generate", "--model-path", MODEL, "--prompt", b"\xff\xfe\xc3(", "--json",
                                 "--max-new-tokens", "4"], capture_output=True, timeout=60)
        self.assertEqual(result.returncode, OK, result.stderr)
        json.loads(result.stdout.decode("utf-8"))

    def test_missing(self):
        self.refused_model(FILE, "/no/such/folder", "/no/such/folder")
        self.refused_model(FILE, str(self.folder), self.folder)  # empty
        self.refused_model(FILE, "config.json", MODEL / "config.json")
        copy = self.copy_of_model()
        (copy / "model-00002-of-00002.safetensors").unlink()
        self.refused_model(FILE, "model-00002-of-00002.safetensors", copy)

    def test_truncated_and_corrupt(self):
        copy = self.copy_of_model()
        shard = copy / "model-00001-of-00002.safetensors"
        whole = shard.read_bytes()
        for size in (0, 7, 100, len(whole) - 1):
            shard.write_bytes(whole[:size])
            self.refused_model(FILE, shard.name, copy)
        shard.write_bytes(b"\xff" * 8 + whole[8:])
        self.refused_model(FILE, shard.name, copy)
        shard.write_bytes(whole)
        (copy / "tokenizer.json").write_text("{")
        self.refused_model(FILE, "tokenizer.json", copy)
        (copy / "config.json").write_text("[]")
        self.refused_model(FILE, "config.json", copy)

    def test_config_that_contradicts(self):
        copy = self.copy_of_model()
        original = (copy / "config.json").read_text()
        for key, value in [("hidden_size", 0), ("hidden_size", 255), ("num_experts_per_tok", 99), ("vocab_size", 7)]:
            (copy / "config.json").write_text(original)
            self.edit_config(copy, **{key: value})
            self.refused_model(FILE, "", copy)
        (copy / "config.json").write_text(original)
        self.edit_config(copy, architectures=["NoSuchModel"], model_type="no_such_model")
        self.refused_model(UNSUPPORTED, "NoSuchModel", copy)

    def test_unknown_choices(self):
        for option, value in [("--dtype", "float12"), ("--quantization", "int3"), ("--moe-runner-backend", "abacus")]:
            result = self.generate(MODEL, option, value)
            self.assertEqual(result.returncode, USAGE, (option, result.stderr))
            self.assertIn(value, result.stderr)

    @unittest.skipIf(SANITIZED, "no limit of memory under a sanitizer")
    def test_lying_sizes_allocate_nothing(self):
        """M9: 400 MB of address space do for every lie about size; each is refused before anything is allocated."""
        limit = memory_limit(400)
        copy = self.copy_of_model()
        shard = copy / "model-00002-of-00002.safetensors"
        whole = shard.read_bytes()
        size = int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8:8 + size])
        name = next(k for k, v in header.items() if k != "__metadata__" and len(v["shape"]) == 2)

        def with_header(**changes):
            text = json.dumps({**header, name: {**header[name], **changes}}).encode()
            return len(text).to_bytes(8, "little") + text + whole[8 + size:]

        begin, end = header[name]["data_offsets"]
        for what, lie in [("header of 2^64 - 1", b"\xff" * 8 + whole[8:]),
                          ("header of 99 MB", (99_000_000).to_bytes(8, "little") + whole[8:]),
                          ("shape of 2^40", with_header(shape=[1 << 20, 1 << 20])),
                          ("shape of 2^64", with_header(shape=[1 << 32, 1 << 32])),
                          ("data of 2^60", with_header(data_offsets=[begin, begin + (1 << 60)])),
                          ("shape and data of 2^40", with_header(shape=[1 << 20, 1 << 19], data_offsets=[begin, begin + (1 << 40)]))]:
            with self.subTest(what):
                shard.write_bytes(lie)
                self.assertIn(shard.name, self.refused(FILE, "", "generate", "--model-path", copy, "--prompt", "x",
                                                       "--threads", 1, preexec_fn=limit))
        shard.write_bytes(whole)
        original = (copy / "config.json").read_text()
        for key, value in [("vocab_size", 1 << 40), ("hidden_size", 1 << 30), ("n_routed_experts", 1 << 31),
                           ("max_position_embeddings", 1 << 40), ("ssm_state_size", 1 << 30), ("num_hidden_layers", 1 << 30)]:
            with self.subTest(key):
                (copy / "config.json").write_text(original)
                self.edit_config(copy, **{key: value})
                result = run("generate", "--model-path", copy, "--prompt", "x", "--max-new-tokens", 2, "--threads", 1,
                             preexec_fn=limit)
                self.assertIn(result.returncode, (OK, FILE) if key == "max_position_embeddings" else (FILE,), result.stderr)

    def test_nan_weights_end_with_a_sentence(self):
        """M15: no text, no score and no hang from a model whose logits are NaN."""
        copy = self.copy_of_model()
        shard = copy / "model-00001-of-00002.safetensors"
        whole = bytearray(shard.read_bytes())
        size = int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8:8 + size])
        name = next(k for k in header if k.endswith("norm.weight"))
        at = 8 + size + header[name]["data_offsets"][0]
        self.assertEqual(header[name]["dtype"], "BF16")
        whole[at:at + 2] = b"\xc0\x7f"
        shard.write_bytes(whole)
        for words in [("generate", "--prompt", "x"), ("generate", "--prompt", "x", "--temperature", 1),
                      ("eval", "perplexity", "--text", self.short_text(200))]:
            self.assertIn("NaN", self.refused(FILE, "logits", *words, "--model-path", copy))

    def test_truncated_while_mapped(self):
        """M2: whoever notices, the size check or SIGBUS, says it in one sentence and the same exit code."""
        copy, out = self.copy_of_model(), self.folder / "out"
        shards = sorted(copy.glob("*.safetensors"))
        process = subprocess.Popen([PROGRAM, "quantize", copy, out, "--format", "mxfp8"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        while shards[-1].name not in pathlib.Path(f"/proc/{process.pid}/maps").read_text():
            self.assertIsNone(process.poll(), "mapped nothing")
        process.send_signal(signal.SIGSTOP)
        for shard in shards:
            os.truncate(shard, 4096)
        process.send_signal(signal.SIGCONT)
        _, stderr = process.communicate(timeout=60)
        self.assertEqual(process.returncode, FILE, stderr)
        self.assertRegex(stderr, r"sluice: .*/model-0000[12]-of-00002\.safetensors was cut ")
        self.assertFalse(out.exists())

    def short_text(self, characters):
        path = self.folder / "text.txt"
        path.write_text((MODEL / "valid.txt").read_text()[:characters])
        return path

    def on_terminal(self, *words, interrupt_after=None):
        """Exit code and all that a terminal shows."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(PROGRAM, [str(w) for w in (PROGRAM, *words)])
        shown = b""
        try:
            while block := os.read(terminal, 65536):
                shown += block
                if interrupt_after and re.search(interrupt_after, shown):
                    os.kill(pid, signal.SIGINT)
                    interrupt_after = None
        except OSError:  # the terminal's other side is closed
            pass
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()

    def test_bars_with_rates_on_a_terminal(self):
        full = r"\[#+\] 100 %  .* of .* "
        code, shown = self.on_terminal("eval", "perplexity", "--model-path", MODEL, "--text", self.short_text(8000))
        self.assertEqual(code, OK, shown)
        self.assertRegex(shown, "loading " + full + r"MB  \d+\.\d+ GB/s\x1b\[K\r\n")
        self.assertRegex(shown, "evaluating " + full + r"tokens  [\d.]+ tokens/s\x1b\[K\r\n")
        code, shown = self.on_terminal("quantize", MODEL, self.folder / "q", "--format", "mxfp8")
        self.assertEqual(code, OK, shown)
        self.assertRegex(shown, "quantizing " + full + r"MB  \d+\.\d+ GB/s\x1b\[K\r\n")

    def test_interrupted_bar_and_text_leave_the_sentence_a_line(self):
        code, shown = self.on_terminal("eval", "perplexity", "--model-path", MODEL, "--text", MODEL / "valid.txt",
                                       interrupt_after=rb"evaluating.*tokens/s")
        self.assertEqual(code, INTERRUPTED, shown)
        self.assertRegex(shown, r"(\r\x1b\[K|\r\n)sluice: interrupted\r\n$")
        code, shown = self.on_terminal("generate", "--model-path", MODEL, "--prompt", PROMPT, "--ignore-eos",
                                       "--max-new-tokens", 4000, interrupt_after=rb" \w+ \w+ \w+ \w+$")
        self.assertEqual(code, INTERRUPTED, shown)
        self.assertTrue(shown.endswith("\r\nsluice: interrupted\r\n"), shown[-200:])

    def test_interrupted_generation(self):
        process = subprocess.Popen([PROGRAM, "generate", "--model-path", MODEL, "--prompt", PROMPT, "--ignore-eos",
                                    "--max-new-tokens", "2000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.read(80)  # it is under way
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        self.assertEqual(process.returncode, INTERRUPTED)

    def test_broken_pipe_ends_quietly(self):
        process = subprocess.Popen([PROGRAM, "generate", "--model-path", MODEL, "--prompt", PROMPT, "--ignore-eos",
                                    "--max-new-tokens", "2000"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        process.stdout.read(20)
        process.stdout.close()
        self.assertNotEqual(process.wait(60), OK)


class Files(Program):
    """Commands that write: nothing half-written under any circumstances."""

    def input_ids(self, sequences=1):
        """A safetensors file with input_ids [1, 4], or [sequences, 256]."""
        ids = (5, 9, 300, 7) * (64 if sequences > 1 else 1) * sequences
        shape = [sequences, len(ids) // sequences]
        header = json.dumps({"input_ids": {"dtype": "I32", "shape": shape, "data_offsets": [0, 4 * len(ids)]}}).encode()
        path = self.folder / "ids.safetensors"
        path.write_bytes(len(header).to_bytes(8, "little") + header + b"".join(i.to_bytes(4, "little") for i in ids))
        return path

    def eval_logits(self, output, **options):
        return run("eval", "logits", "--model-path", MODEL, "--input-ids", self.input_ids(), "-o", output, **options)

    def test_eval_writes_logits(self):
        out = self.folder / "out.safetensors"
        self.assertEqual(self.eval_logits(out).returncode, OK)
        data = out.read_bytes()
        header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
        self.assertEqual(header["logits"]["dtype"], "F32")
        self.assertEqual(header["logits"]["shape"], [1, 4, 4096])

    def test_outputs_that_cannot_be_written(self):
        self.assertEqual(self.eval_logits("/dev/full").returncode, FILE)
        missing = self.eval_logits(self.folder / "no" / "such" / "out.safetensors")
        self.assertEqual(missing.returncode, FILE, missing.stderr)
        self.assertIn("no/such", missing.stderr)
        self.assertIn(self.eval_logits(self.folder).returncode, (USAGE, FILE))

    def test_file_size_limit_leaves_nothing(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        before = set(self.folder.iterdir()) | {self.folder / "ids.safetensors"}
        result = self.eval_logits(self.folder / "out.safetensors", preexec_fn=limit)
        self.assertEqual(result.returncode, OK if "out.safetensors" in os.listdir(self.folder) else FILE, result.stderr)
        result = run("quantize", MODEL, self.folder / "q", "--format", "mxfp8", preexec_fn=limit)
        self.assertEqual(result.returncode, FILE, result.stderr)
        left = [p for p in self.folder.rglob("*") if p.is_file() and p not in before and p.name != "out.safetensors"]
        self.assertEqual([p for p in left if "safetensors" in p.name], [])

    def moe_case(self, tokens, hidden=256, inter=256):
        """A case of `moe run` whose output has tokens * hidden * 2 bytes."""
        sizes = {"hidden_states": [tokens, hidden], "routing_logits": [tokens, 2],
                 "gemm1_weights": [2, inter, hidden], "gemm2_weights": [2, hidden, inter]}
        header, end = {"__metadata__": {"spec": f"experts=2 top_k=2 hidden={hidden} inter={inter} act=relu2"}}, 0
        for name, shape in sizes.items():
            count = 2 * math.prod(shape)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + count]}
            end += count
        text = json.dumps(header).encode()
        path = self.folder / "case.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text + b"\x11\x3c" * (end // 2))
        return path

    def test_interrupted_eval_and_moe_run_leave_nothing(self):
        (self.folder / "text.txt").write_text((MODEL / "valid.txt").read_text())
        out = self.folder / "out.safetensors"
        out.write_bytes(b"older")
        given = {self.moe_case(60_000), self.input_ids(sequences=60), self.folder / "text.txt", out}
        for words in [("moe", "run", self.folder / "case.safetensors", "-o", out, "--threads", 1, "--trace"),
                      ("eval", "logits", "--model-path", MODEL, "--input-ids", self.folder / "ids.safetensors", "-o", out),
                      ("eval", "perplexity", "--model-path", MODEL, "--text", self.folder / "text.txt")]:
            for stop in (signal.SIGINT, signal.SIGTERM):
                with self.subTest(words=words[:2], signal=stop):
                    process = subprocess.Popen([PROGRAM, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                    wait_until_it_listens(process)
                    time.sleep(0.3)
                    process.send_signal(stop)
                    stderr = process.communicate(timeout=20)[1]
                    self.assertEqual(process.returncode, INTERRUPTED, stderr)
                    self.assertTrue(stderr.endswith(b"sluice: interrupted\n"), stderr)
                    self.assertEqual(set(self.folder.iterdir()), given)
                    self.assertEqual(out.read_bytes(), b"older", "an existing output stays until the new one is whole")

    def commands_that_write(self):
        """Where nothing but their inputs may be left."""
        out = self.folder / "out"
        return {self.moe_case(40_000), self.input_ids()}, [
            ("moe", "run", self.folder / "case.safetensors", "-o", out),
            ("eval", "logits", "--model-path", MODEL, "--input-ids", self.folder / "ids.safetensors", "-o", out),
            ("quantize", MODEL, out, "--format", "nvfp4", "--weight-only")]

    def test_files_that_may_not_grow_leave_nothing(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        given, commands_that_write = self.commands_that_write()
        for words in commands_that_write:
            with self.subTest(words[0]):
                self.refused(FILE, "cannot be written", *words, preexec_fn=limit)
                self.assertEqual(set(self.folder.iterdir()), given)

    @unittest.skipIf(SANITIZED, "no limit of memory under a sanitizer")
    def test_out_of_memory_leaves_nothing(self):
        given, commands_that_write = self.commands_that_write()
        for words in [*commands_that_write, ("generate", "--model-path", MODEL, "--prompt", PROMPT)]:
            with self.subTest(words[0]):
                codes = []
                for megabytes in (96, 64, 48, 40, 34, 30, 28):  # until it is too little
                    result = run(*words, "--threads", 1, preexec_fn=memory_limit(megabytes))
                    codes.append(result.returncode)
                    if result.returncode != OK:
                        break
                    shutil.rmtree(self.folder / "out", ignore_errors=True)
                    (self.folder / "out").unlink(missing_ok=True)
                self.assertEqual(codes[-1], MEMORY, result.stderr)
                self.assertEqual(set(self.folder.iterdir()), given)

    def test_full_disk(self):
        """A real one, where we may mount: 6 MB for 11 MB of weights."""
        disk = self.folder / "disk"
        disk.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", disk], capture_output=True, text=True)
        if mounted.returncode != 0:
            self.skipTest(f"no disk can be mounted here: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", disk], check=True)
        sentence = self.refused(FILE, "No space left on device", "quantize", MODEL, disk / "q", "--format", "mxfp8")
        self.assertIn("model.safetensors cannot be written", sentence)
        self.assertEqual(list(disk.iterdir()), [])

    def test_quantize_does_not_write_over(self):
        taken = self.folder / "taken"
        taken.mkdir()
        (taken / "mine.txt").write_text("mine")
        result = run("quantize", MODEL, taken, "--format", "mxfp8")
        self.assertEqual(result.returncode, USAGE, result.stderr)
        self.assertEqual([p.name for p in taken.iterdir()], ["mine.txt"])

    def test_interrupted_quantize_leaves_no_part(self):
        seed = random.randrange(1 << 30)
        rng = random.Random(seed)
        codes = set()
        for attempt in range(12):
            out = self.folder / f"q{attempt}"
            process = subprocess.Popen([PROGRAM, "quantize", MODEL, out, "--format", "mxfp8"],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wait_until_it_listens(process)
            time.sleep(attempt % 4 * rng.uniform(0.0, 0.08))  # at once, too: a quick machine is done after 0.05 s
            process.send_signal(rng.choice([signal.SIGINT, signal.SIGTERM]))
            code = process.wait(30)
            codes.add(code)
            self.assertIn(code, (OK, INTERRUPTED), f"seed {seed}")
            if out.exists():
                for file in out.glob("*.safetensors"):  # whole, or not there
                    data = file.read_bytes()
                    header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
                    end = max(v["data_offsets"][1] for k, v in header.items() if k != "__metadata__")
                    self.assertEqual(len(data), 8 + int.from_bytes(data[:8], "little") + end, f"seed {seed}")
            # A whole folder, or none; the signal may come after the last moment at which it is heard.
            self.assertIn([p.name for p in self.folder.iterdir()], ([], [out.name]), f"seed {seed}")
            shutil.rmtree(out, ignore_errors=True)
        self.assertIn(INTERRUPTED, codes, f"seed {seed}: no attempt was interrupted")


class Operator(Program):
    def test_explain(self):
        result = run("explain", SPEC)
        self.assertEqual(result.returncode, OK, result.stderr)
        self.assertIn("cpu: ", result.stdout)
        self.refused(USAGE, "top_k", "explain", "experts=2 top_k=9 hidden=64 inter=64")
        self.refused(USAGE, "colour", "explain", "colour=red")

    def test_moe_run_refuses_what_is_no_case(self):
        self.refused(FILE, "/no/such/case", "moe", "run", "/no/such/case.safetensors", "-o", self.folder / "out.safetensors")
        self.assertEqual(list(self.folder.iterdir()), [])


class Documents(Program):
    """docs/reference.md beyond what tools/reference.py generates."""
    TEXT = (SOURCE / "docs" / "reference.md").read_text()

    def section(self, title):
        return self.TEXT.split(f"\n{title}\n", 1)[1].split("\n## ", 1)[0]

    def test_spec_line_has_every_key_and_value(self):
        rows = [line.split("|")[1:3] for line in self.section("## The spec line").splitlines() if line.startswith("| `")]
        documented = {key: values for keys, values in rows for key in re.findall(r"`(\w+)`", keys)}
        accepted = run("explain", "colour=red").stderr.split("accepted: ")[1]
        self.assertEqual(sorted(documented), sorted(re.findall(r"\w+", accepted)))
        for key in ("weights", "inputs", "dtype", "act", "routing"):
            accepted = run("explain", f"experts=8 top_k=2 hidden=64 inter=48 {key}=colour").stderr.split("accepted: ")
            self.assertEqual(re.findall(r"`(\w+)`", documented[key]), re.findall(r"\w+", accepted[1]), key)

    def test_exit_codes_are_those_of_the_program(self):
        rows = re.findall(r"^\| (\d+) \|", self.section("## Exit codes"), re.MULTILINE)
        declared = re.findall(r"^  kExit\w+ = (\d+),", (SOURCE / "apps" / "command.h").read_text(), re.MULTILINE)
        self.assertEqual(rows, declared)

    def test_robustness_names_tests_that_exist(self):
        document = (SOURCE / "docs" / "robustness.md").read_text()
        sources = [p.read_text() for p in (SOURCE / "tests").rglob("*") if p.suffix in (".cc", ".h", ".py")]
        tests = set(re.findall(r"TEST(?:_[FP])?\((\w+), (\w+)\)", "\n".join(sources)))
        for suite, name in re.findall(r"`([A-Z]\w+)\.(\w+)`", document):
            self.assertIn((suite, name), tests)
        for case in re.findall(r"`([a-z][a-z0-9]*(?:_[a-z0-9]+)+)`", document):
            if case != "data_offsets":
                self.assertTrue(any(re.search(rf"\b(D::|def ){case}\b", text) for text in sources), case)
        self.assertEqual(re.findall(r"^\| M(\d+) ", document, re.MULTILINE), [str(i) for i in range(1, 17)])
        rows = "".join(re.findall(r"^\| S\d+[^|]*", document, re.MULTILINE))
        self.assertEqual(re.findall(r"S(\d+)", rows), [str(i) for i in range(1, 21)])

    def test_worked_example_of_moe_run(self):
        example = self.section("## Files of `sluice moe run`")
        code = re.search(r"```python\n(.*?)```", example, re.DOTALL)[1]
        subprocess.run([sys.executable, "-c", code], cwd=self.folder, check=True)
        command = re.search(r"^\$ sluice (.*)$", example, re.MULTILINE)[1].split()
        result = run(*command, cwd=self.folder)
        self.assertEqual(result.returncode, OK, result.stderr)
        data = (self.folder / "out.safetensors").read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        self.assertEqual((header["output"]["dtype"], header["output"]["shape"]), ("BF16", [2, 2]))
        begin, end = header["output"]["data_offsets"]
        raw = data[start + begin:start + end]
        values = [struct.unpack("<f", b"\0\0" + raw[i:i + 2])[0] for i in range(0, len(raw), 2)]
        self.assertEqual(values, [4.5, 9, 8, 16])
        for name in ("expert_ids", "expert_weights", "trace.input", "trace.up", "trace.activated", "trace.down"):
            self.assertIn(name, header)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
