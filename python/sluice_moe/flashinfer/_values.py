# SPDX-License-Identifier: Apache-2.0
"""What codes and scales read as: float32 tensors of the library that they came from."""
from __future__ import annotations

import functools
from typing import Any

from .. import _tensor


@functools.cache
def _table(exponent_bits: int, mantissa_bits: int, bias: int) -> tuple[float, ...]:
    """Of a small float: sign, exponent, mantissa by IEEE's rule. e4m3 has NaN for the largest of all."""
    out = []
    for code in range(1 << (1 + exponent_bits + mantissa_bits)):
        mantissa, exponent = code & ((1 << mantissa_bits) - 1), code >> mantissa_bits & ((1 << exponent_bits) - 1)
        value = mantissa * 2.0 ** (1 - bias - mantissa_bits) if exponent == 0 else (
            (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias))
        out.append(-value if code >> (exponent_bits + mantissa_bits) else value)
    if exponent_bits == 4:
        out[0x7F] = out[0xFF] = float("nan")
    return tuple(out)


@functools.cache
def _powers() -> tuple[float, ...]:
    return (*(2.0 ** (code - 127) for code in range(255)), float("nan"))


@functools.cache
def _on_device(table: tuple[float, ...], device: Any) -> Any:
    """Stays there: a CUDA graph cannot capture a copy from the host."""
    import torch
    return torch.tensor(table, dtype=torch.float32, device=device)


def _look_up(table: tuple[float, ...], codes: Any) -> Any:
    if _tensor.is_torch(codes):
        return _on_device(table, codes.device)[codes.long()]
    import numpy
    return numpy.array(table, numpy.float32)[codes]


def filled(shape: tuple[int, ...], value: float, like: Any) -> Any:
    """float32, beside `like`."""
    out = _tensor.empty("float32", shape, like)
    out[...] = value
    return out


def e4m3(codes: Any) -> Any:
    return _look_up(_table(4, 3, 7), codes)


def e8m0(codes: Any) -> Any:
    return _look_up(_powers(), codes)


def e2m1(codes: Any) -> Any:
    """Two columns of each byte, the low half first."""
    low, high = _look_up(_table(2, 1, 1), codes & 15), _look_up(_table(2, 1, 1), codes >> 4)
    out = _tensor.empty("float32", (*codes.shape[:-1], 2 * codes.shape[-1]), low)
    out[..., 0::2], out[..., 1::2] = low, high
    return out


def by_groups(values: Any, scales: Any) -> Any:
    """values [rows, cols] times scales [rows, groups], each of as many columns."""
    rows, cols = values.shape
    groups = scales.shape[1]
    return (values.reshape(rows, groups, cols // groups) * scales[:, :, None]).reshape(rows, cols)
