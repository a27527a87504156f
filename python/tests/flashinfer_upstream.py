# SPDX-License-Identifier: Apache-2.0
"""Runs FlashInfer's own test files against sluice_moe.flashinfer on a GPU.

usage: flashinfer_upstream.py CHECKOUT [--jobs N] [--seconds S] [--seed N] [--patience S] [--json FILE] [--log FILE] [--gates]
                              [--plain] [FILE[::TEST]...]

CHECKOUT is a folder of FlashInfer's repository with tests/ in it; nothing of it is copied here. Two things are changed, and
no test: `import flashinfer` finds sluice_moe.flashinfer, and the architecture that tests ask for is Blackwell's, 10.0. What
sluice_moe.flashinfer does not have is a stand-in that refuses when it is called (flashinfer_stand_in.py). Helpers by which the
tests check results (dequantisers, orders of rows) are that file's; enumerations and settings that are plain Python are the
checkout's. Loops over tokens in the tests' references are replaced by indexing with the same results to the bit
(flashinfer_loops.py); --plain keeps them.

The cases are collected once. N processes, forked from the one that collected, run them:

1. Gates: every case up to its first use of CUDA. Those that skip themselves by then are settled. --gates stops here, needs no
   GPU and prints the counts.
2. The others in random order, until all have run or the time is over: those that ran are a random sample of each file's.
3. Those that ran out of memory again, with a fourth of the processes and then alone.

Before each case the process-wide state that files set (flashinfer_state.py) is what it was after the import of its own file,
and random numbers begin anew at the seed.

A case is `passed`, `failed`, `refused` (a call raised a sentence of sluice_moe's), `skipped` (the test itself says so), `slow`
(it took more than --patience seconds and its process was ended) or not reached. Prints the counts of each file, each reason
to refuse and to skip with its count, and the failures. --json has the failures' tracebacks and the time of each case too.
"""
import argparse
import collections
import gc
import io
import json
import os
import pathlib
import random
import re
import select
import signal
import socket
import sys
import time
import traceback

import pytest
from _pytest._io import TerminalWriter

import flashinfer_state

FILES = [
    "tests/moe/test_trtllm_gen_fused_moe.py",
    "tests/moe/test_trtllm_gen_fused_moe_routing_renormalize_bf16.py",
    "tests/moe/test_trtllm_gen_fused_moe_routing_renormalize_fp4.py",
    "tests/moe/test_trtllm_gen_fused_moe_routing_renormalize_fp8.py",
    "tests/moe/test_trtllm_gen_routed_fused_moe.py",
    "tests/moe/test_trtllm_gen_per_token_moe.py",
    "tests/moe/test_trtllm_cutlass_fused_moe.py",
    "tests/gemm/test_mm_fp4.py",
    "tests/gemm/test_mm_mxfp8.py",
    "tests/utils/test_fp4_quantize.py",
    "tests/utils/test_fp8_quantize.py",
]
OUTCOMES = ("passed", "failed", "refused", "skipped", "slow")
GATES_AT_ONCE = 64  # cases that a process is given in one message
KEPT_BYTES = 1 << 30  # GPU memory that a process may keep for its next case
TRACEBACKS = 60  # each of another test or another text
# Tests whose functions are Hopper's alone in FlashInfer: they expect a refusal of every other architecture.
ON_HOPPER = ("test_moe_fp8_block_scaling",)
class UsesCuda(BaseException):
    """Ends a case at its gate. Not an Exception: tests catch those."""


def start_cuda_never():
    raise UsesCuda


def judge(error, traceback_entries):
    """(outcome, sentence) of what a case raised. `memory`: it may pass when fewer run beside it."""
    import sluice_moe
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, UsesCuda):
        return "gate", ""
    if isinstance(error, (pytest.skip.Exception, pytest.xfail.Exception)):
        return "skipped", str(error)
    chain = error
    while chain is not None and not isinstance(chain, sluice_moe.Unsupported):
        # A test that expects another sentence raises in its turn.
        other_sentence = isinstance(chain, AssertionError) and str(chain).startswith("Regex pattern did not match")
        chain = chain.__context__ if other_sentence else chain.__cause__
    if chain is not None:
        return "refused", str(chain)
    inside = any("sluice_moe" in str(entry.path) for entry in traceback_entries)
    if inside and isinstance(error, (TypeError, ValueError, sluice_moe.Error)) and "accepted" in text:
        return "refused", str(error)
    if isinstance(error, sluice_moe.OutOfMemory) or "out of memory" in text.lower():
        return "memory", text
    return "failed", text


class Worker:
    """The side of a forked process: runs the cases whose numbers it reads, and answers with a line of JSON for each."""

    def __init__(self, items, connection, states, seed):
        self.items, self.connection, self.result = items, connection, None
        self.states, self.seed = states, seed

    def makereport(self, item, call):
        """The worst of set-up and call counts; a case that only its teardown fails has passed."""
        if call.when == "teardown" or (call.when == "setup" and call.excinfo is None):
            return
        if call.excinfo is None:
            self.result = ["passed", "", ""]
            return
        outcome, text = judge(call.excinfo.value, call.excinfo.traceback)
        trace = ""
        if outcome == "failed":
            call.excinfo.traceback = call.excinfo.traceback.cut(path=item.path)  # without pytest's own frames
            trace = str(call.excinfo.getrepr(style="short"))[-3000:]
        self.result = [outcome, " ".join(text.split())[:400], trace]

    def serve(self):
        import torch
        start_cuda = torch.cuda._lazy_init
        with self.connection, self.connection.makefile("r") as requests:
            for line in requests:
                request = json.loads(line)
                torch.cuda._lazy_init = start_cuda_never if request["gates"] else start_cuda
                for number in request["cases"]:
                    outcome, text, trace, seconds = self.run(number)
                    self.connection.sendall((json.dumps([number, outcome, text, trace, seconds]) + "\n").encode())
                    if outcome == "failed" and re.search("CUDA error|illegal memory|launch failure|cudaError", text):
                        return  # CUDA fails from now on in this process

    def run(self, number):
        start = time.monotonic()
        item, self.result = self.items[number], ["failed", "the case reported nothing", ""]
        import torch
        flashinfer_state.restore(self.states[file_of(item)], self.seed)
        capability = (9, 0) if item.originalname in ON_HOPPER else (10, 0)
        torch.cuda.get_device_capability = lambda device=None: capability
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        free_memory()
        return (*self.result, round(time.monotonic() - start, 3))


def free_memory():
    import torch
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):  # pytest leaves a failure's tensors there
        if hasattr(sys, name):
            delattr(sys, name)
    if torch.cuda.is_initialized() and torch.cuda.memory_reserved() > KEPT_BYTES:
        gc.collect()
        torch.cuda.empty_cache()


class Process:
    """The side of the process that collected."""

    def __init__(self, plugin, items, log):
        near, far = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            near.close()
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            status = 0
            try:
                plugin.worker = Worker(items, far, plugin.states, plugin.options.seed)
                plugin.worker.serve()
            except BaseException:
                traceback.print_exc()
                status = 1
            sys.stdout.flush()
            os._exit(status)
        far.close()
        self.connection, self.rest, self.cases, self.since = near, b"", [], time.monotonic()

    def give(self, cases, gates):
        self.cases, self.since = list(cases), time.monotonic()
        self.connection.sendall((json.dumps({"gates": gates, "cases": self.cases}) + "\n").encode())

    def answers(self):
        """Lines that have come; None at the end of the process."""
        try:
            received = self.connection.recv(1 << 20)
        except ConnectionResetError:
            received = b""
        if not received:
            return None
        *lines, self.rest = (self.rest + received).split(b"\n")
        self.since = time.monotonic()
        return [json.loads(line) for line in lines]

    def end(self, alive=True):
        """Its exit status. alive: it is made to end."""
        self.connection.close()
        if alive:
            os.kill(self.pid, signal.SIGKILL)
        return os.waitpid(self.pid, 0)[1]


class Terminal:
    """Stands for pytest's reporter: assertions ask it how to show their values."""

    def __init__(self):
        self._tw = TerminalWriter(io.StringIO())


class Plugin:
    """Collects, hands the cases out and keeps the outcomes."""

    def __init__(self, options, until):
        self.options, self.until = options, until
        self.worker, self.items, self.broken = None, [], []
        self.at_first, self.states = None, {}  # flashinfer_state's values, and those of each file after its import
        self.results = {}  # number: (outcome, sentence, traceback, seconds)
        self.without_memory = {}
        self.times = collections.Counter()

    def pytest_configure(self, config):
        for mark in ("long_running", "solo"):
            config.addinivalue_line("markers", f"{mark}: FlashInfer's")
        config.pluginmanager.register(Terminal(), "terminalreporter")

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector):
        if not isinstance(collector, pytest.Module):
            return (yield)
        if self.at_first is None:
            self.at_first = flashinfer_state.read()
        flashinfer_state.restore(self.at_first, self.options.seed)
        report = yield
        self.states[file_of(collector)] = flashinfer_state.read()
        return report

    def pytest_collectreport(self, report):
        if report.failed:
            self.broken.append(f"{report.nodeid} could not be collected: {str(report.longrepr)[-1500:]}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        """In place of pytest's own, which parses a test's whole file for each traceback: 0.1 s."""
        self.worker.makereport(item, call)
        outcome = "passed" if call.excinfo is None else "skipped" if self.worker.result[0] == "skipped" else "failed"
        return pytest.TestReport(item.nodeid, item.location, {}, outcome, None, call.when, duration=call.duration)

    def pytest_runtestloop(self, session):
        import torch
        self.items = session.items
        assert not torch.cuda.is_initialized(), "CUDA was started while the cases were collected, and cannot be used after a fork"
        self.times["collection"] = round(time.monotonic() - self.options.start, 1)
        gc.collect()
        gc.freeze()  # what was collected stays shared
        torch.set_num_threads(1)
        order = list(range(len(self.items)))
        random.Random(self.options.seed).shuffle(order)
        with open(self.options.log, "a") as log:
            self.hand_out(order, self.options.jobs, log, gates=True)
            left = [number for number in order if self.results.get(number, ("gate",))[0] != "skipped"]
            for number in left:
                self.results.pop(number, None)
            self.times["gates"] = round(time.monotonic() - self.options.start, 1)
            if not self.options.gates:
                for jobs in (self.options.jobs, -(-self.options.jobs // 4), 1):
                    left = self.hand_out(left, jobs, log)
                    self.times[f"{jobs} processes"] = round(time.monotonic() - self.options.start, 1)
                for number in left:  # though it was alone
                    self.results[number] = ["failed", *self.without_memory[number][1:]]
        return True

    def hand_out(self, order, jobs, log, gates=False):
        """Runs the cases of `order` in `jobs` processes; those that ran out of memory, at the end or with the time."""
        queue, again = collections.deque(order), []
        processes = [Process(self, self.items, log) for _ in range(min(jobs, len(queue)))]
        while processes and time.monotonic() < self.until:
            for process in processes:
                if not process.cases and queue:
                    process.give([queue.popleft() for _ in range(min(len(queue), GATES_AT_ONCE if gates else 1))], gates)
            busy = [process for process in processes if process.cases]
            if not busy:
                break
            for ready in select.select([process.connection for process in busy], [], [], 1.0)[0]:
                process = next(p for p in busy if p.connection is ready)
                answers = process.answers()
                if answers is None:
                    self.replace(processes, process, queue, again, log, "")
                for number, *result in answers or []:
                    process.cases.remove(number)
                    self.settle(number, result, again)
            for process in [p for p in busy if p.cases and time.monotonic() - p.since > self.options.patience]:
                if process in processes:
                    self.replace(processes, process, queue, again, log, "slow")
        for process in processes:  # all at once: a process with CUDA takes its time
            os.kill(process.pid, signal.SIGKILL)
        for process in processes:
            process.end(alive=False)
        return again

    def settle(self, number, result, again):
        """`memory` may be another case's doing: it runs once more, beside fewer."""
        if result[0] == "memory":
            again.append(number)
            self.without_memory[number] = result
        else:
            self.results[number] = result

    def replace(self, processes, process, queue, again, log, outcome):
        """A process that ended, or that is too long at its first case, goes, and its other cases are handed out anew: all
        of them where it ended by itself, before it read them."""
        status = process.end(alive=outcome == "slow")
        if status == 0:
            queue.extendleft(reversed(process.cases))
        elif process.cases:
            number, *others = process.cases
            queue.extendleft(reversed(others))
            if outcome == "slow":
                self.results[number] = ["slow", "", "", self.options.patience]
            elif os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
                self.settle(number, ["memory", "the process was killed", "", 0], again)
            else:
                self.results[number] = ["failed", f"the process ended with status {status}", "", 0]
        processes[processes.index(process)] = Process(self, self.items, log)


def main():
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    parser.add_argument("checkout")
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(16))
    parser.add_argument("--patience", type=float, default=90)
    parser.add_argument("--json", default=os.devnull)
    parser.add_argument("--log", default=os.devnull)
    parser.add_argument("--gates", action="store_true")
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_intermixed_args()
    options.start = time.monotonic()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",  # the processes use the cores
                 "PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        os.environ[name] = "1"
    import torch

    import flashinfer_loops
    import flashinfer_stand_in
    checkout = pathlib.Path(options.checkout).resolve()
    sys.path.insert(0, str(checkout))
    flashinfer_stand_in.install(checkout)
    if not options.plain:
        flashinfer_loops.install()
    # CUDA must not start before the processes are forked; a machine without a GPU runs the gates all the same.
    torch.cuda.get_device_capability = lambda device=None: (10, 0)
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    log, options.json = os.path.abspath(options.log), os.path.abspath(options.json)
    options.log = log
    os.chdir(checkout)
    plugin = Plugin(options, options.start + options.seconds)
    code = pytest.main(["--noconftest", "-p", "no:cacheprovider", "-p", "no:terminal", "-c", os.devnull, "--rootdir", str(checkout),
                        "-s", "-W", "ignore", "--continue-on-collection-errors", *options.files], plugins=[plugin])
    if code not in (0, 1):
        plugin.broken.append(f"pytest ended with {code}")
    return report(options, plugin)


def file_of(item):
    return item.nodeid.split("::")[0]


def grouped(results, outcome):
    """Sentences with their counts, the most frequent first; numbers in them do not count."""
    return collections.Counter(re.sub(r"\d+", "N", text)[:200] for kind, text, *_ in results if kind == outcome).most_common()


def report(options, plugin):
    names = [item.nodeid for item in plugin.items]
    results = plugin.results
    table = {file_of(item): collections.Counter() for item in plugin.items}
    for number, item in enumerate(plugin.items):
        counts = table[file_of(item)]
        outcome, *_, seconds = results.get(number, ("not reached", 0))
        counts[outcome] += 1
        counts["seconds"] += seconds
    failures = sorted((names[n], text, trace) for n, (outcome, text, trace, _) in results.items() if outcome == "failed")
    slowest = sorted(((r[3], names[n], r[0]) for n, r in results.items()), reverse=True)
    traced = set()
    for i, (name, text, trace) in enumerate(failures):
        kind = name.split("[")[0], re.sub(r"\d+", "N", text)[:80]
        failures[i] = name, text, trace if kind not in traced and len(traced) < TRACEBACKS else ""
        traced.add(kind)
    refused, skipped = grouped(results.values(), "refused"), grouped(results.values(), "skipped")
    with open(options.json, "w") as out:
        json.dump({"seed": options.seed, "jobs": options.jobs, "seconds since the start at the end of": plugin.times,
                   "files": table, "refused": refused, "skipped": skipped,
                   "failures": failures,
                   "slow": [name for _, name, outcome in slowest if outcome == "slow"], "slowest": slowest[:50],
                   "cases": {names[n]: [r[0], r[3]] for n, r in sorted(results.items()) if r[0] != "skipped"},
                   "broken": plugin.broken}, out, indent=0)
    kinds = (*OUTCOMES, "not reached")
    totals = sum(table.values(), collections.Counter())
    print(f"seed {options.seed}; {options.jobs} processes; {len(names)} cases; seconds at the end of {dict(plugin.times)}")
    print("| file | cases | " + " | ".join(kinds) + " | seconds |\n|---|---|" + "---|" * (len(kinds) + 1))
    for file, counts in [*table.items(), ("all", totals)]:
        cases = sum(counts[k] for k in kinds)
        print(f"| {pathlib.Path(file).name} | {cases} | " + " | ".join(str(counts[k]) for k in kinds) + f" | {counts['seconds']:.0f} |")
    for title, groups, most in (("refused", refused, 30), ("skipped", skipped, 12)):
        print(f"\n{title}, {len(groups)} reasons:")
        for text, count in groups[:most]:
            print(f"  {count:5} {text[:150]}")
    print(f"\nfailed, {len(failures)}:")
    for name, text, _ in failures[:20]:
        print(f"  {name[-120:]}: {text[:120]}")
    for text in plugin.broken:
        print(text)
    return int(bool(failures or plugin.broken))


if __name__ == "__main__":
    sys.exit(main())
