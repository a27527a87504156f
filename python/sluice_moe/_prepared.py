# SPDX-License-Identifier: Apache-2.0
"""Prepared weights: made where a call's tensors lie, in memory of the library's or of the caller's."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _device, _library, _tensor
from ._tensor import CPU


def prepare(what: str, kind: str, device: tuple[str, int], memory: Any, threads: int, stream: Any, described_by: Any,
            *weights: Any, read: Sequence[_tensor.View], backend: bytes | None = None) -> tuple[_library.Handle, Any]:
    """The handle, and the view of `memory`, which has to live as long.

    what: for sentences. kind: of the C functions, sluice_KIND_create and those like it. described_by, weights: what all of
    them take. read: the tensors that these point to. backend: what sluice_KIND_create takes beside them on the host.
    """
    host = device == CPU
    stem = f"sluice_{kind}" if host else f"sluice_cuda_{kind}"
    place = (_library.context(threads).get(), described_by) if host else (described_by, device[1])
    order = () if host else (_device.read_stream(stream, device),)
    own: Any = None
    if memory is None:
        name, more = f"{stem}_create", (*(() if backend is None or not host else (backend,)), *weights)
    else:
        own = _tensor.read(memory, "memory", "uint8", (None,), device=device, write=True, align=64 if host else 256)
        check_weights(own, read)
        name, more = f"{stem}_prepare_into", (*weights, own.pointer, own.bytes)
    # Another thread's call may still run when this one closes the layer: the memory lives as long as the handle's object.
    handle = _library.Handle(what, lambda out: _library.call(name, *place, *more, *order, out), f"{stem}_destroy", keep=own)
    return handle, own


def check_weights(memory: Any, read: Sequence[_tensor.View]) -> None:
    """Raises ValueError if weights that are read lie where they will be prepared; None: the library's own memory."""
    _tensor.check_apart([("memory", memory)], [("weights", view) for view in read])
