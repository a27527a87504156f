# SPDX-License-Identifier: Apache-2.0
"""The parts of a layer: quantisers, dense products, routing."""
from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from . import _c_api, _device, _library, _tensor
from ._prepared import check_weights, prepare
from ._tensor import CPU
from .moe import _FLOATS, _device_workspace, _number
from .specs import (
    Format, Matrices, SpecLike, as_matrices, count, dtype_number, format_info, positive, read_spec, run_dtype, view_matrices,
)

LAYOUTS = {"linear": 0, "128x4": 1, "8x4": 2, "transposed": 3}


class _Coding(NamedTuple):
    group: int  # columns of a block scale; 0: none
    four_bit: bool
    calibrated: bool  # an input_scale is given
    row_scales: bool
    scale_type: str


# As src/format/coding.h; the library checks every call against its own.
CODINGS = {
    "fp8_static": _Coding(0, False, True, False, ""),
    "fp8_token": _Coding(0, False, False, True, ""),
    "fp8_group": _Coding(128, False, False, False, "float32"),
    "mxfp8": _Coding(32, False, False, False, "float8_e8m0fnu"),
    "nvfp4": _Coding(16, True, True, False, "float8_e4m3fn"),
    "nvfp4_token": _Coding(16, True, False, True, "float8_e4m3fn"),
    "mxfp4": _Coding(32, True, False, False, "float8_e8m0fnu"),
}


class Quantized(NamedTuple):
    """Rows as codes and scales: value = code * block scale * (row or input scale)."""

    codes: Any  # float8_e4m3fn [rows, cols], or uint8 [rows, ceil(cols / 2)], two e2m1, low half = even column
    scales: Any  # of each group of columns, in `layout`; None for fp8_static and fp8_token
    row_scales: Any  # float32 [rows] of fp8_token and nvfp4_token
    input_scale: Any  # float32 [1] of fp8_static and nvfp4
    coding: str
    layout: str
    cols: int


class FourOverSix(NamedTuple):
    """NVFP4 with each block rounded by the better of two scales (docs/numerics.md, Four over six)."""

    e4m3_max: int = 448  # or 256; nvfp4_token: a row's factor is amax / (e4m3_max * 6), nvfp4: input_scale was made so
    error: str = "mae"  # sums of absolute errors, or "mse": of squared ones
    fast_error: bool = False  # errors before the tensor's or row's factor is applied


def _four_over_six(how: Any, coding: str) -> Any:
    """The library's struct, by pointer; None: off."""
    if how is None:
        return None
    if not isinstance(how, FourOverSix):
        raise TypeError(f"four_over_six is {type(how).__name__}; accepted: None, sluice_moe.FourOverSix")
    if coding not in ("nvfp4", "nvfp4_token"):
        raise ValueError(f"four_over_six is given with {coding}; accepted with nvfp4, nvfp4_token")
    if how.e4m3_max not in (256, 448):
        raise ValueError(f"four_over_six.e4m3_max is {how.e4m3_max!r}; accepted: 256, 448")
    if not isinstance(how.error, str) or how.error not in ("mae", "mse"):
        raise ValueError(f"four_over_six.error is {how.error!r}; accepted: 'mae', 'mse'")
    return ctypes.pointer(_c_api.FourOverSix(
        e4m3_max=int(how.e4m3_max), error=how.error.encode(), fast_error=bool(how.fast_error)))


def _coding(coding: str, layout: str) -> _Coding:
    if not isinstance(coding, str) or coding not in CODINGS:
        raise ValueError(f"coding is {coding!r}; accepted: {', '.join(CODINGS)}")
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}; accepted: {', '.join(LAYOUTS)}")
    return CODINGS[coding]


def scale_shape(coding: str, layout: str, rows: Any, cols: int) -> tuple[Any, ...]:
    """Of the block scales: [rows, groups], [groups, rows], or flat with the layout's padding. rows may be torch's SymInt."""
    groups = -(-cols // CODINGS[coding].group)
    if layout == "linear":
        return rows, groups
    if layout == "transposed":
        return groups, rows
    tall = 128 if layout == "128x4" else 8
    return ((rows + tall - 1) // tall * tall * (-(-groups // 4) * 4),)


def _input_scale(c: _Coding, coding: str, given: Any, device: tuple[str, int], stream: int, like: Any) -> Any:
    """A tensor, of `like`'s library where a number is given; None: the coding takes none."""
    if not c.calibrated:
        if given is not None:
            raise ValueError(f"input_scale is given; {coding} takes none")
        return None
    if given is None:
        raise ValueError(f"input_scale is None; {coding} needs the decode factor: amax / 448 (fp8_static), amax / 2688 "
                         "(nvfp4)")
    if device == CPU and hasattr(given, "__float__") and not hasattr(given, "__len__") and not isinstance(given, bool):
        made = _tensor.empty("float32", (1,), like)
        made[:] = positive("input_scale", given)
        return made
    v = _tensor.view(given, "input_scale", stream)
    _tensor.read(v, "input_scale", "float32", (1,) if v.shape else (), device=device)
    return given


def _pointer(name: str, tensor: Any, stream: int) -> int | None:
    return None if tensor is None else _tensor.view(tensor, name, stream).pointer


def quantize(x: Any, coding: str, *, input_scale: Any = None, layout: str = "linear", out: Quantized | None = None,
             four_over_six: FourOverSix | None = None, threads: int = 0, stream: Any = None) -> Quantized:
    """Rounds the rows of x as the layers round their inputs (docs/numerics.md), bit for bit on every device.

    x: [rows, cols] float32 or bfloat16, on the host or a GPU (there aligned to 16 bytes).
    coding: fp8_static, fp8_token, fp8_group, mxfp8, nvfp4, nvfp4_token, mxfp4.
    input_scale: the decode factor of fp8_static and nvfp4: a number on the host, float32 [1] on any device.
    layout: of the block scales: linear [rows, groups], 128x4 or 8x4 (flat, padding is zero), for fp8_group also
        transposed [groups, rows].
    out: a Quantized whose tensors are written; default: new ones.
    four_over_six: with nvfp4 and nvfp4_token, a FourOverSix: blocks take the better of two scales. None: the usual one.
    Raises ValueError and TypeError with the name, the value and what is accepted; Unsupported without CUDA.
    """
    return quantize_by(x, coding, input_scale, False, layout, four_over_six, out, threads, stream)


def quantize_by(x: Any, coding: str, input_scale: Any, encodes: bool, layout: str, four_over_six: FourOverSix | None = None,
                out: Quantized | None = None, threads: int = 0, stream: Any = None) -> Quantized:
    """quantize(). encodes: input_scale is NVFP4's encode factor, which the result keeps in its place."""
    c = _coding(coding, layout)
    how = _four_over_six(four_over_six, coding)
    device = _tensor.view(x, "x").device
    on = _device.read_stream(stream, device)
    align = 0 if device == CPU else 16
    v = _tensor.read(x, "x", _FLOATS, (None, None), device=device, align=align, stream=on)
    rows, cols = v.shape
    if out is not None and not isinstance(out, Quantized):
        raise TypeError(f"out is {type(out).__name__}; accepted: None, sluice_moe.Quantized")
    scale = _input_scale(c, coding, input_scale, device, on, x)
    code_type = "uint8" if c.four_bit else "float8_e4m3fn"
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {"codes": (code_type, (rows, -(-cols // 2) if c.four_bit else cols))}
    if c.group:
        shapes["scales"] = c.scale_type, scale_shape(coding, layout, rows, cols)
    if c.row_scales:
        shapes["row_scales"] = "float32", (rows,)
    given = {name: _tensor.empty(kind, shape, x, None if stream is None else on) if out is None else getattr(out, name)
             for name, (kind, shape) in shapes.items()}
    written = [(name, _tensor.read(given[name], f"out.{name}", kind, shape, device=device, write=True,
                                   align=align if name == "codes" else 0, stream=on))
               for name, (kind, shape) in shapes.items()]
    _tensor.check_apart(written, [("x", v)])
    pointers = {name: view.pointer for name, view in written}
    args = _c_api.QuantizeArgs(
        coding=coding.encode(), x=v.pointer, dtype=_number(v), rows=rows, cols=cols, layout=LAYOUTS[layout], encodes=encodes,
        four_over_six=how, input_scale=_pointer("input_scale", scale, on), **pointers)
    if device == CPU:
        _library.call("sluice_quantize", _library.context(threads).get(), args)
    else:
        _library.call("sluice_cuda_quantize", args, _c_api.CudaQueue(stream=on))
    return Quantized(given["codes"], given.get("scales"), given.get("row_scales"), scale, coding, layout, cols)


def dequantize(q: Quantized, *, out: Any = None, threads: int = 0) -> Any:
    """float32 [rows, cols]: code * block scale * (row or input scale), each product in float32; host tensors.

    q: what quantize() gave, or a Quantized of your own tensors. out: where it is written; default: a new tensor.
    """
    if not isinstance(q, Quantized):
        raise TypeError(f"q is {type(q).__name__}; accepted: sluice_moe.Quantized")
    c = _coding(q.coding, q.layout)
    cols = count("q.cols", q.cols)
    codes = _tensor.read(q.codes, "q.codes", "uint8" if c.four_bit else "float8_e4m3fn",
                         (None, -(-cols // 2) if c.four_bit else cols))
    rows = codes.shape[0]
    parts: list[tuple[str, Any]] = [("codes", codes)]
    if c.group:
        parts.append(("scales", _tensor.read(q.scales, "q.scales", c.scale_type, scale_shape(q.coding, q.layout, rows, cols))))
    if c.row_scales:
        parts.append(("row_scales", _tensor.read(q.row_scales, "q.row_scales", "float32", (rows,))))
    scale = _input_scale(c, q.coding, q.input_scale, CPU, 0, q.codes)
    if out is None:
        out = _tensor.empty("float32", (rows, cols), q.codes)
    x = _tensor.read(out, "out", "float32", (rows, cols), write=True)
    _tensor.check_apart([("out", x)], parts)
    args = _c_api.DequantizeArgs(
        coding=q.coding.encode(), rows=rows, cols=cols, layout=LAYOUTS[q.layout], x=x.pointer,
        input_scale=_pointer("input_scale", scale, 0), **{name: view.pointer for name, view in parts})
    _library.call("sluice_dequantize", _library.context(threads).get(), args)
    return out


def _empty_matrices(format: Format, matrices: int, rows: int, cols: int, like: Any) -> Matrices:
    types = {"codes": format.code_type, "scales": format.scale_type, "global_scales": "float32"}
    return Matrices(**{part: _tensor.empty(types[part], shape, like)
                       for part, shape in format.shapes(matrices, rows, cols).items()})


def quantize_weights(values: Any, format: str, *, out: Matrices | None = None, threads: int = 0) -> Matrices:
    """Weights as the checkpoint loader quantises them, each matrix by itself; host tensors.

    values: [L, N, K] or [N, K] float32 or bfloat16; K even for 4-bit codes.
    format: bf16, fp8_tensor, fp8_channel, fp8_block, mxfp8, nvfp4, mxfp4.
    Returns Matrices, new ones or `out`, of format_info(format).shapes(L, N, K); L is 1 for [N, K].
    """
    f = format_info(format)
    v = _tensor.view(values, "values")
    v = _tensor.read(v, "values", _FLOATS, (None, None, None) if len(v.shape) == 3 else (None, None))
    matrices, rows, cols = v.shape if len(v.shape) == 3 else (1, *v.shape)
    if f.bits == 4 and cols % 2:
        raise ValueError(f"values has {cols} columns; {format} stores two codes per byte and needs an even number")
    if out is None:
        out = _empty_matrices(f, matrices, rows, cols, values)
    keep: list[_tensor.View] = []
    to = view_matrices("out", out, f, matrices, rows, cols, device=CPU, write=True, keep=keep)
    _tensor.check_apart([("out", view) for view in keep], [("values", v)])
    _library.call("sluice_quantize_weights", _library.context(threads).get(), format.encode(), matrices, rows, cols,
                  v.pointer, _number(v), to.codes, to.scales, to.global_scales)
    return out


def _matrices_and_codes(weights: Any, accepted: str) -> tuple[Matrices, _tensor.View]:
    m = as_matrices("weights", weights)
    if m.codes is None:
        raise ValueError("weights.codes is None; accepted: a tensor")
    codes = _tensor.view(m.codes, "weights.codes")
    if len(codes.shape) not in (2, 3):
        raise ValueError(f"weights.codes has {len(codes.shape)} dimensions; accepted: {accepted}")
    return m, codes


def dequantize_weights(weights: Any, format: str, *, out: Any = None, threads: int = 0) -> Any:
    """float32 [L, N, K] = code * scale * global scale, each product in float32; host tensors."""
    f = format_info(format)
    m, codes = _matrices_and_codes(weights, "[L, N, K] or [N, K]")
    matrices, rows, cols = codes.shape if len(codes.shape) == 3 else (1, *codes.shape)
    cols *= 2 if f.bits == 4 else 1
    keep: list[_tensor.View] = []
    from_ = view_matrices("weights", m, f, matrices, rows, cols, device=CPU, keep=keep)
    if out is None:
        out = _tensor.empty("float32", (matrices, rows, cols), m.codes)
    x = _tensor.read(out, "out", "float32", (matrices, rows, cols), write=True)
    _tensor.check_apart([("out", x)], [("weights", view) for view in keep])
    _library.call("sluice_dequantize_weights", _library.context(threads).get(), format.encode(), matrices, rows, cols,
                  from_, x.pointer)
    return out


class Gemm:
    """y [T, N] = x [T, K] W^T + bias: one dense matrix, ready to run.

    weights: Matrices of one matrix [N, K] in `format`; copied. bias: float32 [N] in host memory.
    inputs: what rows of x are rounded to first; default: the format's own. input_scale: of static inputs.
    dtype: of x and y, bfloat16 or float32.
    device, memory, stream: as FusedMoE; memory of prepared_size(..., device) bytes.
    fp8_f32_sums: on a GPU, FP8 sums in float32 instead of the 14 bits of Hopper's tensor cores. deterministic: a row of y
        depends on its row of x alone, as on the host.

    Its rows and cols are N and K.
    """

    def __init__(self, weights: Any, format: str, *, inputs: str | None = None, dtype: Any = "bfloat16",
                 input_scale: float = 1.0, bias: Any = None, device: Any = None, memory: Any = None,
                 fp8_f32_sums: bool = False, deterministic: bool = False, threads: int = 0, stream: Any = None) -> None:
        f = format_info(format)
        m, codes = _matrices_and_codes(weights, "[N, K] or [1, N, K]")
        self.device = _device.read_device(device) if device is not None else codes.device
        self.rows, self.cols = codes.shape[-2], codes.shape[-1] * (2 if f.bits == 4 else 1)
        self.dtype = run_dtype("dtype", dtype)
        self._format = f
        keep: list[_tensor.View] = []
        options = _c_api.GemmOptions(
            rows=self.rows, cols=self.cols, weights=format.encode(),
            inputs=None if inputs is None else _library.text("inputs", inputs), dtype=dtype_number(self.dtype),
            w=self._view(m, codes, keep), input_scale=positive("input_scale", input_scale), fp8_f32_sums=bool(fp8_f32_sums),
            deterministic=bool(deterministic))
        if bias is not None:
            keep.append(_tensor.read(bias, "bias", "float32", (self.rows,)))
            options.bias = keep[-1].pointer
        self._handle, self._memory = prepare("matrix", "gemm", self.device, memory, threads, stream, options,
                                             read=keep)
        del keep  # the structs' pointers were used

    def _view(self, m: Any, codes: Any, keep: list[_tensor.View]) -> Any:
        where = CPU if codes.device == CPU else self.device
        return view_matrices("weights", m, self._format, 1, self.rows, self.cols, device=where,
                             align=0 if where == CPU else 16, keep=keep)

    def refit(self, weights: Any, *, input_scale: float = 1.0, bias: Any = None, stream: Any = None) -> None:
        """Another matrix of the same format and shape, its input scale, and its bias if there was one, into the same memory;
        on a GPU in the stream's order, which CUDA graphs that were captured before see. Not while a call is under way on
        the cpu."""
        on = _device.read_stream(stream, self.device)
        keep: list[_tensor.View] = []
        w = self._view(*_matrices_and_codes(weights, "[N, K] or [1, N, K]"), keep)
        scale = positive("input_scale", input_scale)
        view = None if bias is None else _tensor.read(bias, "bias", "float32", (self.rows,))
        pointer = None if view is None else view.pointer
        check_weights(self._memory, keep if view is None else [*keep, view])
        if self.device == CPU:
            _library.call("sluice_gemm_refit", self._handle.get(), w, scale, pointer)
        else:
            _library.call("sluice_cuda_gemm_refit", self._handle.get(), w, scale, pointer, on)
        del keep, view  # the structs' pointers were used

    @staticmethod
    def prepared_size(format: str, rows: int, cols: int, *, inputs: str | None = None, dtype: Any = "bfloat16",
                      device: Any = "cuda") -> int:
        """Bytes of `memory` for a matrix [rows, cols]: on a GPU ("cuda"; needs none, but a library with CUDA), or on the
        "cpu"."""
        out = ctypes.c_int64()
        options = _c_api.GemmOptions(
            rows=count("rows", rows), cols=count("cols", cols), weights=_library.text("format", format),
            inputs=None if inputs is None else _library.text("inputs", inputs),
            dtype=dtype_number(run_dtype("dtype", dtype)))
        name = "sluice_gemm_prepared_bytes" if _device.read_device(device) == CPU else "sluice_cuda_gemm_prepared_bytes"
        _library.call(name, options, out)
        return out.value

    def workspace_size(self, tokens: int) -> int:
        """Bytes of workspace that a call of up to `tokens` rows needs."""
        out = ctypes.c_int64()
        name = "sluice_gemm_workspace_bytes" if self.device == CPU else "sluice_cuda_gemm_workspace_bytes"
        _library.call(name, self._handle.get(), count("tokens", tokens), out)
        return out.value

    def close(self) -> None:
        """Frees the matrix now. Calls on a GPU must have passed."""
        self._handle.close()
        self._memory = None

    def __call__(self, x: Any, *, out: Any = None, workspace: Any = None, stream: Any = None) -> Any:
        """y [T, N] in the matrix's dtype: `out`, or a new tensor. x: [T, K] in that dtype; on a GPU also a Quantized.

        workspace: uint8 of workspace_size(T) bytes, aligned to 64 bytes (on a GPU 256). stream: as FusedMoE's.
        """
        on, device = _device.read_stream(stream, self.device), self.device
        align = 0 if device == CPU else 16
        coded = x if isinstance(x, Quantized) else None
        if coded is not None and device == CPU:
            raise ValueError("x is Quantized on the cpu; accepted: a tensor, which the call rounds")
        like = coded.codes if coded is not None else x
        views: list[tuple[str, Any]] = []
        if coded is None:
            views.append(("x", _tensor.read(x, "x", self.dtype, (None, self.cols), device=device, align=align, stream=on)))
        else:
            c = _coding(coded.coding, coded.layout)
            views.append(("codes", _tensor.read(
                coded.codes, "x.codes", "uint8" if c.four_bit else "float8_e4m3fn",
                (None, -(-self.cols // 2) if c.four_bit else self.cols), device=device, align=align, stream=on)))
            rows = views[0][1].shape[0]
            if c.group:
                views.append(("scales", _tensor.read(coded.scales, "x.scales", c.scale_type, scale_shape(
                    coded.coding, coded.layout, rows, self.cols), device=device, stream=on)))
            if c.row_scales:
                views.append(("row_scales", _tensor.read(coded.row_scales, "x.row_scales", "float32", (rows,),
                                                         device=device, stream=on)))
        tokens = views[0][1].shape[0]
        if out is None:
            out = _tensor.empty(self.dtype, (tokens, self.rows), like, None if stream is None else on)
        y = _tensor.read(out, "out", self.dtype, (tokens, self.rows), device=device, write=True, align=align, stream=on)
        written = [("out", y)]
        if workspace is None and device != CPU:
            workspace = _device_workspace(self.workspace_size(tokens), like, None if stream is None else on)
        space = None
        if workspace is not None:
            space = _tensor.read(workspace, "workspace", "uint8", (None,), device=device, write=True,
                                 align=64 if device == CPU else 256, stream=on)
            written.append(("workspace", space))
        _tensor.check_apart(written, [*views, ("the prepared weights", self._memory)])
        memory = {} if space is None else {"workspace": space.pointer, "workspace_size": space.bytes}
        pointers = {name: view.pointer for name, view in views}
        if device == CPU:
            _library.call("sluice_gemm_run", self._handle.get(),
                          _c_api.GemmArgs(tokens=tokens, y=y.pointer, **pointers, **memory))
        else:
            args = _c_api.CudaGemmArgs(tokens=tokens, y=y.pointer, **pointers, **memory)
            if coded is not None:
                args.layout = LAYOUTS[coded.layout]
            _library.call("sluice_cuda_gemm_run", self._handle.get(), args, _c_api.CudaQueue(stream=on))
        return out


def gemm(x: Any, weights: Any, format: str, *, out: Any = None, **options: Any) -> Any:
    """x W^T once: Gemm(weights, format, **options)(x). The weights are repacked for every call; keep a Gemm instead."""
    return Gemm(weights, format, **options)(x, out=out)


def route(spec: SpecLike, logits: Any, *, bias: Any = None, out_ids: Any = None, out_weights: Any = None) -> tuple[Any, Any]:
    """The routing of a spec alone, host tensors: (ids int32 [T, K], weights float32 [T, K]).

    logits: [T, E] float32 or bfloat16. bias: [E], for routings that take one. Ids are global, in descending order of what
    they were chosen by; weights are rounded to bfloat16 when that is the spec's dtype.
    """
    s = read_spec(spec)
    l = _tensor.read(logits, "logits", _FLOATS, (None, s.experts))
    tokens = l.shape[0]
    args = _c_api.RouteArgs(tokens=tokens, logits=l.pointer, logits_dtype=_number(l))
    inputs = [("logits", l)]
    if bias is not None:
        b = _tensor.read(bias, "bias", _FLOATS, (s.experts,))
        args.bias, args.bias_dtype = b.pointer, _number(b)
        inputs.append(("bias", b))
    out_ids = _tensor.empty("int32", (tokens, s.top_k), logits) if out_ids is None else out_ids
    out_weights = _tensor.empty("float32", (tokens, s.top_k), logits) if out_weights is None else out_weights
    ids = _tensor.read(out_ids, "out_ids", "int32", (tokens, s.top_k), write=True)
    weights = _tensor.read(out_weights, "out_weights", "float32", (tokens, s.top_k), write=True)
    _tensor.check_apart([("out_ids", ids), ("out_weights", weights)], inputs)
    args.ids, args.weights = ids.pointer, weights.pointer
    _library.call("sluice_route", _library.text("spec", s.line), args)
    return out_ids, out_weights
