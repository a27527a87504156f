# SPDX-License-Identifier: Apache-2.0
"""Tensors of a checkpoint on their way between a trainer and an engine: names, types, bytes."""
from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from . import _c_api, _library, _tensor, errors


class Weights:
    """The tensors that an engine's running weights were made of, in the order of their names."""

    def __init__(self, engine: _library.Handle) -> None:
        self._handle = _library.Handle(
            "weights", lambda out: _library.call("sluice_engine_get_weights", engine.get(), out), "sluice_weights_destroy")

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *unused: Any) -> None:
        self._handle.close()

    def __len__(self) -> int:
        count = ctypes.c_size_t()
        _library.call("sluice_weights_count", self._handle.get(), count)
        return count.value

    def index(self, name: str) -> int:
        found = ctypes.c_size_t()
        _library.call("sluice_weights_find", self._handle.get(), _library.text("name", name), found)
        return found.value

    def describe(self, index: int) -> tuple[str, str, tuple[int, ...]]:
        """(name, type, shape)"""
        out = _c_api.Tensor()
        _library.call("sluice_weights_get", self._handle.get(), index, out)
        return out.name.decode(), out.dtype.decode(), tuple(out.shape[:out.rank])

    def checksum(self, index: int) -> str:
        buffer = ctypes.create_string_buffer(65)
        _library.call("sluice_weights_checksum", self._handle.get(), index, buffer, len(buffer))
        return buffer.value.decode()

    def values(self, index: int, count: int) -> list[float]:
        out = (ctypes.c_double * count)()
        _library.call("sluice_weights_values", self._handle.get(), index, 0, count, out)
        return list(out)


def dtype_name(dtype: Any) -> str:
    """numpy's, torch's and ml_dtypes' types, and their names, by the names that the library has."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return str(name).removeprefix("torch.")


def named_tensors(given: Any) -> list[tuple[str, Any]]:
    """Pairs, or a mapping, of names and tensors."""
    if isinstance(given, Mapping):
        given = given.items()
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"named_tensors is {type(given).__name__}; accepted: a list of (name, tensor)")
    out = []
    for pair in given:
        if isinstance(pair, (str, bytes)) or not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"named_tensors holds {type(pair).__name__}; accepted: pairs (name, tensor). Serialized tensors "
                            "are Python pickles, which can run any code when they are read, and are never read here")
        if not isinstance(pair[0], str):
            raise TypeError(f"named_tensors holds a name of type {type(pair[0]).__name__}; accepted: str")
        out.append((pair[0], pair[1]))
    if not out:
        raise ValueError("named_tensors is empty; accepted: at least one tensor")
    return out


def of_bucket(given: Any) -> list[tuple[str, Any]]:
    """The tensors of SGLang's flattened bucket, or of a list of them: one tensor with everything, and metadata with name,
    shape, dtype, start_idx and end_idx, counted in that tensor's elements."""
    if isinstance(given, (list, tuple)):
        if not given:
            raise ValueError("named_tensors is empty; accepted: at least one flattened bucket")
        return [pair for one in given for pair in of_bucket(one)]
    if isinstance(given, Mapping) and {"flattened_tensor", "metadata"} <= set(given):
        flat, metadata = given["flattened_tensor"], given["metadata"]
    elif hasattr(given, "get_flattened_tensor") and hasattr(given, "get_metadata"):
        flat, metadata = given.get_flattened_tensor(), given.get_metadata()
    else:
        raise TypeError(f"named_tensors is {type(given).__name__}; accepted with load_format 'flattened_bucket': a mapping of "
                        "flattened_tensor and metadata, a FlattenedTensorBucket, or a list of them. Serialized tensors are "
                        "Python pickles, which can run any code when they are read, and are never read here")
    whole = _on_host("flattened_tensor", flat)
    _tensor.check_layout(whole, "flattened_tensor", 1)
    unit = _tensor.SIZES.get(whole.dtype, 0)
    out: list[tuple[str, Any]] = []
    for entry in metadata:
        try:
            name, kind, sizes, first, last = (entry[key] if isinstance(entry, Mapping) else getattr(entry, key) for key in (
                "name", "dtype", "shape", "start_idx", "end_idx"))
            dtype, shape = dtype_name(kind), tuple(int(s) for s in sizes)
            begin, end = int(first) * unit, int(last) * unit
        except (KeyError, AttributeError, TypeError, ValueError) as problem:
            raise TypeError(f"the bucket's metadata holds {entry!r:.120}: {problem!r}; accepted: name, shape, dtype, "
                            "start_idx, end_idx") from None
        part = _tensor.View(whole.pointer + begin, dtype, shape, None, _tensor.CPU, True, whole)
        if dtype not in _tensor.SIZES or any(s < 0 for s in shape) or not (
                0 <= begin <= end <= whole.bytes and end - begin == part.bytes):
            raise ValueError(f"the bucket's metadata has {name!r} as {dtype} {list(shape)} in bytes {begin} to {end} of "
                             f"{whole.bytes}; accepted: as many bytes as the tensor has, within the bucket")
        out.append((str(name), part))
    return out


def _on_host(label: str, tensor: Any) -> _tensor.View:
    """The tensor's memory where it is contiguous and the host's, else that of a copy."""
    if isinstance(tensor, _tensor.View):
        return tensor
    if _tensor.is_torch(tensor):
        return _tensor.view(tensor.detach().resolve_neg().cpu().contiguous(), label)
    view = _tensor.view(tensor, label)
    if view.device != _tensor.CPU:
        raise ValueError(f"{label} is on {_tensor.device_name(view.device)}; accepted: torch tensors of any device, and of "
                         "other libraries those of the cpu")
    numpy = sys.modules.get("numpy")
    if view.strides != _tensor.contiguous(view.shape) and numpy is not None and isinstance(tensor, numpy.ndarray):
        return _tensor.view(numpy.ascontiguousarray(tensor), label)
    return view


def as_structs(engine: _library.Handle, given: list[tuple[str, Any]]) -> tuple[Any, list[Any]]:
    """An array of sluice_tensor, and what it points to. A tensor that the running weights have comes as they have it; of
    any other the library says whether it is accepted."""
    array, keep = (_c_api.Tensor * len(given))(), []
    with contextlib.ExitStack() as stack:
        weights = None
        with contextlib.suppress(errors.Unsupported):  # dummies have no tensors
            weights = stack.enter_context(Weights(engine))
        for i, (name, tensor) in enumerate(given):
            label = f"tensor {name!r}"
            v = _on_host(label, tensor)
            dtype, shape = "bfloat16" if v.dtype == "uint16" else v.dtype, v.shape
            if weights is not None:
                with contextlib.suppress(errors.NotFound):
                    _, dtype, shape = weights.describe(weights.index(name))
                    _check_as(label, v, dtype, shape)
            _tensor.check_layout(v, label, 1)
            sizes = (ctypes.c_int64 * len(shape))(*shape)
            array[i] = _c_api.Tensor(name=name.encode(), dtype=dtype.encode(), shape=sizes, rank=len(shape), data=v.pointer)
            keep += [v, sizes]
    return array, keep


def _check_as(label: str, v: _tensor.View, dtype: str, shape: tuple[int, ...]) -> None:
    accepted = _tensor.ACCEPTED.get(dtype, (dtype,))
    if v.dtype not in accepted:
        hint = ("; to send BF16 for quantised weights, load the BF16 checkpoint with quantization="
                if v.dtype == "bfloat16" else "")
        raise TypeError(f"{label} is {v.dtype}; accepted: {', '.join(accepted)}, as the checkpoint has it{hint}")
    if v.shape != shape:
        raise ValueError(f"{label} has shape {list(v.shape)}; accepted: {list(shape)}, as the checkpoint has it")
