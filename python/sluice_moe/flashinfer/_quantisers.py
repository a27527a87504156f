# SPDX-License-Identifier: Apache-2.0
"""Rows to codes and scales."""
from __future__ import annotations

import os
from typing import Any

from .. import _tensor, ops
from ._enums import SfLayout
from ._layouts import bits, shuffle_matrix_a, shuffle_matrix_sf_a
from ._refusal import refuse

_LEAST_NORMAL = 2.0**-126  # of float32
_LAYOUTS = {SfLayout.layout_128x4: "128x4", SfLayout.layout_8x4: "8x4", SfLayout.layout_linear: "linear"}


def _layout(name: str, layout: Any) -> str:
    if layout not in _LAYOUTS:
        raise ValueError(f"{name} is {layout!r}; accepted: {', '.join(str(l) for l in SfLayout)}")
    return _LAYOUTS[layout]


def _wide(x: Any) -> Any:
    """float16, and torch's float8, as float32, which has all of their values."""
    name = _tensor.view(x, "input").dtype
    if _tensor.is_torch(x):
        return x.float() if name in ("float16", "float8_e4m3fn") else x
    return x.astype("float32") if name == "float16" else x


def refuse_4over6(given: Any = None) -> None:
    """By the argument, or by the variable that FlashInfer reads where it is left out."""
    if given or (given is None and os.environ.get("FLASHINFER_NVFP4_4OVER6") == "1"):
        refuse("nvfp4_4over6 is set (the argument, or FLASHINFER_NVFP4_4OVER6); accepted: False")


def _by_columns(scales: Any, groups: int) -> Any:
    """FlashInfer's shape of scales, [.., groups]; flat where a layout's padding makes no whole rows of that."""
    flat = bits(scales).reshape(-1)
    return flat.reshape(-1, groups) if flat.shape[0] % groups == 0 else flat


def mxfp8_quantize(input: Any, is_sf_swizzled_layout: bool = True, alignment: int = 32, enable_pdl: Any = None,
                   backend: str = "cuda", sf_swizzle_layout: Any = None) -> tuple[Any, Any]:
    """(e4m3 [M, K], flat UE8M0 scales of 32 columns): K is padded with zeros to a multiple of `alignment`."""
    if sf_swizzle_layout is None:
        sf_swizzle_layout = SfLayout.layout_128x4 if is_sf_swizzled_layout else SfLayout.layout_linear
    layout = _layout("sf_swizzle_layout", sf_swizzle_layout)
    if alignment % 32:
        raise ValueError(f"alignment is {alignment}; accepted: multiples of 32")
    input = _wide(input)
    rows, cols = input.shape
    if cols % 32:
        raise ValueError(f"input has {cols} columns; accepted: multiples of 32")
    padded = -(-cols // alignment) * alignment
    if padded != cols:
        wide = _tensor.empty("bfloat16" if _tensor.view(input, "input").dtype != "float32" else "float32", (rows, padded),
                             input)
        wide[:] = 0
        wide[:, :cols] = input
        input = wide
    q = ops.quantize(input, "mxfp8", layout=layout)
    return q.codes, bits(q.scales).reshape(-1)


def fp4_quantize(input: Any, global_scale: Any = None, sf_vec_size: int = 16, sf_use_ue8m0: bool = False,
                 is_sf_swizzled_layout: bool = True, is_sf_8x4_layout: bool = False, is_global_scale_inversed: bool = False,
                 enable_pdl: Any = None, backend: str = "cuda", nvfp4_4over6: Any = None) -> tuple[Any, Any]:
    """(two e2m1 per byte [M, K / 2], scales [.., K / sf_vec_size], flat if padded columns leave no such shape): NVFP4 with 16
    columns and e4m3 scales, MXFP4 with 32 and UE8M0. input: float32, bfloat16, float16, or torch's float8_e4m3fn.
    global_scale: float32 [1], 448 * 6 / amax, or its inverse; None: 1."""
    coding = {(16, False): "nvfp4", (32, True): "mxfp4"}.get((sf_vec_size, bool(sf_use_ue8m0)))
    if coding is None:
        refuse(f"sf_vec_size is {sf_vec_size} with sf_use_ue8m0 {sf_use_ue8m0}; accepted: 16 without, 32 with")
    if coding == "nvfp4":
        refuse_4over6(nvfp4_4over6)
    input = _wide(input)
    layout = ("8x4" if is_sf_8x4_layout else "128x4") if is_sf_swizzled_layout else "linear"
    scale, encodes = None, coding == "nvfp4" and not is_global_scale_inversed
    if coding == "nvfp4":
        if global_scale is None:
            scale = _tensor.empty("float32", (1,), input)
            scale[:] = 1
        else:
            # Rows of zeros have the largest float as their global scale.
            scale = global_scale.reshape(1).clip(_LEAST_NORMAL, 1 / _LEAST_NORMAL)
    q = ops.quantize_by(input, coding, scale, encodes, layout)
    return q.codes, _by_columns(q.scales, input.shape[1] // sf_vec_size)


def nvfp4_quantize(a: Any, a_global_sf: Any, sfLayout: Any = SfLayout.layout_128x4, do_shuffle: bool = False,
                   sf_vec_size: int = 16, enable_pdl: Any = None, backend: str = "cuda", per_token_activation: bool = False,
                   expanded_idx_to_permuted_idx: Any = None, out_scale: Any = None, nvfp4_4over6: Any = None) -> Any:
    """fp4_quantize for NVFP4. do_shuffle: rows and 128x4 scales as shuffle_matrix_a leaves them. per_token_activation:
    also float32 [M], each row's own global scale (0 of a row of zeros) times out_scale, in place of a_global_sf."""
    if sf_vec_size != 16 or expanded_idx_to_permuted_idx is not None:
        refuse("sf_vec_size or expanded_idx_to_permuted_idx are given; accepted: 16, None")
    refuse_4over6(nvfp4_4over6)
    a = _wide(a)
    layout = _layout("sfLayout", sfLayout)
    groups = a.shape[1] // 16
    if per_token_activation:
        q = ops.quantize(a, "nvfp4_token", layout=layout)
        rows = q.row_scales
        rows[rows < _LEAST_NORMAL] = 0  # of rows of zeros, one over the largest float
        if out_scale is not None:
            rows = rows * out_scale
        return q.codes, _by_columns(q.scales, groups), rows
    if not do_shuffle:
        return fp4_quantize(a, a_global_sf, is_sf_swizzled_layout=layout != "linear", is_sf_8x4_layout=layout == "8x4")
    codes, scales = fp4_quantize(a, a_global_sf, is_sf_swizzled_layout=False)
    return shuffle_matrix_a(codes, 128), _by_columns(shuffle_matrix_sf_a(scales, 128), groups)


def mxfp4_quantize(a: Any, backend: str = "cuda", enable_pdl: Any = None, sfLayout: Any = SfLayout.layout_128x4
                   ) -> tuple[Any, Any]:
    """(two e2m1 per byte [M, K / 2], UE8M0 scales of 32 columns)."""
    layout = _layout("sfLayout", sfLayout)
    return fp4_quantize(a, None, 32, True, layout != "linear", layout == "8x4")
