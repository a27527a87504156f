# SPDX-License-Identifier: Apache-2.0
"""The program and its surroundings, from outside: terminals, pipes, closed descriptors, signals, files that are cut.

usage: program_signals_test.py PROGRAM SOURCE_FOLDER [unittest arguments]
"""
import os
import pathlib
import pty
import re
import resource
import shutil
import signal
import subprocess
import sys
import unittest

from program_case import FILE, INTERRUPTED, MODEL, OK, PROGRAM, PROMPT, Program, run, wait_until_it_listens


class Terminals(Program):
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


class Signals(Program):
    def test_truncated_while_mapped(self):
        """M2: whoever notices, the size check or SIGBUS, says it in one sentence and the same exit code."""
        copy, out = self.copy_of_model(), self.folder / "out"
        shards = sorted(copy.glob("*.safetensors"))
        for _ in range(20):  # on a busy machine it may have ended before it is stopped
            process = subprocess.Popen([PROGRAM, "quantize", copy, out, "--format", "mxfp8"], stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True)
            while process.poll() is None and shards[-1].name not in pathlib.Path(f"/proc/{process.pid}/maps").read_text():
                pass
            process.send_signal(signal.SIGSTOP)
            if not out.exists():
                break
            process.send_signal(signal.SIGCONT)
            process.communicate(timeout=60)
            shutil.rmtree(out)
        for shard in shards:
            os.truncate(shard, 4096)
        process.send_signal(signal.SIGCONT)
        _, stderr = process.communicate(timeout=60)
        self.assertEqual(process.returncode, FILE, stderr)
        self.assertRegex(stderr, r"sluice: .*/model-0000[12]-of-00002\.safetensors was cut ")
        self.assertFalse(out.exists())

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
        self.assertEqual(process.wait(60), -signal.SIGPIPE)
        for words in (("info",), ("generate", "--model-path", MODEL, "--prompt", PROMPT, "--json")):  # not under way
            read, write = os.pipe()
            os.close(read)
            result = run(*words, stdout=write, stderr=subprocess.PIPE)
            os.close(write)
            self.assertEqual((result.returncode, re.findall("sluice: .*", result.stderr)), (-signal.SIGPIPE, []), words)

    def quantize(self, out, **options):
        process = subprocess.Popen([PROGRAM, "quantize", MODEL, out, "--format", "mxfp8"], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True, **options)
        wait_until_it_listens(process)
        return process

    def test_a_terminal_that_hangs_up_leaves_no_part(self):
        codes = set()
        for attempt in range(200):  # a quick machine is done before it hears the signal
            process = self.quantize(self.folder / f"q{attempt}")
            process.send_signal(signal.SIGHUP)
            stderr = process.communicate(timeout=60)[1]
            codes.add(process.returncode)
            self.assertIn(process.returncode, (OK, INTERRUPTED), stderr)
            self.assertEqual([p.name for p in self.folder.glob("*.partial-*")], [])
            if process.returncode == INTERRUPTED:
                break
        self.assertIn(INTERRUPTED, codes)

    def test_nohup_goes_on(self):
        process = self.quantize(self.folder / "q", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        process.send_signal(signal.SIGHUP)
        stderr = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, OK, stderr)

    def test_a_limit_of_file_sizes_is_a_sentence(self):
        """The signal's default would end the program, and leave what is half written."""
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        self.refused(FILE, "cannot be written", "quantize", MODEL, self.folder / "q", "--format", "mxfp8", preexec_fn=limit)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_closed_descriptors_do_not_become_outputs(self):
        """The next file would get the number of standard error, and progress would be written into it."""
        whole, out = self.folder / "whole", self.folder / "q"
        self.assertEqual(run("quantize", MODEL, whole, "--format", "mxfp8").returncode, OK)
        for closed in ((2,), (0, 1, 2)):
            process = subprocess.Popen([PROGRAM, "quantize", MODEL, out, "--format", "mxfp8"],
                                       preexec_fn=lambda: [os.close(fd) for fd in closed])
            self.assertEqual(process.wait(60), OK)
            for file in whole.iterdir():
                self.assertEqual((out / file.name).read_bytes(), file.read_bytes(), (closed, file.name))
            shutil.rmtree(out)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
