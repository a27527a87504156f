# SPDX-License-Identifier: Apache-2.0
"""Rows to codes and scales."""
from __future__ import annotations

import os
from typing import Any

from .. import _tensor, ops
from ..ops import FourOverSix
from ..specs import count
from ._enums import SfLayout
from ._layouts import bits, matrix, shuffle_matrix_a, shuffle_matrix_sf_a
from ._moe import is_cuda
from ._refusal import refuse

_LEAST_NORMAL = 2.0**-126  # of float32
_LAYOUTS = {SfLayout.layout_128x4: "128x4", SfLayout.layout_8x4: "8x4", SfLayout.layout_linear: "linear"}


def _layout(name: str, layout: Any) -> str:
    if layout not in _LAYOUTS:
        raise ValueError(f"{name} is {layout!r}; accepted: {', '.join(str(l) for l in SfLayout)}")
    return _LAYOUTS[layout]


def _wide(name: str, x: Any) -> Any:
    """float16, and torch's float8, as float32, which has all of their values."""
    dtype, torch = _tensor.view(x, name).dtype, _tensor.is_torch(x)
    narrow = ("float16", "float8_e4m3fn") if torch else ("float16",)
    accepted = (*_tensor.ACCEPTED["float32"], *_tensor.ACCEPTED["bfloat16"], *narrow)
    if dtype not in accepted:
        raise TypeError(f"{name} is {dtype}; accepted: {', '.join(accepted)}")
    if dtype not in narrow:
        return x
    return x.float() if torch else x.astype("float32")


class _Unset:
    """The default of nvfp4_4over6, as in FlashInfer: its environment variables count where the argument is left out."""

    def __repr__(self) -> str:
        return "<the environment's FLASHINFER_NVFP4_4OVER6>"


UNSET = _Unset()


def _enabled(variable: str) -> bool:
    return os.environ.get("FLASHINFER_NVFP4_4OVER6" + variable) == "1"


def four_over_six(given: Any) -> FourOverSix | None:
    """nvfp4_4over6 as ops.quantize takes it. None and False: off, whatever the environment says."""
    if given is None or given is False:
        return None
    if isinstance(given, _Unset):
        if not _enabled(""):
            return None
        maximum = 256 if _enabled("_E4M3_USE_256") else 448
        mode = os.environ.get("FLASHINFER_NVFP4_4OVER6_ERR_MODE", "MAE")
        fast, where = _enabled("_ERR_USE_FAST_MATH"), "FLASHINFER_NVFP4_4OVER6_ERR_MODE"
    else:
        try:
            maximum, mode, fast = given.e4m3_max, given.err_mode, given.err_use_fast_math
        except AttributeError:
            raise TypeError(f"nvfp4_4over6 is {given!r}; accepted: None, False, FlashInfer's NVFP44Over6Config") from None
        mode, where = getattr(mode, "name", mode), "nvfp4_4over6.err_mode"
    if not isinstance(mode, str) or mode.upper() not in ("MAE", "MSE"):
        raise ValueError(f"{where} is {mode!r}; accepted: 'MAE', 'MSE'")
    if maximum not in (256, 448):
        raise ValueError(f"nvfp4_4over6.e4m3_max is {maximum!r}; accepted: 256, 448")
    return FourOverSix(maximum, mode.lower(), bool(fast))


def refuse_4over6() -> None:
    """In a fused layer, which FlashInfer tells by the environment alone."""
    if _enabled(""):
        refuse("FLASHINFER_NVFP4_4OVER6 is 1, by which this layer would round its rows; accepted: unset, or 0 (quantisers alone "
               "round so)")


def _rows_of(name: str, x: Any) -> Any:
    """[M, K] of [.., K], as FlashInfer takes its inputs."""
    if len(x.shape) < 2:
        raise ValueError(f"{name} has shape {list(x.shape)}; accepted: [M, K], [.., M, K]")
    return x if len(x.shape) == 2 else x.reshape(-1, x.shape[-1])


def _by_columns(scales: Any, groups: int, layout: str) -> Any:
    """FlashInfer's shape of scales: [M, groups], and [padded M, groups padded to 4] in the 128x4 and 8x4 layouts."""
    flat, padded = bits(scales).reshape(-1), groups if layout == "linear" else -(-groups // 4) * 4
    return flat.reshape(flat.shape[0] // max(padded, 1), padded)


def _global_scale(name: str, given: Any, like: Any) -> Any:
    """float32 [1] where `like` is: FlashInfer converts it, too."""
    if given is None:
        scale = _tensor.empty("float32", (1,), like)
        scale[:] = 1
        return scale
    if _tensor.is_torch(given):
        import torch
        given = given.to(device=like.device if _tensor.is_torch(like) else None, dtype=torch.float32)
    elif hasattr(given, "astype"):
        given = given.astype("float32")
    else:
        raise TypeError(f"{name} is {type(given).__name__}; accepted: None, a tensor [1]")
    if tuple(given.shape) not in ((), (1,)):
        raise ValueError(f"{name} has shape {list(given.shape)}; accepted: [1], []")
    # On a GPU it is not looked at: the host would wait for it in every call.
    if not is_cuda(given) and bool((given < 0).any()):
        raise ValueError(f"{name} is {float(given.reshape(-1)[0])}; accepted: 0 or more")
    # Rows of zeros have the largest float as their global scale.
    return given.reshape(1).clip(_LEAST_NORMAL, 1 / _LEAST_NORMAL)


def mxfp8_quantize(input: Any, is_sf_swizzled_layout: bool = True, alignment: int = 32, enable_pdl: Any = None,
                   backend: str = "cuda", sf_swizzle_layout: Any = None) -> tuple[Any, Any]:
    """(e4m3 [.., K], flat UE8M0 scales of 32 columns): K is padded with zeros to a multiple of `alignment`."""
    if sf_swizzle_layout is None:
        sf_swizzle_layout = SfLayout.layout_128x4 if is_sf_swizzled_layout else SfLayout.layout_linear
    layout = _layout("sf_swizzle_layout", sf_swizzle_layout)
    if count("alignment", alignment, 32, 2**31 - 1) % 32:
        raise ValueError(f"alignment is {alignment}; accepted: multiples of 32")
    outer = input.shape[:-1]
    input = _wide("input", _rows_of("input", input))
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
    return q.codes.reshape(*outer, padded), bits(q.scales).reshape(-1)


def fp4_quantize(input: Any, global_scale: Any = None, sf_vec_size: int = 16, sf_use_ue8m0: bool = False,
                 is_sf_swizzled_layout: bool = True, is_sf_8x4_layout: bool = False, is_global_scale_inversed: bool = False,
                 enable_pdl: Any = None, backend: str = "cuda", nvfp4_4over6: Any = UNSET) -> tuple[Any, Any]:
    """(two e2m1 per byte [.., K / 2], scales [M, K / sf_vec_size], both padded in the 128x4 and 8x4 layouts): NVFP4 with 16
    columns and e4m3 scales, MXFP4 with 32 and UE8M0. input: float32, bfloat16, float16, or torch's float8_e4m3fn.
    global_scale: of NVFP4 alone, [1], 448 * 6 / amax, or its inverse; None: 1. nvfp4_4over6: of NVFP4 alone, FlashInfer's
    NVFP44Over6Config: each block takes the better of two scales (docs/numerics.md, Four over six), and global_scale is
    e4m3_max * 6 / amax; None or False: off; left out: as the variables FLASHINFER_NVFP4_4OVER6.. say."""
    coding = {(16, False): "nvfp4", (32, True): "mxfp4"}.get((sf_vec_size, bool(sf_use_ue8m0)))
    if coding is None:
        refuse(f"sf_vec_size is {sf_vec_size} with sf_use_ue8m0 {sf_use_ue8m0}; accepted: 16 without, 32 with")
    if coding == "mxfp4" and nvfp4_4over6 is not UNSET and nvfp4_4over6:
        refuse("nvfp4_4over6 is given with sf_vec_size 32; accepted with 16")
    how = four_over_six(nvfp4_4over6) if coding == "nvfp4" else None
    outer = input.shape[:-1]
    input = _wide("input", _rows_of("input", input))
    if input.shape[1] % sf_vec_size:
        raise ValueError(f"input has {input.shape[1]} columns; accepted: multiples of sf_vec_size, {sf_vec_size}")
    layout = ("8x4" if is_sf_8x4_layout else "128x4") if is_sf_swizzled_layout else "linear"
    scale, encodes = None, coding == "nvfp4" and not is_global_scale_inversed
    if coding == "nvfp4":
        scale = _global_scale("global_scale", global_scale, input)
    q = ops.quantize_by(input, coding, scale, encodes, layout, how)
    return q.codes.reshape(*outer, input.shape[1] // 2), _by_columns(q.scales, input.shape[1] // sf_vec_size, layout)


def nvfp4_quantize(a: Any, a_global_sf: Any, sfLayout: Any = SfLayout.layout_128x4, do_shuffle: bool = False,
                   sf_vec_size: int = 16, enable_pdl: Any = None, backend: str = "cuda", per_token_activation: bool = False,
                   expanded_idx_to_permuted_idx: Any = None, out_scale: Any = None, nvfp4_4over6: Any = UNSET) -> Any:
    """fp4_quantize for NVFP4. do_shuffle: rows and 128x4 scales as shuffle_matrix_a leaves them, with layout_128x4 alone.
    per_token_activation: also float32 [M], each row's own global scale (0 of a row of zeros) times out_scale, in place of
    a_global_sf; do_shuffle moves it with its row."""
    if sf_vec_size != 16 or expanded_idx_to_permuted_idx is not None:
        refuse("sf_vec_size or expanded_idx_to_permuted_idx are given; accepted: 16, None")
    a = _wide("a", matrix("a", a))
    layout = _layout("sfLayout", sfLayout)
    if do_shuffle:
        if layout != "128x4":
            raise ValueError(f"sfLayout is {sfLayout} with do_shuffle; accepted: {SfLayout.layout_128x4}")
        layout = "linear"  # until the rows are moved
    if a.shape[1] % 16:
        raise ValueError(f"a has {a.shape[1]} columns; accepted: multiples of 16")
    groups = a.shape[1] // 16
    if per_token_activation:
        q = ops.quantize(a, "nvfp4_token", layout=layout, four_over_six=four_over_six(nvfp4_4over6))
        rows = q.row_scales
        rows[rows < _LEAST_NORMAL] = 0  # of rows of zeros, one over the largest float
        if out_scale is not None:
            rows = rows * out_scale
        made: tuple[Any, ...] = q.codes, _by_columns(q.scales, groups, layout), rows
    else:
        made = fp4_quantize(a, _global_scale("a_global_sf", a_global_sf, a), is_sf_swizzled_layout=layout != "linear",
                            is_sf_8x4_layout=layout == "8x4", nvfp4_4over6=nvfp4_4over6)
    if not do_shuffle:
        return made
    codes, scales, *more = made
    return (shuffle_matrix_a(codes, 128), _by_columns(shuffle_matrix_sf_a(scales, 128), groups, "128x4"),
            *(shuffle_matrix_a(rows, 128) for rows in more))


def mxfp4_quantize(a: Any, backend: str = "cuda", enable_pdl: Any = None, sfLayout: Any = SfLayout.layout_128x4
                   ) -> tuple[Any, Any]:
    """(two e2m1 per byte [M, K / 2], UE8M0 scales of 32 columns)."""
    layout = _layout("sfLayout", sfLayout)
    return fp4_quantize(a, None, 32, True, layout != "linear", layout == "8x4")
