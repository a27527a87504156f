# SPDX-License-Identifier: Apache-2.0
"""Sluice for Python: fused mixture-of-experts layers on tensors of any library, and whole models.

FusedMoE is one layer, Engine a checkpoint that generates text. Tensors may be torch's, numpy's, CuPy's, JAX's or plain
buffers. A call reads and writes them where they lie; FusedMoE and Gemm keep a copy of their weights, in the layout that
their kernels read. Importing this loads no library, touches no GPU and imports neither torch nor numpy.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each name is; looked up at its first use, so that importing the package stays cheap.
_WHERE = {
    **dict.fromkeys(("Error", "InvalidArgument", "BadFile", "NotFound", "Unsupported", "OutOfMemory",
                     "InputOutputError", "CudaError", "Busy", "LibraryNotFound"), "errors"),
    **dict.fromkeys(("Spec", "Format", "Matrices", "MoeWeights", "read_spec", "format_info"), "specs"),
    **dict.fromkeys(("FusedMoE", "explain", "prepared_bytes", "shard"), "moe"),
    **dict.fromkeys(("FourOverSix", "Quantized", "Gemm", "quantize", "dequantize", "quantize_weights",
                     "dequantize_weights", "gemm", "route"), "ops"),
    "Engine": "engine",
}
__all__ = [*_WHERE, "library_version", "__version__"]

if TYPE_CHECKING:
    from .engine import Engine as Engine
    from .errors import (
        BadFile as BadFile, Busy as Busy, CudaError as CudaError, Error as Error, InputOutputError as InputOutputError,
        InvalidArgument as InvalidArgument, LibraryNotFound as LibraryNotFound, NotFound as NotFound,
        OutOfMemory as OutOfMemory, Unsupported as Unsupported,
    )
    from .moe import FusedMoE as FusedMoE, explain as explain, prepared_bytes as prepared_bytes, shard as shard
    from .ops import (
        FourOverSix as FourOverSix, Gemm as Gemm, Quantized as Quantized, dequantize as dequantize,
        dequantize_weights as dequantize_weights, gemm as gemm, quantize as quantize, quantize_weights as quantize_weights,
        route as route,
    )
    from .specs import (
        Format as Format, Matrices as Matrices, MoeWeights as MoeWeights, Spec as Spec, format_info as format_info,
        read_spec as read_spec,
    )


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'sluice_moe' has no attribute {name!r}")
    import importlib
    value = getattr(importlib.import_module("." + _WHERE[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def library_version() -> str:
    """The version of libsluice.so that is in use, "0.1.0"."""
    from . import _library
    return _library.version()
