# SPDX-License-Identifier: Apache-2.0
"""The layer's operations as torch.library custom operators: torch.compile traces through them without a graph break.

    layer = sluice_moe.FusedMoE(spec, weights)
    y = torch_ops.Moe(layer)(hidden, logits)                 # a torch.nn.Module
    y = torch.ops.sluice.moe(torch_ops.register(layer), hidden, logits)

An operator names its layer by an integer, as a traced graph can hold no other objects of Python; the layer must live as
long as the graph. torch.ops.sluice.moe, .gemm and .quantize give new tensors, .moe_out and .gemm_out write theirs. On a GPU
they are enqueued on torch's current stream and take their workspace from torch's allocator, so CUDA graphs capture them.
"""
import itertools
import weakref
from typing import Any, Optional, Tuple

try:
    import torch
    from torch import Tensor
except ImportError as problem:
    raise ImportError("sluice_moe.torch_ops needs torch 2.4 or newer, which is not installed; the rest of sluice_moe "
                      "works without it") from problem

from . import ops
from .moe import FusedMoE
from .ops import CODINGS, FourOverSix, Gemm, Quantized

_objects: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def register(layer: Any) -> int:
    """The number by which operators name a FusedMoE or a Gemm; the same one every time."""
    if not isinstance(layer, (FusedMoE, Gemm)):
        raise TypeError(f"layer is {type(layer).__name__}; accepted: FusedMoE, Gemm")
    number: int | None = getattr(layer, "_torch_number", None)
    if number is None or _objects.get(number) is not layer:  # copy.copy() takes the original's number along
        number = next(_numbers)
        setattr(layer, "_torch_number", number)
        _objects[number] = layer
    return number


def _find(number: int, kind: type) -> Any:
    found = _objects.get(number)
    if not isinstance(found, kind):
        raise ValueError(f"{number} names no living {kind.__name__}; accepted: what sluice_moe.torch_ops.register() gave, "
                         "while the object lives")
    return found


def _dtype(name: str) -> torch.dtype:
    return getattr(torch, name, torch.uint8)  # float8_e8m0fnu is torch 2.7's


@torch.library.custom_op("sluice::moe", mutates_args=())
def moe(layer: int, hidden: Tensor, logits: Optional[Tensor] = None, bias: Optional[Tensor] = None,
        topk_ids: Optional[Tensor] = None, topk_weights: Optional[Tensor] = None) -> Tensor:
    return _find(layer, FusedMoE)(hidden, logits, bias=bias, topk_ids=topk_ids, topk_weights=topk_weights)


@moe.register_fake
def _(layer: int, hidden: Tensor, logits: Optional[Tensor] = None, bias: Optional[Tensor] = None,
      topk_ids: Optional[Tensor] = None, topk_weights: Optional[Tensor] = None) -> Tensor:
    spec = _find(layer, FusedMoE).spec
    shape = (hidden.shape[0], spec.hidden) if spec.finalize else (hidden.shape[0], spec.top_k, spec.hidden)
    return hidden.new_empty(shape, dtype=_dtype(spec.dtype))


@torch.library.custom_op("sluice::moe_out", mutates_args=("out", "workspace"))
def moe_out(layer: int, hidden: Tensor, out: Tensor, workspace: Optional[Tensor] = None, logits: Optional[Tensor] = None,
            bias: Optional[Tensor] = None, topk_ids: Optional[Tensor] = None,
            topk_weights: Optional[Tensor] = None) -> None:
    _find(layer, FusedMoE)(hidden, logits, bias=bias, topk_ids=topk_ids, topk_weights=topk_weights, out=out,
                           workspace=workspace)


@moe_out.register_fake
def _(layer: int, hidden: Tensor, out: Tensor, workspace: Optional[Tensor] = None, logits: Optional[Tensor] = None,
      bias: Optional[Tensor] = None, topk_ids: Optional[Tensor] = None, topk_weights: Optional[Tensor] = None) -> None:
    return None


@torch.library.custom_op("sluice::gemm", mutates_args=())
def gemm(matrix: int, x: Tensor) -> Tensor:
    return _find(matrix, Gemm)(x)


@gemm.register_fake
def _(matrix: int, x: Tensor) -> Tensor:
    found = _find(matrix, Gemm)
    return x.new_empty((x.shape[0], found.rows), dtype=_dtype(found.dtype))


@torch.library.custom_op("sluice::gemm_out", mutates_args=("out", "workspace"))
def gemm_out(matrix: int, x: Tensor, out: Tensor, workspace: Optional[Tensor] = None) -> None:
    _find(matrix, Gemm)(x, out=out, workspace=workspace)


@gemm_out.register_fake
def _(matrix: int, x: Tensor, out: Tensor, workspace: Optional[Tensor] = None) -> None:
    return None


@torch.library.custom_op("sluice::quantize", mutates_args=())
def quantize(x: Tensor, coding: str, input_scale: Optional[Tensor] = None,
             layout: Optional[str] = None, four_over_six: Optional[str] = None, e4m3_max: int = 448,
             fast_error: bool = False) -> Tuple[Tensor, Tensor, Tensor]:
    """Codes, block scales and row scales; an empty tensor where a coding has none. layout None: linear (torch 2.4 takes no
    text as a default). four_over_six: the error of a FourOverSix, mae or mse, whose other parts follow; None: off."""
    if four_over_six is None and (e4m3_max != 448 or fast_error):
        raise ValueError("e4m3_max or fast_error are given; accepted with four_over_six")
    how = None if four_over_six is None else FourOverSix(e4m3_max, four_over_six, fast_error)
    q: Quantized = ops.quantize(x, coding, input_scale=input_scale, layout=layout or "linear", four_over_six=how)
    none = [x.new_empty((0,)) for _ in range(2)]
    return (q.codes, none[0] if q.scales is None else q.scales, none[1] if q.row_scales is None else q.row_scales)


@quantize.register_fake
def _(x: Tensor, coding: str, input_scale: Optional[Tensor] = None, layout: Optional[str] = None,
      four_over_six: Optional[str] = None, e4m3_max: int = 448, fast_error: bool = False) -> Tuple[Tensor, Tensor, Tensor]:
    layout = layout or "linear"
    c = ops._coding(coding, layout)
    rows, cols = x.shape
    codes = x.new_empty((rows, (cols + 1) // 2 if c.four_bit else cols),
                        dtype=torch.uint8 if c.four_bit else torch.float8_e4m3fn)
    scales = x.new_empty((0,)) if not c.group else x.new_empty(ops.scale_shape(coding, layout, rows, cols),
                                                               dtype=_dtype(CODINGS[coding].scale_type))
    return codes, scales, x.new_empty((rows,), dtype=torch.float32) if c.row_scales else x.new_empty((0,))


class Moe(torch.nn.Module):
    """A FusedMoE as a module without parameters: forward(hidden, logits), or (hidden, topk_ids=, topk_weights=)."""

    def __init__(self, layer: FusedMoE) -> None:
        super().__init__()
        self.layer = layer
        self.number = register(layer)

    def forward(self, hidden: Tensor, logits: Optional[Tensor] = None, bias: Optional[Tensor] = None,
                topk_ids: Optional[Tensor] = None, topk_weights: Optional[Tensor] = None) -> Tensor:
        return torch.ops.sluice.moe(self.number, hidden, logits, bias, topk_ids, topk_weights)
