# SPDX-License-Identifier: Apache-2.0
"""Exceptions that carry the library's own sentence: what was given, its value, and what would be accepted."""
from __future__ import annotations


class Error(RuntimeError):
    """What the library refused or could not do. `status` is the name of its code in sluice/c.h, "UNSUPPORTED"."""

    status = "INTERNAL"


class InvalidArgument(Error, ValueError):
    """An argument is not accepted."""

    status = "INVALID_ARGUMENT"


class BadFile(Error):
    """A file is truncated, corrupt or contradicts another."""

    status = "BAD_FILE"


class NotFound(Error, LookupError):
    """A path or a named thing does not exist."""

    status = "NOT_FOUND"


class Unsupported(Error, NotImplementedError):
    """Well-formed, but no backend, loader or device of this machine takes it."""

    status = "UNSUPPORTED"


class OutOfMemory(Error, MemoryError):
    """The host or the device has too little memory."""

    status = "OUT_OF_MEMORY"


class InputOutputError(Error):
    """The operating system refused a read or a write."""

    status = "IO"


class CudaError(Error):
    """A CUDA call failed."""

    status = "CUDA"


class Busy(Error):
    """A bounded queue is full, or the engine is stopping; the same call may succeed later."""

    status = "BUSY"


class LibraryNotFound(Error, ImportError):
    """libsluice.so is not there, or is another version's."""

    status = "NOT_FOUND"


_BY_STATUS = {
    1: InvalidArgument, 2: BadFile, 3: NotFound, 4: Unsupported, 5: OutOfMemory, 6: InputOutputError, 7: CudaError,
    10: Busy,
}


def from_status(status: int, sentence: str) -> Error:
    return _BY_STATUS.get(status, Error)(sentence)
