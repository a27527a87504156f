# SPDX-License-Identifier: Apache-2.0
"""Long calls that Ctrl-C ends, progress and log lines."""
from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from . import _c_api, _library

# (what is done, how much, of how much, unit)
ProgressFn = Callable[[str, int, int, str], None]

Result = TypeVar("Result")

WAIT_MS = 100  # the longest that a signal, such as Ctrl-C, waits for Python


def interruptible(work: Callable[[], Result]) -> Result:
    """work() on a thread of its own, so that Ctrl-C reaches Python. Then the work goes on and its result is dropped."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((work(), None))
        except BaseException as problem:  # noqa: B902: whatever it is, it is the caller's
            outcome.append((None, problem))

    thread = threading.Thread(target=run, name="sluice", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(WAIT_MS / 1000)
    result, problem = outcome[0]
    if problem is not None:
        raise problem
    done: Result = result
    return done


def progress_of(progress: Any) -> ProgressFn | None:
    if progress is False or progress is None:
        return None
    if progress is True:
        return Bar()
    if not callable(progress):
        raise TypeError(f"progress is {type(progress).__name__}; accepted: bool, or a function")
    function: ProgressFn = progress
    return function


def callbacks_of(progress: ProgressFn | None, log: Any) -> dict[str, Any]:
    """Callbacks of the library; an exception cannot pass through it and is dropped."""
    if log is not None and not callable(log):
        raise TypeError(f"log is {type(log).__name__}; accepted: None, or a function")
    out: dict[str, Any] = {}
    if progress is not None:
        def on_progress(_: Any, what: bytes, done: int, total: int, unit: bytes) -> None:
            _tell(progress, what.decode(errors="replace"), done, total, unit.decode(errors="replace"))
        out["progress"] = _c_api.ProgressFn(on_progress)
    if log is not None:
        def on_log(_: Any, level: int, line: bytes) -> None:
            _tell(log, ("debug", "info", "warning")[level], line.decode(errors="replace"))
        out["log"] = _c_api.LogFn(on_log)
    return out


def _tell(function: Callable[..., object], *arguments: Any) -> None:
    try:
        function(*arguments)
    except Exception:
        pass


_CALLS = {function.__code__ for function in (_tell, _library.call, _library.read_text, _library.read_ids)}


def in_a_call() -> bool:
    """Whether a call of the library cannot return before this thread goes on: it runs a callback, or a signal handler that
    came in between."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code not in _CALLS:
        frame = frame.f_back
    return frame is not None


class Bar:
    """tqdm's bars where it is installed, else a line on standard error per tenth."""

    def __init__(self) -> None:
        self._what, self._tenth = "", -1
        self._bar: Any = None

    def __call__(self, what: str, done: int, total: int, unit: str) -> None:
        try:
            from tqdm import tqdm
        except ImportError:
            tenth = 10 * done // total if total else 0
            if (what, tenth) != (self._what, self._tenth):
                self._what, self._tenth = what, tenth
                print(f"{what} {10 * tenth} % of {total} {unit}", file=sys.stderr)
            return
        if self._bar is None or what != self._what or done < self._bar.n:
            self._what, self._bar = what, tqdm(total=total, desc=what, unit=unit, unit_scale=True)
        self._bar.update(done - self._bar.n)
        if done >= total:
            self._bar.close()
            self._bar = None
