# SPDX-License-Identifier: Apache-2.0
"""libsluice.so through ctypes: loading it, calling it, and the handles of its objects.

Nothing is loaded before the first use, so importing the package costs milliseconds and works without the library. ctypes
lets go of the GIL for the length of every call.
"""
from __future__ import annotations

import ctypes
import os
import pathlib
import threading
import time
import types
from ctypes import c_char_p, c_int, c_int32, c_size_t, c_void_p
from typing import Any, Callable

from . import _c_api, errors

_lock = threading.RLock()  # again by a signal handler, which interrupts this thread
_loaded: ctypes.CDLL | None = None


def path() -> pathlib.Path:
    """Where the library is looked for: $SLUICE_LIBRARY, else beside this file."""
    given = os.environ.get("SLUICE_LIBRARY")
    return pathlib.Path(given) if given else pathlib.Path(__file__).parent / "libsluice.so"


def load() -> ctypes.CDLL:
    global _loaded
    if _loaded is not None:
        return _loaded
    with _lock:
        if _loaded is None:
            file = path()
            try:
                lib = ctypes.CDLL(str(file))
                lib.sluice_version.restype = c_char_p
                version = lib.sluice_version().decode()
            except (OSError, AttributeError) as problem:
                raise errors.LibraryNotFound(
                    f"{file} cannot be used as Sluice's library: {problem}; install the wheel sluice-moe, or let "
                    "SLUICE_LIBRARY name a libsluice.so") from problem
            if version.rsplit(".", 1)[0] != _c_api.VERSION:
                raise errors.LibraryNotFound(f"{file} is version {version}; this package needs {_c_api.VERSION}.x")
            lib.sluice_last_error.restype = c_char_p
            for name, arguments in _c_api.STATUS.items():
                function = getattr(lib, name)
                function.argtypes, function.restype = arguments, c_int
            for name in _c_api.NOTHING:
                function = getattr(lib, name)
                function.argtypes, function.restype = (c_void_p,), None
            _loaded = lib
    return _loaded


def version() -> str:
    return str(load().sluice_version().decode())


def fail(status: int) -> None:
    """Raises the exception of a call on this thread that did not succeed."""
    raise errors.from_status(status, load().sluice_last_error().decode(errors="replace"))


# Calls let go of their arguments: an exception's traceback would keep an object of the library that is among them.
def call(name: str, *arguments: Any) -> None:
    function = getattr(load(), name)
    try:
        if status := function(*arguments):
            fail(status)
    finally:
        del arguments


def read_text(name: str, *arguments: Any) -> str:
    """Asks for the length, then for the text."""
    function, needed = getattr(load(), name), c_size_t()
    try:
        status = function(*arguments, None, 0, ctypes.byref(needed))
        if status not in (0, _c_api.BUFFER_TOO_SMALL):
            fail(status)
        buffer = ctypes.create_string_buffer(max(needed.value, 1))
        if status := function(*arguments, buffer, len(buffer), ctypes.byref(needed)):
            fail(status)
    finally:
        del arguments
    return buffer.raw[:needed.value - 1].decode(errors="replace")  # without the final zero; the text may hold others


def read_ids(name: str, capacity: int, *arguments: Any) -> list[int]:
    function, count = getattr(load(), name), c_size_t()
    try:
        while True:
            ids = (c_int32 * capacity)()
            status = function(*arguments, ids, capacity, ctypes.byref(count))
            if status not in (0, _c_api.BUFFER_TOO_SMALL):
                fail(status)
            if status == 0:
                return ids[:count.value]
            capacity = count.value
    finally:
        del arguments


def text(name: str, value: Any) -> bytes:
    """A string argument as the library takes it."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {type(value).__name__}; accepted: str")
    if "\0" in value:
        raise ValueError(f"{name} holds a zero character, where the library would end it")
    try:
        return value.encode()
    except UnicodeEncodeError as problem:
        raise ValueError(f"{name} is not text that UTF-8 can hold: {problem}") from None


class _Object(c_void_p):
    """An object of the library. A call has it among its arguments until it returns, so Python's count of references is the
    count of its users, and the last of them destroys it: there is no lock that a signal handler, a fork or the garbage
    collector could find held. Threads of the library do not live on in a forked child, which destroys nothing."""

    def __init__(self, destroy: Any, keep: Any) -> None:
        super().__init__()
        self.destroy, self.keep = destroy, keep
        self.after: Callable[[], None] | None = None
        self.getpid = os.getpid  # at the interpreter's end a module may lose its names before its objects
        self.pid = self.getpid()
        # What becomes of it, for a Handle that does not refer to it any more. problem: what close() raises.
        self.end = types.SimpleNamespace(closing=False, done=False, problem=None)

    def finish(self) -> None:
        pointer, self.value = self.value, None
        try:
            if pointer is not None and self.pid == self.getpid():
                self.destroy(pointer)
        finally:
            if self.after is not None:
                self.after()
            self.end.done = True

    def __del__(self) -> None:
        try:
            self.finish()
        except BaseException as problem:  # Ctrl-C, which Python would drop here
            if not self.end.closing:
                raise
            self.end.problem = problem.with_traceback(None)


class Handle:
    """An object of the library, destroyed with this one or by close(), but not before the calls that are under way return.

    keep: what the object uses until it is destroyed: callbacks, or another Handle. after: called when it is destroyed.
    """

    def __init__(self, what: str, create: Callable[[Any], None], destroy: str, keep: Any = None,
                 after: Callable[[], None] | None = None) -> None:
        self._what, self._keep = what, keep
        made = _Object(getattr(load(), destroy), keep)
        try:
            create(ctypes.byref(made))
        except BaseException:  # its traceback refers to the object
            made.finish()
            raise
        made.after, self._pid, self._end = after, made.pid, made.end
        self._object: _Object | None = made

    def get_open(self) -> c_void_p | None:
        """What a call takes among its arguments, and nobody holds for longer. None: this was closed."""
        if self._pid != os.getpid():
            raise errors.InvalidArgument(
                f"this {self._what} was made by process {self._pid} and is used by its fork {os.getpid()}, which has "
                "none of its threads; make it after the fork, or start processes with \"spawn\"")
        return self._object

    def get(self) -> c_void_p:
        made = self.get_open()
        if made is None:
            raise errors.InvalidArgument(f"this {self._what} was closed; make another one")
        return made

    def close(self, patience: float = 0) -> None:
        """patience: the most seconds to wait for calls that are under way. Not for ever: one of them may wait for this
        thread."""
        made, self._object = self._object, None
        if made is not None:
            made.end.closing = True
            del made  # the last reference, unless a call is under way
            self._end.closing = False
            if self._end.problem is not None:
                raise self._end.problem
        until = time.monotonic() + patience
        while patience and not self._end.done and self._pid == os.getpid() and time.monotonic() < until:
            time.sleep(0.001)


_contexts: dict[tuple[int, int], Handle] = {}


def context(threads: int = 0) -> Handle:
    """The process's thread pool of that size; 0: every core that the process may use."""
    if isinstance(threads, bool) or not hasattr(threads, "__index__"):
        raise TypeError(f"threads is {type(threads).__name__}; accepted: an integer")
    threads = threads.__index__()
    if not 0 <= threads <= 4096:
        raise ValueError(f"threads is {threads}; accepted: 0 (every usable core) to 4096")
    key = os.getpid(), threads
    with _lock_contexts:
        if key not in _contexts:
            _contexts[key] = Handle("thread pool", lambda out: call("sluice_context_create", threads, out),
                                    "sluice_context_destroy")
        return _contexts[key]


_lock_contexts = threading.RLock()


def _after_fork_in_child() -> None:
    """A lock that another thread held at the fork would stay locked for ever."""
    global _lock, _lock_contexts
    _lock, _lock_contexts = threading.RLock(), threading.RLock()
    _contexts.clear()  # their memory is the parent's copy: nothing to join


os.register_at_fork(after_in_child=_after_fork_in_child)
