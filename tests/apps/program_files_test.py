# SPDX-License-Identifier: Apache-2.0
"""Commands that write, from outside: files whole or absent, interrupts, full disks.

usage: program_files_test.py PROGRAM SOURCE_FOLDER [unittest arguments]
"""
import itertools
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import unittest

from program_case import (
    FILE, INTERRUPTED, MEMORY, MODEL, OK, PROGRAM, PROMPT, SANITIZED, SOURCE, USAGE, Program, memory_limit, run,
    wait_until_it_listens)


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

    def test_ids_that_the_model_does_not_have_name_their_file(self):
        out = self.folder / "out.safetensors"
        for dtype, width, value in (("I32", 4, 4096), ("I64", 8, 4096), ("I32", 4, -1), ("I64", 8, 2**40)):
            path, header = self.folder / "ids.safetensors", json.dumps(
                {"input_ids": {"dtype": dtype, "shape": [1, 2], "data_offsets": [0, 2 * width]}}).encode()
            path.write_bytes(len(header).to_bytes(8, "little") + header
                             + b"".join(i.to_bytes(width, "little", signed=True) for i in (5, value)))
            self.refused(FILE, f"{path}: input_ids holds {value}; accepted: 0 to 4095, the model's vocabulary",
                         "eval", "logits", "--model-path", MODEL, "--input-ids", path, "-o", out)
        path = self.input_ids(sequences=60)  # as one sequence: longer than the model takes
        path.write_bytes(path.read_bytes().replace(b"[60, 256]", b"[1,15360]"))
        self.refused(FILE, f"{path}: input_ids has shape [1, 15360]; accepted: sequences of at most 2048 tokens",
                     "eval", "logits", "--model-path", MODEL, "--input-ids", path, "-o", out)

    def test_outputs_that_cannot_be_written(self):
        self.assertEqual(self.eval_logits("/dev/full").returncode, FILE)
        missing = self.eval_logits(self.folder / "no" / "such" / "out.safetensors")
        self.assertEqual(missing.returncode, FILE, missing.stderr)
        self.assertIn("no/such", missing.stderr)
        self.assertEqual(self.eval_logits(self.folder).returncode, USAGE)

    def test_outputs_are_looked_at_before_the_work(self):
        model = self.copy_of_model()
        for shard in model.glob("*.safetensors"):
            shard.write_bytes(b"")  # whoever opens them says so
        base = ("eval", "logits", "--model-path", model, "--input-ids", self.input_ids(), "-o")
        self.refused(FILE, "no/out cannot be created", *base, self.folder / "no" / "out")
        self.refused(USAGE, "is a folder", *base, self.folder)
        text = self.folder / "text.txt"
        text.write_text((MODEL / "valid.txt").read_text())
        quantize = ("quantize", MODEL, self.folder / "no" / "deep", "--format", "nvfp4", "--calibration", text)
        started = time.monotonic()
        self.refused(FILE, "no is no folder", *quantize)
        self.assertLess(time.monotonic() - started, 30, "the calibration, which takes minutes, did not run")

    def test_an_output_is_not_the_input(self):
        case, ids = self.moe_case(4), self.input_ids()
        (self.folder / "link").symlink_to(case)
        before = case.read_bytes(), ids.read_bytes()
        for out in (case, self.folder / "link", f"{self.folder}/../{self.folder.name}/{case.name}"):
            self.refused(USAGE, "is the input file", "moe", "run", case, "-o", out)
        self.refused(USAGE, "is the input file", "eval", "logits", "--model-path", MODEL, "--input-ids", ids, "-o", ids)
        self.assertEqual((case.read_bytes(), ids.read_bytes()), before)

    def test_outputs_that_only_the_last_step_could_refuse(self):
        """Empty names, the current folder, mount points: said before the work."""
        case, out = self.moe_case(4), self.folder / "out"
        self.refused(USAGE, 'the output "" has an empty name', "moe", "run", case, "-o", "")
        self.refused(USAGE, 'the output "" has an empty name', "eval", "logits", "--model-path", MODEL, "--input-ids",
                     self.input_ids(), "-o", "")
        out.mkdir()
        options = ("--format", "mxfp8")
        self.refused(USAGE, 'the output folder "" has an empty name', "quantize", MODEL, "", *options)
        self.refused(USAGE, "is the current folder", "quantize", MODEL, ".", *options, cwd=out)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", out], capture_output=True, text=True)
        if mounted.returncode != 0:
            self.skipTest(f"no disk can be mounted here: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", out], check=True)
        self.refused(USAGE, "out is a mount point", "quantize", MODEL, out, *options)
        self.assertEqual(list(out.iterdir()), [])

    def test_outputs_lead_through_links(self):
        case, target, link = self.moe_case(4), self.folder / "target", self.folder / "link"
        target.write_text("older")
        link.symlink_to("target")
        self.assertEqual(run("moe", "run", case, "-o", link).returncode, OK)
        self.assertTrue(link.is_symlink())
        plain = self.folder / "plain"
        self.assertEqual(run("moe", "run", case, "-o", plain).returncode, OK)
        self.assertEqual(target.read_bytes(), plain.read_bytes())
        far, to_far, to_empty = self.folder / "far", self.folder / "to_far", self.folder / "to_empty"
        for folder in (far / "deep", far / "empty"):
            folder.mkdir(parents=True)
        to_far.symlink_to("far/deep")
        to_empty.symlink_to("far/empty")
        for out, written in ((to_far / ".." / "q", far / "q"), (to_empty, far / "empty")):
            result = run("quantize", MODEL, out, "--format", "mxfp8")
            self.assertEqual(result.returncode, OK, result.stderr)
            self.assertTrue((written / "config.json").is_file(), out)
        self.assertTrue(to_empty.is_symlink())
        self.assertFalse((self.folder / "q").exists())

    def test_pipes_and_standard_output_get_the_whole_output(self):
        case, plain = self.moe_case(4), self.folder / "plain"
        words = ("moe", "run", case, "--trace", "-o")
        self.assertEqual(run(*words, plain).returncode, OK)
        want = plain.read_bytes()
        streams = {name: os.readlink(name) for name in ("/dev/stdout", "/dev/stderr")}
        fifo, got = self.folder / "fifo", self.folder / "got"
        os.mkfifo(fifo)
        with open(got, "wb") as to, subprocess.Popen(["cat", fifo], stdout=to):
            self.assertEqual(run(*words, fifo).returncode, OK)
        self.assertEqual(got.read_bytes(), want)
        for name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
            with self.subTest(name):
                piped = subprocess.run([PROGRAM, *words, name], capture_output=True, timeout=300)
                self.assertEqual((piped.returncode, piped.stdout), (OK, want), piped.stderr)
                self.assertIn(f"{name}: 4 tokens on".encode(), piped.stderr)
                with open(got, "wb") as to:  # as the shell's > got
                    self.assertEqual(run(*words, name, stdout=to, stderr=subprocess.DEVNULL).returncode, OK)
                self.assertEqual(got.read_bytes(), want)
        self.assertEqual({name: os.readlink(name) for name in streams}, streams)

    def test_quantize_refuses_a_part_of_a_layers_experts(self):
        text, out = self.folder / "text.txt", self.folder / "out"
        text.write_text((MODEL / "valid.txt").read_text())
        for options in (("--format", "mxfp8"), ("--format", "fp8", "--calibration", text)):
            for part in ("experts.3", "*.up_proj"):
                with self.subTest(options=options, part=part):
                    sentence = self.refused(USAGE, f'exclude "{part}" matches ', "quantize", MODEL, out, *options, "--exclude", part)
                    self.assertRegex(sentence, r'accepted: all of a layer\'s experts, as with "\S+\.experts", or none of them$')
        self.assertEqual(list(self.folder.iterdir()), [text])

    def test_an_output_is_never_a_file_of_the_model(self):
        copy = self.folder / "model"
        shutil.copytree(MODEL, copy)
        before = {file.name: file.stat().st_size for file in copy.iterdir()}
        ids = SOURCE / "tests" / "fixtures" / "nemotron-h" / "golden.safetensors"
        for name in before:
            self.refused(USAGE, "is a file of the model in", "eval", "logits", "--model-path", copy, "--input-ids", ids,
                         "-o", copy / name)
        self.assertEqual({file.name: file.stat().st_size for file in copy.iterdir()}, before)

    def test_options_without_effect_are_refused(self):
        out = self.folder / "out"
        self.refused(USAGE, "--calibration", "quantize", MODEL, out, "--format", "mxfp8", "--window", "3")
        self.refused(USAGE, "--speculative-algorithm", "generate", "--model-path", MODEL, "--prompt", "x",
                     "--speculative-num-steps", "2")
        for port in (0, 65536, 99999, "80x"):
            self.refused(USAGE, "accepted: a port of 1 to 65535", "bench", "serving", "--base-url", f"http://127.0.0.1:{port}")

    def test_excluded_modules_do_not_take_the_folders(self):
        out = self.folder / "out"
        done = run("quantize", "--format", "mxfp8", "--exclude", "*.q_proj", "--exclude", "*.k_proj", MODEL, out)
        self.assertEqual(done.returncode, OK, done.stderr)

    def test_quantize_refuses_patterns_that_say_nothing(self):
        out = self.folder / "out"
        self.refused(USAGE, 'exclude "nothing_matches" matches no module', "quantize", MODEL, out, "--format", "mxfp8",
                     "--exclude", "nothing_matches")
        sentence = self.refused(USAGE, 'exclude "(" is not a regular expression', "quantize", MODEL, out, "--format", "mxfp8",
                                "--exclude", "re:(")
        self.assertNotIn("?:", sentence)
        self.assertFalse(out.exists())

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
                    for _ in range(20):  # the quickest is done after 0.3 s, before which a busy machine may not look
                        process = subprocess.Popen([PROGRAM, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                        wait_until_it_listens(process)
                        time.sleep(0.05)
                        process.send_signal(stop)
                        stderr = process.communicate(timeout=120)[1]
                        if process.returncode != OK:
                            break
                        out.write_bytes(b"older")
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
        seed = int(os.environ.get("SLUICE_TEST_SEED") or random.randrange(2**32))
        print(f"SLUICE_TEST_SEED={seed}", flush=True)
        rng = random.Random(seed)
        codes = set()
        # Twelve attempts, and more at once until one was in time.
        for attempt in itertools.takewhile(lambda a: a < 12 or (a < 200 and INTERRUPTED not in codes), itertools.count()):
            out = self.folder / f"q{attempt}"
            process = subprocess.Popen([PROGRAM, "quantize", MODEL, out, "--format", "mxfp8"],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wait_until_it_listens(process)
            time.sleep((attempt < 12) * (attempt % 4) * rng.uniform(0.0, 0.08))  # at once, too: a quick machine is done after 0.05 s
            process.send_signal(rng.choice([signal.SIGINT, signal.SIGTERM]))
            code = process.wait(120)
            codes.add(code)
            self.assertIn(code, (OK, INTERRUPTED), f"SLUICE_TEST_SEED={seed}")
            if out.exists():
                for file in out.glob("*.safetensors"):  # whole, or not there
                    data = file.read_bytes()
                    header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
                    end = max(v["data_offsets"][1] for k, v in header.items() if k != "__metadata__")
                    self.assertEqual(len(data), 8 + int.from_bytes(data[:8], "little") + end, f"SLUICE_TEST_SEED={seed}")
            # A whole folder, or none; the signal may come after the last moment at which it is heard.
            self.assertIn([p.name for p in self.folder.iterdir()], ([], [out.name]), f"SLUICE_TEST_SEED={seed}")
            shutil.rmtree(out, ignore_errors=True)
        self.assertIn(INTERRUPTED, codes, f"SLUICE_TEST_SEED={seed}: no attempt was interrupted")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
