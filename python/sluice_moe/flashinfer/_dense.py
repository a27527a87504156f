# SPDX-License-Identifier: Apache-2.0
"""Products of two quantised matrices."""
from __future__ import annotations

from typing import Any

from .. import _tensor, ops
from ..specs import Matrices
from . import _values
from ._layouts import as_laid_out, bits, block_scale_interleave, contiguous, linear_scales
from ._refusal import refuse


_PRODUCT_DTYPES = ("bfloat16", "float16")
# Those whose b lies in the order of its rows: trtllm's is shuffled, the others limit types and sizes in their own ways.
_BACKENDS = ("auto", "cutlass", "cudnn")


def result_dtype(name: str, dtype: Any, accepted: tuple[str, ...] = ("bfloat16",)) -> str:
    given = "bfloat16" if dtype is None else dtype
    asked = str(getattr(given, "name", None) or getattr(given, "__name__", None) or given).removeprefix("torch.")
    if asked not in accepted:
        refuse(f"{name} is {asked}; accepted: {', '.join(accepted)}")
    return asked


def _product(coded: ops.Quantized, weights: Matrices, format: str, out: Any, dtype: str, inputs: str | None = None) -> Any:
    """coded [m, k] times the transposed weights. The CPU's kernels round rows themselves, so there the values that the codes
    stand for are multiplied, unrounded. float16 is rounded from the sums in float32, as bfloat16 is."""
    device = _tensor.view(coded.codes, "a").device
    on_cpu = device == _tensor.CPU
    if out is not None:
        _tensor.read(out, "out", dtype, (coded.codes.shape[0], weights.codes.shape[0]), device=device, write=True)
    if not on_cpu and dtype == "bfloat16":
        return ops.Gemm(weights, format, inputs=inputs)(coded, out=out)
    rows, rounded = (ops.dequantize(coded), "plain") if on_cpu else (coded, inputs)
    wide = ops.gemm(rows, weights, format, inputs=rounded, dtype="float32")
    if dtype == "bfloat16":
        matrices = ops.quantize_weights(wide, "bf16", out=None if out is None else Matrices(out))
        return matrices.codes if out is not None else matrices.codes[0]
    if out is None:
        return wide.half() if _tensor.is_torch(wide) else wide.astype("float16")
    out[...] = wide
    return out


def _check_product(function: str, a: Any, b: Any, backend: str) -> None:
    """Shapes alone; types and layouts are checked where they are read."""
    if backend not in _BACKENDS:
        refuse(f"backend is {backend!r}; accepted: {', '.join(map(repr, _BACKENDS))}")
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise ValueError(f"a has shape {list(a.shape)} and b {list(b.shape)}; {function} accepts 2d tensors")
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"b has {b.shape[0]} rows; accepted: {a.shape[1]}, a's columns")


def _linear(name: str, scales: Any, rows: int, groups: int) -> Any:
    if tuple(scales.shape) != (rows, groups):
        raise ValueError(f"{name} has shape {list(scales.shape)}; accepted in 2 dimensions: linear scales of [{rows}, {groups}]")
    return bits(contiguous(scales))


def mm_mxfp8(a: Any, b: Any, a_descale: Any, b_descale: Any, out: Any = None, out_dtype: Any = None,
             use_8x4_sf_layout: bool = False, backend: str = "auto", *, skip_check: bool = False) -> Any:
    """[m, n] = a b in out_dtype, bfloat16 by default, or float16. a: e4m3 [m, k]; b: e4m3 [k, n], the transposed view of a
    matrix [n, k]; scales UE8M0, flat in the 128x4 layout (a's in 8x4 with use_8x4_sf_layout), or linear: a's [m, k / 32],
    b's [k / 32, n]. backend: "auto", "cutlass" or "cudnn", which give the same results. skip_check: FlashInfer's, of the
    backend; the arguments are always checked."""
    dtype = result_dtype("out_dtype", out_dtype, _PRODUCT_DTYPES)
    _check_product("mm_mxfp8", a, b, backend)
    (rows, cols), outputs = a.shape, b.shape[1]
    for name, scales in (("a_descale", a_descale), ("b_descale", b_descale)):
        if len(scales.shape) not in (1, 2):
            raise ValueError(f"{name} has shape {list(scales.shape)}; {name} must be 1D (swizzled) or 2D (non-swizzled)")
    layout = "8x4" if use_8x4_sf_layout else "128x4"
    if len(a_descale.shape) == 2:
        layout, a_descale = "128x4", block_scale_interleave(_linear("a_descale", a_descale, rows, cols // 32))
    of_b = (_linear("b_descale", b_descale.T, outputs, cols // 32) if len(b_descale.shape) == 2 else
            linear_scales(b_descale, outputs, cols // 32))
    weights = Matrices(contiguous(b.T), of_b)
    coded = ops.Quantized(a, bits(contiguous(a_descale)).reshape(-1), None, None, "mxfp8", layout, cols)
    return _product(coded, weights, "mxfp8", out, dtype)


def mm_fp4(a: Any, b: Any, a_descale: Any, b_descale: Any, alpha: Any = None, out_dtype: Any = None, out: Any = None,
           block_size: int = 16, use_8x4_sf_layout: bool = False, backend: str = "auto", use_nvfp4: bool = True,
           enable_pdl: bool = True, *, skip_check: bool = False) -> Any:
    """[m, n] = alpha * a b for NVFP4 in out_dtype, bfloat16 by default, or float16. a: uint8 [m, k / 2]; b: uint8 [k / 2, n],
    the transposed view of [n, k / 2]; scales e4m3 in the 128x4 layout (a's in 8x4 with use_8x4_sf_layout), flat or as
    fp4_quantize gives them, or the transposed view of that; alpha: float32 [1], [m] or None. backend and skip_check: as
    mm_mxfp8's."""
    if block_size != 16 or not use_nvfp4:
        refuse(f"block_size is {block_size} and use_nvfp4 {use_nvfp4}; accepted: 16, True (MXFP4 inputs run nowhere here)")
    dtype = result_dtype("out_dtype", out_dtype, _PRODUCT_DTYPES)
    _check_product("mm_fp4", a, b, backend)
    (rows, half), outputs = a.shape, b.shape[1]
    cols = 2 * half
    per_row = alpha is not None and len(alpha.shape) == 1 and alpha.shape[0] == rows and rows != 1
    layout = "8x4" if use_8x4_sf_layout else "128x4"
    scale = _values.filled((1,), 1, a) if per_row or alpha is None else alpha.reshape(1)
    weights = Matrices(contiguous(b.T), linear_scales(b_descale, outputs, cols // 16), scale)
    row_scales = contiguous(alpha) if per_row else _values.filled((rows,), 1, a)
    coded = ops.Quantized(a, bits(as_laid_out(a_descale)).reshape(-1), row_scales, None, "nvfp4_token", layout, cols)
    return _product(coded, weights, "nvfp4", out, dtype, inputs="nvfp4_token")
