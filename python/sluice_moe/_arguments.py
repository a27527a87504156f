# SPDX-License-Identifier: Apache-2.0
"""Values of callers, checked and as the library takes them. Errors name the argument, its value and what is accepted."""
from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any


def encoded(name: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {type(value).__name__}; accepted: str")
    return value.encode(errors="replace")  # lone surrogates; a zero character is text like any other


def as_json(name: str, value: Any) -> bytes:
    try:
        # Not as escapes: the library refuses lone surrogates, where encoded() replaces them.
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode(errors="replace")
    except (TypeError, RecursionError) as problem:
        raise TypeError(f"{name} cannot be written as JSON: {problem}") from None
    except ValueError as problem:  # NaN, infinity, a list that holds itself
        raise ValueError(f"{name} is {value!r:.80}, which cannot be written as JSON: {problem}") from None


def number_of(name: str, value: Any) -> float:
    if isinstance(value, bool) or not hasattr(value, "__float__") and not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {type(value).__name__}; accepted: a number")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as problem:
        raise ValueError(f"{name} is {value!r:.80}; accepted: a number ({problem})") from None


def list_of(name: str, values: Any) -> list[Any]:
    if isinstance(values, (str, bytes, Mapping)):
        raise TypeError(f"{name} is {type(values).__name__}; accepted: a list")
    try:
        return list(values)
    except TypeError:
        raise TypeError(f"{name} is {type(values).__name__}; accepted: a list") from None


def is_integer(value: Any) -> bool:
    """Whether a value is one integer: int, numpy's, torch's. A row of an array has __index__, too."""
    return hasattr(value, "__index__") and not getattr(value, "ndim", 0)


def ids_of(name: str, ids: Any, vocab: int | None) -> Any:
    """A C array. vocab None: any 32-bit integers."""
    least, most = (0, vocab - 1) if vocab is not None else (-2**31, 2**31 - 1)
    try:
        values = [i.__index__() for i in ids]
    except (TypeError, AttributeError):
        raise TypeError(f"{name} is {ids!r:.80}; accepted: a list of integers") from None
    for value in values:
        if not least <= value <= most:
            raise ValueError(f"{name} has {value}; accepted: token ids from {least} to {most}")
    return (ctypes.c_int32 * len(values))(*values)


def of_prompt(name: str, value: Any, index: int, prompts: int) -> Any:
    """SGLang's one value for all prompts, or a list with one for each."""
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        return value
    if len(value) != prompts:
        raise ValueError(f"{name} has {len(value)} values for {prompts} prompts; accepted: one for all, or one for each")
    return value[index]


def is_set(name: str, default: str = "0") -> bool:
    """An environment variable that is 0 or 1."""
    value = os.environ.get(name, default)
    if value not in ("0", "1"):
        raise ValueError(f"{name} is {value!r}; accepted: 0, 1")
    return value == "1"
