# SPDX-License-Identifier: Apache-2.0
"""Orders of rows, columns and scales that TRTLLM-Gen's kernels read, and the ways back."""
from __future__ import annotations

from typing import Any

from .. import _tensor
from ..specs import count


def permute(x: Any, axes: tuple[int, ...]) -> Any:
    return x.permute(axes) if _tensor.is_torch(x) else x.transpose(axes)


def contiguous(x: Any) -> Any:
    if _tensor.is_torch(x):
        return x.contiguous()
    import numpy
    return numpy.ascontiguousarray(x)


def matrix(name: str, x: Any) -> Any:
    if len(x.shape) != 2:
        raise ValueError(f"{name} has shape {list(x.shape)}; accepted: 2 dimensions")
    return x


def as_laid_out(x: Any) -> Any:
    """Contiguous scales in the order of their memory: FlashInfer's users give a matrix and its transposed view alike."""
    if len(x.shape) == 2 and not _is_contiguous(x) and _is_contiguous(x.T):
        return x.T
    return contiguous(x)


def _is_contiguous(x: Any) -> bool:
    return bool(x.is_contiguous() if _tensor.is_torch(x) else x.flags.c_contiguous)


def bits(x: Any) -> Any:
    """One-byte elements as uint8, which scale layouts are made of."""
    if _tensor.is_torch(x):
        import torch
        return x.view(torch.uint8)
    if not hasattr(x, "view"):
        raise TypeError(f"a tensor of one-byte elements is {type(x).__name__}; accepted: a numpy array, a torch tensor")
    return x.view("uint8")


def reorder_rows_for_gated_act_gemm(x: Any) -> Any:
    """[2I, K]: row i of the first half, then row i of the second, for every i."""
    rows, cols = matrix("x", x).shape
    if rows % 2:
        raise ValueError(f"x has {rows} rows; accepted: an even number")
    return contiguous(permute(x.reshape(2, rows // 2, cols), (1, 0, 2))).reshape(rows, cols)


def shuffled_from(rows: int, epilogue_tile_m: int) -> list[int]:
    """Which old row each new row is. In a block of 32 rows (16 when the tile is no multiple of 128) old row i becomes new
    row i // 4 + 8 * (i % 4) (i // 2 + 8 * (i % 2))."""
    block, ways = (32, 4) if epilogue_tile_m % 128 == 0 else (16, 2)
    if rows % block:
        raise ValueError(f"the matrix has {rows} rows; accepted: multiples of {block}")
    source = [0] * rows
    for old in range(rows):
        i = old % block
        source[old - i + i // ways + 8 * (i % ways)] = old
    return source


def shuffle_matrix_a(input_tensor: Any, epilogue_tile_m: int) -> Any:
    """[M, bytes] with its rows in the order that TRTLLM-Gen's kernels read."""
    return input_tensor[shuffled_from(input_tensor.shape[0], epilogue_tile_m)]


def shuffle_matrix_sf_a(input_tensor: Any, epilogue_tile_m: int, num_elts_per_sf: int = 16) -> Any:
    """Linear block scales [M, groups] of a matrix that shuffle_matrix_a shuffles, in the 128x4 layout."""
    return block_scale_interleave(shuffle_matrix_a(input_tensor, epilogue_tile_m))


def block_scale_interleave(unswizzled_sf: Any, *, out: Any = None) -> Any:
    """One-byte scales [M, groups] or [E, M, groups] in the 128x4 layout: flat, each matrix padded with zeros to 128 rows
    and 4 columns. out: as many one-byte elements, in any shape, that are written and returned."""
    if len(unswizzled_sf.shape) not in (2, 3):
        raise ValueError(f"unswizzled_sf has {len(unswizzled_sf.shape)} dimensions; accepted: [M, groups], [E, M, groups]")
    scales = bits(unswizzled_sf)
    scales = scales.reshape(-1, *scales.shape[-2:])
    matrices, rows, cols = scales.shape
    tall, wide = -(-rows // 128), -(-cols // 4)
    padded = _tensor.empty("uint8", (matrices, tall * 128, wide * 4), scales)
    padded[:] = 0
    padded[:, :rows, :cols] = scales
    # Rows 0, 32, 64 and 96 of 128 lie beside each other.
    flat = contiguous(permute(padded.reshape(matrices, tall, 4, 32, wide, 4), (0, 1, 4, 3, 2, 5))).reshape(-1)
    if out is None:
        return flat
    given = _tensor.read(out, "out", "float8_e4m3fn", device=None, write=True)
    if given.elements != flat.shape[0]:
        raise ValueError(f"out has {given.elements} elements; accepted: {flat.shape[0]}, padding among them")
    bits(out).reshape(-1)[:] = flat
    return out


def linear_scales(swizzled: Any, rows: int, cols: int, layout: str = "128x4") -> Any:
    """uint8 [rows, cols] of block scales in the 128x4 or 8x4 layout, read as they lie in memory."""
    tall, wide = (128 if layout == "128x4" else 8), -(-cols // 4)
    tiles = -(-rows // tall)
    flat = bits(as_laid_out(swizzled)).reshape(-1)
    if flat.shape[0] != tiles * tall * wide * 4:
        raise ValueError(f"the scales have {flat.shape[0]} elements; accepted: {tiles * tall * wide * 4}, {layout} of "
                         f"[{rows}, {cols}]")
    if tall == 128:
        x = permute(flat.reshape(tiles, wide, 32, 4, 4), (0, 3, 2, 1, 4))
    else:
        x = permute(flat.reshape(tiles, wide, 8, 4), (0, 2, 1, 3))
    return contiguous(contiguous(x).reshape(tiles * tall, wide * 4)[:rows, :cols])


def convert_to_block_layout(input_tensor: Any, blockK: int) -> Any:
    """[M, K] as [K / blockK, M, blockK]."""
    rows, cols = matrix("input_tensor", input_tensor).shape
    if cols % count("blockK", blockK, 1, 2**31 - 1):
        raise ValueError(f"input_tensor has {cols} columns; accepted: multiples of blockK, {blockK}")
    return contiguous(permute(input_tensor.reshape(rows, cols // blockK, blockK), (1, 0, 2)))


def canonical(x: Any, gated: bool, epilogue_tile_m: int = 0, reordered: bool = True) -> tuple[Any, Any]:
    """(the first half of the rows or all of them, the second half or None) of [L, rows, ..] that shuffle_matrix_a shuffled
    (0: not), the halves' rows put beside each other before if they were reordered."""
    rows = x.shape[1]
    if epilogue_tile_m:
        back = [0] * rows
        for new, old in enumerate(shuffled_from(rows, epilogue_tile_m)):
            back[old] = new
        x = x[:, back]
    if not gated:
        return contiguous(x), None
    if epilogue_tile_m and reordered:
        return contiguous(x[:, 0::2]), contiguous(x[:, 1::2])
    return contiguous(x[:, :rows // 2]), contiguous(x[:, rows // 2:])


def rows_of_blocks(x: Any) -> Any:
    """[L, rows, K] of BlockMajorK's [L, blocks, rows, block]."""
    if len(x.shape) != 4:
        raise ValueError(f"the weights have {len(x.shape)} dimensions; accepted with weight_layout 2: [L, K / block, rows, block]")
    experts, blocks, rows, block = x.shape
    return contiguous(permute(x, (0, 2, 1, 3))).reshape(experts, rows, blocks * block)


def linear_stack(swizzled: Any, name: str, experts: int, rows: int, groups: int) -> Any:
    """uint8 [L, rows, groups] of block scales in the 128x4 layout, matrix after matrix, each padded to 128 rows."""
    padded = -(-rows // 128) * 128
    try:
        stack = linear_scales(swizzled, experts * padded, groups).reshape(experts, padded, groups)
        return contiguous(stack[:, :rows])
    except ValueError as problem:
        raise ValueError(f"{name}: {problem}") from None
