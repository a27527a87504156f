# SPDX-License-Identifier: Apache-2.0
"""Spec lines, number formats and weights: values that the layer's functions share."""
from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, Union

from . import _c_api, _library, _tensor

SpecLike = Union[str, "Mapping[str, Any]", "Spec"]


class Spec(NamedTuple):
    """What a spec line says, defaults filled in. str(spec) is the line."""

    line: str
    experts: int  # E, of all ranks
    top_k: int
    hidden: int
    inter: int  # I, of this rank
    local_offset: int
    local_experts: int  # L
    weights: str
    inputs: str
    dtype: str  # of hidden and output: "bfloat16" or "float32"
    gated: bool
    bias: bool
    act_params: bool
    routed: bool
    finalize: bool

    def __str__(self) -> str:
        return self.line


def read_spec(spec: SpecLike) -> Spec:
    """A spec line ("experts=8 top_k=2 hidden=64 inter=48 weights=nvfp4"), or a mapping of its keys, as a Spec.

    Raises InvalidArgument, which names the key, its value and what is accepted.
    """
    if isinstance(spec, Spec):
        return spec
    if isinstance(spec, Mapping):
        flags = ("bool", "bool_")  # Python's, and numpy's of either name
        spec = " ".join(f"{key}={int(value) if type(value).__name__ in flags else value}" for key, value in spec.items())
    line = _library.text("spec", spec)
    info = _c_api.MoeSpecInfo()
    _library.call("sluice_moe_read_spec", line, info)
    return Spec(spec, info.experts, info.top_k, info.hidden, info.inter, info.local_offset, info.local_experts,
                info.weights.decode(), info.inputs.decode(), dtype_name(info.dtype), bool(info.gated), bool(info.bias),
                bool(info.act_params), bool(info.routed), bool(info.finalize))


def dtype_name(number: int) -> str:
    return "float32" if number == _c_api.F32 else "bfloat16"


def dtype_number(name: str) -> int:
    return _c_api.F32 if name == "float32" else _c_api.BF16


def run_dtype(name: str, dtype: Any) -> str:
    """The name of a run's dtype: "bfloat16", "float32", numpy's, ml_dtypes' or torch's."""
    text = str(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype).removeprefix("torch.")
    if text not in ("bfloat16", "float32"):
        raise ValueError(f"{name} is {text}; accepted: bfloat16, float32")
    return text


class Format(NamedTuple):
    """What a weight format is made of. Types are numpy's and ml_dtypes' names."""

    name: str
    bits: int  # of a code
    code_type: str
    scale_type: str  # "": no scales
    group_rows: int  # rows and columns that share a scale; 0: all
    group_cols: int
    global_scale: bool  # a float32 per matrix on top
    inputs: str  # what input rows are rounded to unless a spec says otherwise

    def shapes(self, matrices: int, rows: int, cols: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the codes, scales and global_scales of `matrices` weights [rows, cols]; only what there is."""
        shapes: dict[str, tuple[int, ...]] = {"codes": (matrices, rows, cols // 2 if self.bits == 4 else cols)}
        if self.scale_type:
            grid: tuple[int, ...] = (matrices,)
            if self.group_rows:
                grid += (-(-rows // self.group_rows),)
            if self.group_cols:
                grid += (-(-cols // self.group_cols),)
            shapes["scales"] = grid
        if self.global_scale:
            shapes["global_scales"] = (matrices,)
        return shapes


def format_info(name: str) -> Format:
    """The format of that name: bf16, fp8_tensor, fp8_channel, fp8_block, mxfp8, nvfp4, mxfp4."""
    info = _c_api.FormatInfo()
    _library.call("sluice_format_get_info", _library.text("format", name), info)
    return Format(name, info.bits, info.code_type.decode(), info.scale_type.decode(), info.group_rows, info.group_cols,
                  bool(info.global_scale), info.inputs.decode())


class Matrices(NamedTuple):
    """L weight matrices [N, Kdim] of a format, as checkpoints store them; format_info(name).shapes(L, N, Kdim).

    value = code * scale * global scale. Four-bit codes: two per byte, the low half is the even column. A dense matrix
    may leave out the first dimension, of size 1.
    """

    codes: Any
    scales: Any = None
    global_scales: Any = None


@dataclasses.dataclass
class MoeWeights:
    """The experts of a layer on this rank, in the spec's format. The layer copies them; rows and columns are as in the
    checkpoint. A bare tensor means Matrices(tensor)."""

    up: Any  # Matrices [L, I, H]; the only first matrix when the activation is not gated
    down: Any  # Matrices [L, H, I]
    gate: Any = None  # Matrices [L, I, H]; None when the activation is not gated
    input_scale1: float = 1.0  # decode factors of static input formats, the largest over all E experts
    input_scale2: float = 1.0
    bias_up: Any = None  # float32 [L, I], in host memory, as are the following; with bias=1 in the spec
    bias_gate: Any = None  # [L, I]
    bias_down: Any = None  # [L, H]
    alpha: Any = None  # [L]; with act_params=1 in the spec
    beta: Any = None
    limit: Any = None


def as_matrices(name: str, given: Any) -> Matrices:
    if isinstance(given, Matrices):
        return given
    if isinstance(given, tuple):
        if not 1 <= len(given) <= 3:
            raise TypeError(f"{name} is a tuple of {len(given)}; accepted: codes, scales, global_scales")
        return Matrices(*given)
    return Matrices(given)


def view_matrices(name: str, given: Any, format: Format, matrices: int, rows: int, cols: int, *,
                  device: tuple[str, int] | None, align: int = 0, write: bool = False,
                  keep: list[_tensor.View]) -> _c_api.Matrices:
    """The C struct of checked tensors, which go to `keep`. device None: the codes' own."""
    m = as_matrices(name, given)
    if format.bits == 4 and cols % 2:
        raise ValueError(f"{name} has {cols} columns; {format.name} stores two codes per byte and needs an even number")
    types = {"codes": format.code_type, "scales": format.scale_type, "global_scales": "float32"}
    out = _c_api.Matrices()
    for part, tensor in m._asdict().items():
        shape = format.shapes(matrices, rows, cols).get(part)
        if shape is None:
            if tensor is not None:
                raise ValueError(f"{name}.{part} is given; weights of {format.name} have none")
            continue
        if tensor is None:
            raise ValueError(f"{name}.{part} is None; weights of {format.name} need {types[part]} {list(shape)}")
        v = _tensor.view(tensor, f"{name}.{part}")
        if matrices == 1 and len(v.shape) == len(shape) - 1:
            shape = shape[1:]
        v = _tensor.read(v, f"{name}.{part}", types[part], shape, device=device, align=align, write=write)
        device = device or v.device
        keep.append(v)
        setattr(out, part, v.pointer)
    return out


def view_weights(spec: Spec, weights: MoeWeights, device: tuple[str, int]) -> tuple[_c_api.MoeWeights, list[_tensor.View]]:
    """The C struct of a layer's checked weights. On a GPU matrices may lie there or on the host, the rest on the host."""
    if not isinstance(weights, MoeWeights):
        raise TypeError(f"weights is {type(weights).__name__}; accepted: sluice_moe.MoeWeights")
    format = format_info(spec.weights)
    keep: list[_tensor.View] = []
    out = _c_api.MoeWeights()
    experts, hidden, inter = spec.local_experts, spec.hidden, spec.inter
    shapes = {"up": (inter, hidden), "gate": (inter, hidden), "down": (hidden, inter)}
    for part, (rows, cols) in shapes.items():
        given = getattr(weights, part)
        if part == "gate" and not spec.gated:
            if given is not None:
                raise ValueError("weights.gate is given; the spec's activation is not gated")
            continue
        if given is None:
            raise ValueError(f"weights.{part} is None; the spec needs [{experts}, {rows}, {cols}] of {format.name}")
        first = _tensor.view(as_matrices(f"weights.{part}", given).codes, f"weights.{part}.codes")
        where = _tensor.CPU if first.device == _tensor.CPU else device
        setattr(out, part, view_matrices(f"weights.{part}", given, format, experts, rows, cols, device=where,
                                         align=16 if where != _tensor.CPU else 0, keep=keep))
    for part in ("input_scale1", "input_scale2"):
        setattr(out, part, positive(f"weights.{part}", getattr(weights, part)))
    small = {"bias_up": (inter,), "bias_gate": (inter,), "bias_down": (hidden,), "alpha": (), "beta": (), "limit": ()}
    for part, shape in small.items():
        tensor = getattr(weights, part)
        if tensor is not None:
            v = _tensor.read(tensor, f"weights.{part}", "float32", (experts, *shape))
            keep.append(v)
            setattr(out, part, v.pointer)
    return out, keep


def positive(name: str, value: Any) -> float:
    """A scale as the library has it, in float32. What float32 makes 0 would be 1 there."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        try:
            value = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"{name} is {type(value).__name__}; accepted: a number") from None
    try:
        rounded = ctypes.c_float(value).value
    except OverflowError:  # an int
        rounded = float("inf")
    if not 2.0**-126 <= rounded < float("inf"):
        raise ValueError(f"{name} is {value}; accepted: a positive, normal, finite float32")
    return rounded


def count(name: str, value: Any, least: int = 0, most: int = 2**62) -> int:
    """An integer argument: int, numpy's, or whatever has __index__."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {type(value).__name__}; accepted: an integer")
    number: int = value.__index__()
    if not least <= number <= most:
        raise ValueError(f"{name} is {number}; accepted: {least} to {most}")
    return number
