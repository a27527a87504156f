# SPDX-License-Identifier: Apache-2.0
"""Devices and streams as arguments name them."""
from __future__ import annotations

import re
import sys
from typing import Any

from . import _tensor


def read_device(device: Any) -> tuple[str, int]:
    """ "cpu", "cuda", "cuda:1", or a torch.device."""
    match = re.fullmatch(r"cpu|cuda(?::(\d{1,4}))?", str(device))
    if match is None:
        raise ValueError(f"device is {device!r}; accepted: cpu, cuda, cuda:N")
    return _tensor.CPU if str(device) == "cpu" else ("cuda", int(match[1] or 0))


def read_stream(stream: Any, device: tuple[str, int]) -> int:
    """The cudaStream_t of an argument. None: torch's current one where torch is in use, else the default stream."""
    if device == _tensor.CPU:
        if stream is not None:
            raise ValueError(f"stream is {stream!r} on the cpu; accepted: None")
        return 0
    if stream is None:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            return int(torch.cuda.current_stream(device[1]).cuda_stream)
        return 0
    for attribute in ("cuda_stream", "ptr"):  # torch's and CuPy's
        if hasattr(stream, attribute):
            stream = getattr(stream, attribute)
            break
    else:
        if hasattr(stream, "__cuda_stream__"):
            stream = stream.__cuda_stream__()[1]
    if isinstance(stream, bool) or not isinstance(stream, int) or not 0 <= stream < 2**64:
        raise TypeError(f"stream is {type(stream).__name__}; accepted: a torch or CuPy stream, or a cudaStream_t as int")
    return stream
