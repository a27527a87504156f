# SPDX-License-Identifier: Apache-2.0
"""Objects of the library that one thread closes while others use them: what they hold lives until the last call returns, and
nothing waits for ever. Races run in processes of their own, which a call on a destroyed object would end."""
import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

import sluice_moe
from engine_case import BUNDLED
from engine_case import engine  # noqa: F401 - a fixture
from sluice_moe import _library


def python(code, timeout=60):
    head = f"""
        import asyncio, collections, gc, os, signal, threading, time
        import sluice_moe
        BUNDLED = {str(BUNDLED)!r}
    """
    # Python 3.12 warns of forks beside threads, which are what is tested.
    result = subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(head) +
                             textwrap.dedent(code)], text=True, capture_output=True, timeout=timeout)
    assert result.returncode == 0 and result.stderr == "", (result.returncode, result.stdout[-500:] + result.stderr[-2000:])
    return result.stdout


class StandIn:
    """In the library's place: calls that wait until they are let go, and a record of what was called."""

    def __init__(self):
        self.calls, self.entered, self.leave = [], threading.Event(), threading.Event()
        self.work = self._function(self._work, ctypes.c_int)
        self.refuse = self._function(self._refuse, ctypes.c_int)
        self.destroy = self._function(self._destroy, None)
        self.sluice_last_error = lambda: b"refused"

    @staticmethod
    def _function(function, result):
        made = ctypes.CFUNCTYPE(result, ctypes.c_void_p)(function)
        made.argtypes = (ctypes.c_void_p,)
        return made

    def _work(self, pointer):
        self.calls.append(("work", pointer))
        self.entered.set()
        self.leave.wait(20)
        self.calls.append(("worked", pointer))
        return 0

    def _refuse(self, pointer):
        self.calls.append(("refuse", pointer))
        return 1

    def _destroy(self, pointer):
        self.calls.append(("destroy", pointer))

    def create(self, number):
        def fill(out):
            ctypes.cast(out, ctypes.POINTER(ctypes.c_void_p))[0] = number
        return fill


@pytest.fixture
def library(monkeypatch):
    stand_in = StandIn()
    monkeypatch.setattr(_library, "load", lambda: stand_in)
    yield stand_in
    stand_in.leave.set()


def started(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_the_last_call_destroys_what_was_closed(library):
    handle = _library.Handle("thing", library.create(7), "destroy")
    thread = started(lambda: _library.call("work", handle.get()))
    assert library.entered.wait(20)
    handle.close()
    handle.close()
    with pytest.raises(sluice_moe.InvalidArgument, match="this thing was closed; make another one"):
        handle.get()
    assert library.calls == [("work", 7)]
    library.leave.set()
    thread.join()
    assert library.calls == [("work", 7), ("worked", 7), ("destroy", 7)]


def test_what_is_dropped_lives_until_its_call_returns(library):
    handles = [_library.Handle("thing", library.create(7), "destroy")]
    thread = started(lambda: _library.call("work", handles.pop().get()))
    assert library.entered.wait(20) and library.calls == [("work", 7)]
    library.leave.set()
    thread.join()
    assert library.calls[1:] == [("worked", 7), ("destroy", 7)]


def test_who_closes_waits_for_calls_for_a_while(library):
    handle = _library.Handle("thing", library.create(7), "destroy")
    thread = started(lambda: _library.call("work", handle.get()))
    assert library.entered.wait(20)
    handle.close(0.05)  # a callback of that call, or a handler that interrupts it, would wait for itself
    assert library.calls == [("work", 7)]
    threading.Timer(0.2, library.leave.set).start()
    handle.close(20)
    assert library.calls == [("work", 7), ("worked", 7), ("destroy", 7)]
    thread.join()


def test_an_exception_keeps_nothing(library):
    """A traceback lives as long as its exception: at a prompt until the next one."""
    problems = []
    for number, work in enumerate((lambda: _library.call("refuse", handle.get()),
                                   lambda: _library.read_text("refuse", handle.get()),
                                   lambda: _library.read_ids("refuse", 4, handle.get()))):
        library.calls.clear()
        handle = _library.Handle("thing", library.create(number + 1), "destroy")
        with pytest.raises(Exception) as problem:
            work()
        problems.append(problem)
        handle.close()
        assert library.calls[-1] == ("destroy", number + 1)


def test_ctrl_c_while_something_is_destroyed(library):
    """Python drops what is raised while it deletes an object."""
    library.raise_signal = getattr(ctypes.CDLL(None), "raise")  # as "destroy" it gets the pointer: the signal's number
    library.raise_signal.argtypes = (ctypes.c_void_p,)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    closed = []
    try:
        handle = _library.Handle("thing", library.create(int(signal.SIGINT)), "raise_signal", after=lambda: closed.append(1))
        with pytest.raises(KeyboardInterrupt):
            handle.close()
            closed.append(2)
    finally:
        signal.signal(signal.SIGINT, handler)
    handle.close()
    assert closed == [1]


def test_what_is_not_made_is_not_destroyed(library):
    def fail(out):
        raise MemoryError

    with pytest.raises(MemoryError):
        _library.Handle("thing", fail, "destroy")
    assert library.calls == []

    def interrupted(out):
        library.create(8)(out)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as problem:
        _library.Handle("thing", interrupted, "destroy")
    assert library.calls == [("destroy", 8)], problem


def test_a_handler_and_a_callback_shut_down_at_once():
    """The call that they interrupt keeps the engine until they return."""
    out = python("""
        took, engine = [], None
        def shut_down(*_):
            if engine is not None:
                began = time.perf_counter()
                engine.shutdown()
                took.append(time.perf_counter() - began)
        signal.signal(signal.SIGALRM, shut_down)
        def interrupted():
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            while True: engine.encode("a word " * 2000)
        for options, work in (({}, interrupted), ({"progress": shut_down}, lambda: engine.update_weights_from_disk(BUNDLED))):
            engine = None
            engine = sluice_moe.Engine(BUNDLED, threads=1, max_total_tokens=2048, **options)
            try: work()
            except sluice_moe.InvalidArgument as problem: print(problem)
        print(max(took) < 4)
    """)
    assert out == 2 * "this engine was closed; make another one\n" + "True\n"


def test_the_end_of_a_process_under_calls():
    for call in ("encode('a word ' * 2000)", "get_server_info()", "update_weights_from_disk(BUNDLED)"):
        out = python(f"""
            engine = sluice_moe.Engine(BUNDLED, threads=1, max_total_tokens=2048, progress=lambda *_: None)
            def work():
                try:
                    while True: engine.{call}
                except sluice_moe.InvalidArgument: pass
            for _ in range(3): threading.Thread(target=work, daemon=True).start()
            time.sleep(0.05)
            print("leaving", flush=True)
        """)
        assert out == "leaving\n"


def test_calls_after_a_fork_under_calls():
    """The fork has none of the threads that were in calls, and waits for none of them."""
    out = python("""
        engine = sluice_moe.Engine(BUNDLED, threads=1, max_total_tokens=2048)
        done = threading.Event()
        def work():
            while not done.is_set(): engine.encode("a word " * 2000)
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads: thread.start()
        time.sleep(0.05)
        engine._updating.acquire()  # as a thread that replaces the weights has it
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            began = time.perf_counter()
            for call in (lambda: engine.encode("a"), engine.abort_request, lambda: engine.update_weight_version("b"),
                         lambda: engine.update_weights_from_disk(BUNDLED), engine.shutdown, engine.shutdown):
                try: call()
                except ValueError as problem: print(problem)
            print(time.perf_counter() - began < 4, flush=True)
            raise SystemExit(0)
        status = os.waitpid(pid, 0)[1]
        engine._updating.release()
        done.set()
        for thread in threads: thread.join()
        print("status", status, len(engine.generate("a", {"max_new_tokens": 3, "ignore_eos": True})["output_ids"]))
    """)
    lines = out.splitlines()
    assert all(line.startswith("this engine was made by process") for line in lines[:3])
    assert lines[3:] == ["True", "status 0 3"]


def test_a_handler_calls_where_a_context_is_made():
    out = python("""
        import faulthandler
        from sluice_moe import _library
        faulthandler.dump_traceback_later(10, exit=True)
        call = _library.call
        def interrupted(name, *arguments):
            signal.raise_signal(signal.SIGUSR1)
            call(name, *arguments)
        def handler(*_):
            _library.call = call
            print(_library.context(1).get().value > 0)
        signal.signal(signal.SIGUSR1, handler)
        _library.call = interrupted
        print(_library.context(1).get().value > 0)
    """)
    assert out == "True\nTrue\n"


def test_layers_are_closed_under_calls():
    out = python("""
        import numpy as np
        ones = lambda *shape: np.full(shape, 0x3F80, np.uint16)
        x, logits = np.ones((16, 256), np.float32), np.ones((16, 2), np.float32)
        def layer(): return sluice_moe.FusedMoE("experts=2 top_k=1 hidden=256 inter=256 dtype=float32",
                                                sluice_moe.MoeWeights(*(ones(2, 256, 256) for _ in range(3))), threads=1)
        def matrix(): return sluice_moe.Gemm(ones(256, 256), "bf16", dtype="float32", threads=1)
        def work(call, sentences):
            try:
                while True: call()
            except sluice_moe.InvalidArgument as problem: sentences.append(str(problem))
        for _ in range(10):
            for made, arguments in ((layer(), (x, logits)), (matrix(), (x,))):
                sentences = []
                threads = [threading.Thread(target=work, args=(lambda: made(*arguments), sentences)) for _ in range(3)]
                for thread in threads: thread.start()
                time.sleep(0.02)
                made.close()
                for thread in threads: thread.join()
                print(*sorted(set(sentences)), len(sentences))
    """)
    assert out == 10 * "".join(f"this {what} was closed; make another one 3\n" for what in ("layer", "matrix"))


def test_an_engine_is_shut_down_under_calls():
    out = python("""
        calls = {
            "encode": lambda e: e.encode("abc def"), "decode": lambda e: e.decode([5, 6, 7]),
            "chat": lambda e: e.encode_chat([{"role": "user", "content": "a"}]), "info": lambda e: e.get_server_info(),
            "generate": lambda e: e.generate("abc", {"max_new_tokens": 2}),
            "weights": lambda e: e.get_weights_by_name("lm_head.weight", 1), "flush": lambda e: e.flush_cache(),
        }
        def work(engine, call):
            try:
                while True:
                    ended = call(engine)
            except sluice_moe.InvalidArgument as problem:
                sentences[str(problem)] += 1
            except Exception as problem:
                sentences[repr(problem)] += 1
        for name, call in calls.items():
            for _ in range(4):
                sentences = collections.Counter()
                engine = sluice_moe.Engine(BUNDLED, threads=1, max_total_tokens=2048)
                threads = [threading.Thread(target=work, args=(engine, call)) for _ in range(4)]
                for thread in threads: thread.start()
                time.sleep(0.03)
                engine.shutdown()
                for thread in threads: thread.join()
                print(name, dict(sentences))
    """)
    lines = out.splitlines()
    assert len(lines) == 28
    for line in lines:
        assert line.split(" ", 1)[1] == "{'this engine was closed; make another one': 4}", line


def test_requests_are_aborted_while_they_end():
    """What has ended meanwhile is no error, and keeps none of the others from being cancelled."""
    out = python("""
        engine = sluice_moe.Engine(BUNDLED, threads=1, max_total_tokens=8192)
        reasons, done = collections.Counter(), threading.Event()
        def work():
            while not done.is_set():
                reasons[engine.generate("a", {"max_new_tokens": 8})["meta_info"]["finish_reason"]["type"]] += 1
        async def one():
            while not done.is_set():
                answer = await engine.async_generate("a", {"max_new_tokens": 8})
                reasons[answer["meta_info"]["finish_reason"]["type"]] += 1
        async def several(): await asyncio.gather(*[one() for _ in range(8)])
        threads = [threading.Thread(target=work) for _ in range(8)]
        threads.append(threading.Thread(target=lambda: asyncio.run(several())))
        descriptors = len(os.listdir("/proc/self/fd"))
        for thread in threads: thread.start()
        until = time.monotonic() + 3
        try:
            while time.monotonic() < until:
                time.sleep(0.0005)
                engine.abort_request(abort_all=True)
        finally:
            done.set()
        for thread in threads: thread.join()
        print(len(os.listdir("/proc/self/fd")) - descriptors, set(reasons) <= {"abort", "length", "stop"})
    """)
    assert out == "0 True\n"


def test_a_stream_that_was_closed_is_not_cancelled(engine):
    stream = engine._submit(engine._batch("a", None, None, False, None, None, None, False, "late"))
    stream.close()
    stream.cancel()
    engine.abort_request("late")
    engine.abort_request(abort_all=True)


def test_the_descriptor_of_a_stream_outlives_a_cancel_under_way(library):
    """The library writes to it until the stream is destroyed."""
    number = os.eventfd(0)
    handle = _library.Handle("request", library.create(7), "destroy", after=lambda: os.close(number))
    thread = started(lambda: _library.call("work", handle.get()))
    assert library.entered.wait(20)
    handle.close()
    os.fstat(number)
    library.leave.set()
    thread.join()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_requests_are_aborted_while_others_begin():
    out = python("""
        import sys
        sys.setswitchinterval(1e-6)
        engine = sluice_moe.Engine(BUNDLED, threads=1, max_total_tokens=4096)
        engine.pause_generation("in_place")
        streams = [engine.generate("a", {"max_new_tokens": 1}, stream=True) for _ in range(500)]
        done = threading.Event()
        def work():
            while not done.is_set():
                kept = [engine.generate("a", {"max_new_tokens": 1}, stream=True) for _ in range(20)]
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads: thread.start()
        problems, until = collections.Counter(), time.monotonic() + 2
        while time.monotonic() < until:
            try: engine.abort_request("no request's name")
            except Exception as problem: problems[repr(problem)] += 1
        done.set()
        for thread in threads: thread.join()
        print(dict(problems))
    """)
    assert out == "{}\n"
