# SPDX-License-Identifier: Apache-2.0
"""Arguments of the fused layers by their names, before anything looks at them."""
from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from .. import _tensor
from ..specs import count

Function = TypeVar("Function", bound=Callable[..., Any])

# Tensors, and how many dimensions they may have; (): any.
_TENSORS: dict[str, tuple[int, ...]] = {
    "routing_logits": (2,), "routing_bias": (1,), "hidden_states": (2,), "hidden_states_scale": (1, 2), "gemm1_weights": (3, 4),
    "gemm2_weights": (3, 4), "gemm1_weights_scale": (), "gemm2_weights_scale": (), "gemm1_bias": (2,), "gemm2_bias": (2,),
    "gemm1_alpha": (1,), "gemm1_beta": (1,), "gemm1_clamp_limit": (1,), "output1_scales_scalar": (1,),
    "output1_scales_gate_scalar": (1,), "output2_scales_scalar": (1,), "output1_scale_scalar": (1,),
    "output1_scale_gate_scalar": (1,), "output2_scale_scalar": (1,), "per_token_scale": (1,), "routing_replay_out": (2,),
    "output": (2,), "topk_ids": (2,), "input": (2,), "token_selected_experts": (2,), "token_final_scales": (2,),
    "fc1_expert_weights": (3,), "fc2_expert_weights": (3,), "input_sf": (), "swiglu_alpha": (1,), "swiglu_beta": (1,),
    "swiglu_limit": (1,),
}
_NEEDED = ("routing_logits", "hidden_states", "gemm1_weights", "gemm2_weights", "gemm1_weights_scale", "gemm2_weights_scale",
           "topk_ids", "input", "token_selected_experts", "token_final_scales", "fc1_expert_weights", "fc2_expert_weights")
_COUNTS = ("num_experts", "top_k", "intermediate_size", "local_num_experts", "tp_size", "ep_size", "cluster_size")
_NUMBERS = ("local_expert_offset", "routing_method_type", "activation_type", "weight_layout", "fp8_quantization_type",
            "tp_rank", "ep_rank", "cluster_rank")


def _check_tensor(name: str, tensor: Any, dimensions: tuple[int, ...]) -> None:
    numpy = sys.modules.get("numpy")
    if not _tensor.is_torch(tensor) and not (numpy is not None and isinstance(tensor, numpy.ndarray)):
        raise TypeError(f"{name} is {type(tensor).__name__}; accepted: torch.Tensor, numpy.ndarray")
    if dimensions and len(tensor.shape) not in dimensions:
        raise ValueError(f"{name} has shape {list(tensor.shape)}; accepted: {' or '.join(str(d) for d in dimensions)} dimensions")


def checked(function: Function) -> Function:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        given = signature.bind(*arguments, **named).arguments
        for name, value in given.items():
            if name == "topk_ids" and isinstance(value, (tuple, list)):
                if len(value) != 2:
                    raise ValueError(f"topk_ids has {len(value)} elements; accepted: a tensor of packed ids, or (ids, weights)")
                for part in value:
                    _check_tensor(name, part, (2,))
            elif name in _TENSORS and (value is not None or name in _NEEDED):
                _check_tensor(name, value, _TENSORS[name])
            elif name == "quant_scales" and value is not None:
                if not isinstance(value, (tuple, list)):
                    raise TypeError(f"quant_scales is {type(value).__name__}; accepted: None, or a list of tensors")
                for part in value:
                    _check_tensor(name, part, ())
            elif name in _COUNTS or name in _NUMBERS:
                count(name, value, 1 if name in _COUNTS else 0, 2**31 - 1)
            elif name in ("n_group", "topk_group", "num_fused_shared_experts", "valid_hidden_size",
                          "valid_intermediate_size") and value is not None:
                count(name, value, 0, 2**31 - 1)
        return function(*arguments, **named)

    return call  # type: ignore[return-value]
