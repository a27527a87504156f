# SPDX-License-Identifier: Apache-2.0
"""What the families of fused layers have in common: the spec, the routing, scales of experts, inputs that are codes."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .. import _tensor, ops
from ..moe import FusedMoE
from ..specs import Matrices, MoeWeights, Spec, count, read_spec
from . import _values
from ._enums import ActivationType, RoutingMethodType
from ._layouts import bits, contiguous
from ._refusal import refuse

_ROUTINGS = ("softmax", "renormalize", "deepseek_v3", "llama4", "renormalize_naive", "topk", "sigmoid_renorm", "minimax2",
             "sigmoid", "topk_sigmoid")
_NUMBERS = ("num_experts", "top_k", "n_group", "topk_group", "intermediate_size", "local_expert_offset", "local_num_experts",
            "routed_scaling_factor", "routing_method_type", "activation_type", "norm_topk_prob")
# What the layer calls the tensors of a call, and what FlashInfer does.
_NAMES = {"hidden": "hidden_states", "logits": "routing_logits", "bias": "routing_bias", "topk_ids": "topk_ids",
          "topk_weights": "topk_ids' weights", "out": "output"}
_FLOATS = ("float32", "bfloat16")
_ACTIVATIONS = {0: "gelu", 2: "silu", 3: "swiglu", 4: "geglu", 6: "relu2", 8: "geglu_tanh", 9: "identity"}


@dataclass
class Problem:
    """The arguments that all families have."""

    num_experts: int
    top_k: int
    n_group: int | None
    topk_group: int | None
    intermediate_size: int
    local_expert_offset: int
    local_num_experts: int
    routed_scaling_factor: float | None
    routing_method_type: int
    activation_type: int
    do_finalize: bool
    routing_replay_out: Any
    output: Any
    norm_topk_prob: bool = True
    routing_logits: Any = None
    routing_bias: Any = None
    topk_ids: Any = None  # packed, or a pair (ids, weights): in place of the logits
    names: dict[str, str] = field(default_factory=dict)  # as _NAMES, where a function has others

    def spec(self, hidden: int, weights: str, inputs: str | None = None, **more: Any) -> Spec:
        if not self.do_finalize:
            refuse("do_finalize is False; accepted: True (FusedMoE with finalize=0 gives the unreduced rows)")
        if self.activation_type not in _ACTIVATIONS:
            refuse(f"activation_type is {self.activation_type}; accepted: "
                   + ", ".join(f"{n} ({ActivationType(n).name})" for n in _ACTIVATIONS))
        spec: dict[str, Any] = {
            "experts": self.num_experts, "top_k": self.top_k, "hidden": hidden, "inter": self.intermediate_size,
            "weights": weights, "act": _ACTIVATIONS[self.activation_type], "local_offset": self.local_expert_offset,
            "local_experts": self.local_num_experts, **more}
        if weights.startswith("fp8"):
            spec["fp8_f32_sums"] = 1  # Blackwell's sums of FP8 products; Hopper's own keep 14 bits
        if inputs is not None:
            spec["inputs"] = inputs
        if self.topk_ids is not None:
            return read_spec({**spec, "routed": 1})
        if not 0 <= self.routing_method_type < len(_ROUTINGS):
            refuse(f"routing_method_type is {self.routing_method_type}; accepted: 0 to {len(_ROUTINGS) - 1}")
        spec["routing"] = _ROUTINGS[self.routing_method_type]
        if self.n_group and self.n_group > 1:
            spec |= {"groups": self.n_group, "top_groups": count("topk_group", self.topk_group, 1, self.n_group)}
        if self.routed_scaling_factor is not None and self.routing_method_type in (2, 7):
            spec["routed_scale"] = self.routed_scaling_factor
        if self.routing_method_type == 6:
            spec["norm_topk"] = int(bool(self.norm_topk_prob))
        return read_spec(spec)

    def run(self, hidden: Callable[[], Any], layer: Callable[[], tuple[Spec, MoeWeights]], *of: Any) -> Any:
        """bfloat16 [T, H], in `output` if that is given. layer: makes the spec and the weights out of `of`, tensors (the first
        is gemm1_weights) and values, and of nothing else: a call that a CUDA graph captures takes what the last call made."""
        fused = self._layer(layer, of)
        return self._call(fused, hidden())

    def _layer(self, layer: Callable[[], tuple[Spec, MoeWeights]], of: tuple[Any, ...]) -> FusedMoE:
        first = of[0]
        if not is_cuda(first):
            return FusedMoE(*layer())
        key = (tuple(getattr(self, name) for name in _NUMBERS), self.topk_ids is None,
               *((x.data_ptr(), x._version, tuple(x.shape)) if _tensor.is_torch(x) else x for x in of))
        kept: _Prepared | None = getattr(first, "_sluice_prepared", None)
        if capturing():
            if kept is None or kept.key != key:
                refuse("the stream is capturing a CUDA graph and these weights have not been prepared; accepted: after a call "
                       "with the same tensors outside of the capture")
            kept.captured = True  # the graph reads its memory
            return kept.layer
        if kept is not None and kept.captured and kept.key == key:
            return kept.layer
        made = FusedMoE(*layer())
        first._sluice_prepared = _Prepared(key, made, [kept] if kept is not None and kept.captured else [])
        return made

    def _check(self, layer: FusedMoE, tensors: dict[str, Any]) -> None:
        """Refuses what the layer would, by the names that the caller knows."""
        spec, tokens = layer.spec, tensors["hidden"].shape[0]
        chosen = (tokens, spec.top_k)
        accepted: dict[str, tuple[Any, tuple[int, ...]]] = {
            "hidden": (spec.dtype, (tokens, spec.hidden)), "logits": (_FLOATS, (tokens, spec.experts)),
            "bias": (_FLOATS, (spec.experts,)), "topk_ids": ("int32", chosen), "topk_weights": (_FLOATS, chosen),
            "out": ("bfloat16", (tokens, spec.hidden))}
        for name, tensor in tensors.items():
            if tensor is not None:
                _tensor.read(tensor, {**_NAMES, **self.names}[name], *accepted[name], device=layer.device, write=name == "out")

    def _call(self, layer: FusedMoE, hidden: Any) -> Any:
        spec, tokens = layer.spec, hidden.shape[0]
        # FlashInfer's tests give Llama 4's routing a bias, which its kernels do not read.
        bias = None if self.routing_method_type == RoutingMethodType.Llama4 else self.routing_bias
        call: dict[str, Any] = {"logits": self.routing_logits, "bias": bias}
        if self.topk_ids is not None:
            pair = isinstance(self.topk_ids, (tuple, list))
            call = {"topk_ids": self.topk_ids[0], "topk_weights": self.topk_ids[1]} if pair else {"topk_ids": self.topk_ids}
        self._check(layer, {"hidden": hidden, **call, "out": self.output})
        replay = self.routing_replay_out
        if replay is not None:
            if len(replay.shape) != 2 or replay.shape[0] < tokens or replay.shape[1] != self.top_k:
                raise ValueError(f"routing_replay_out has shape {list(replay.shape)}; accepted: [{tokens} or more, {self.top_k}]")
            call["chosen_ids"] = _tensor.empty("int32", (tokens, self.top_k), hidden)
        if spec.dtype == "bfloat16":
            out = layer(hidden, out=self.output, **call)
        else:
            wide = layer(hidden, **call)
            out = self._narrow(wide)
        if replay is not None:
            replay[:tokens] = call["chosen_ids"]
        if is_cuda(out) and not capturing():  # the layer may go with the next call; its work must have passed
            import torch
            torch.cuda.current_stream(out.device).synchronize()
        return out

    def _narrow(self, wide: Any) -> Any:
        if _tensor.is_torch(wide):
            import torch
            return wide.to(torch.bfloat16) if self.output is None else self.output.copy_(wide)
        rounded = ops.quantize_weights(wide, "bf16", out=None if self.output is None else Matrices(self.output))
        return rounded.codes if self.output is not None else rounded.codes[0]


@dataclass
class _Prepared:
    """The layer of a call, kept with the tensor that was its gemm1_weights."""

    key: tuple[Any, ...]
    layer: FusedMoE
    before: list[_Prepared]  # those that graphs captured
    captured: bool = False


def is_cuda(x: Any) -> bool:
    return _tensor.is_torch(x) and bool(x.is_cuda)


def capturing() -> bool:
    import torch
    return bool(torch.cuda.is_current_stream_capturing())


def on_host(x: Any) -> Any:
    """The small tensors of a layer, which are read on the host."""
    return x.cpu() if _tensor.is_torch(x) else x


def stack(name: str, weights: Any, shape: tuple[int, ...]) -> Any:
    if tuple(weights.shape) != shape:
        raise ValueError(f"{name} has shape {list(weights.shape)}; accepted: {list(shape)}")
    return weights


def check_activation(p: Problem, vectors: dict[str, Any]) -> None:
    """Raises ValueError if any of what SwiGLU alone takes is given with another activation."""
    for name, vector in vectors.items():
        if vector is not None and p.activation_type != ActivationType.Swiglu:
            raise ValueError(f"gemm1_{name} is given with activation_type {int(p.activation_type)}; accepted: None, or with "
                             "ActivationType.Swiglu (3)")


def extras(p: Problem, **vectors: Any) -> dict[str, Any]:
    """gemm1_alpha, gemm1_beta and gemm1_clamp_limit of the local experts, those that are given."""
    check_activation(p, vectors)
    out = {}
    for name, vector in vectors.items():
        if vector is not None:
            _tensor.read(vector, f"gemm1_{name}", "float32", (p.local_num_experts,), device=None)
            out["limit" if name == "clamp_limit" else name] = on_host(vector)
    return out


@dataclass
class Calibrated:
    """FlashInfer's scalars of each expert in a layer's terms. Its first product writes up * act(gate) * output1 in the units
    of its second; a layer multiplies up and gate with one decode factor each, and divides by one factor for all experts."""

    up: Any  # [L], decode factors of the matrices
    gate: Any
    down: Any  # with input_scale2 taken out
    input_scale2: float
    beta: Any  # multiplies gemm1_beta

    @classmethod
    def read(cls, p: Problem, output1: Any, output1_gate: Any, output2: Any, names: tuple[str, str, str], gated: bool,
             limited: bool) -> Calibrated:
        for name, vector in zip(names, (output1, output1_gate, output2)):
            if vector is None:
                raise ValueError(f"{name} is None; accepted: float32 [{p.local_num_experts}]")
            _tensor.read(vector, name, "float32", (p.local_num_experts,), device=None)
        if gated and not limited:  # each expert with its own calibration: it goes with the up half
            return cls(contiguous(output1), contiguous(output1_gate), contiguous(output2), 1.0, output1)
        if ActivationType.Identity == p.activation_type:
            return cls(contiguous(output1), None, contiguous(output2), 1.0, None)
        encode = [float(v) for v in on_host(output1 / output1_gate if gated else output1)]
        if any(abs(e - encode[0]) > 1e-6 * abs(encode[0]) for e in encode):
            refuse(f"{names[0]} calibrates the experts' second inputs differently, by factors from {min(encode):g} to "
                   f"{max(encode):g}; accepted with gemm1_clamp_limit and without a gate: one factor for all experts")
        gate = contiguous(output1_gate) if gated else None
        return cls(contiguous(output1_gate), gate, contiguous(output2 * encode[0]), 1 / encode[0], output1_gate)


def coded_hidden(values: Any, coding: str, dtype: str) -> Any:
    """Hidden states of `dtype` that a layer's inputs round to the very values [T, H]: they came as codes and scales, and
    layers round their inputs themselves."""
    if _tensor.is_torch(values):
        import torch
        hidden = values.to(getattr(torch, dtype))
    elif dtype == "bfloat16":
        hidden = ops.quantize_weights(contiguous(values), "bf16").codes[0]
    else:
        hidden = contiguous(values)
    calibrated = ops.CODINGS[coding].calibrated
    scale = None
    if calibrated:
        scale = _values.filled((1,), 1, values)
    q = ops.quantize(hidden, coding, input_scale=scale)
    rounded = _values.e2m1(bits(q.codes)) if ops.CODINGS[coding].four_bit else _values.e4m3(bits(q.codes))
    if q.scales is not None:
        kind = ops.CODINGS[coding].scale_type
        scales = q.scales if kind == "float32" else (_values.e8m0 if kind == "float8_e8m0fnu" else _values.e4m3)(bits(q.scales))
        rounded = _values.by_groups(rounded, scales)
    if q.row_scales is not None:
        rounded = rounded * q.row_scales[:, None]
    if is_cuda(values) and capturing():
        return hidden  # nothing can be read; the call that prepared the weights looked at its own
    # Scales of rows and of groups of 128 columns are float32 and made anew, to a unit or two of their last place.
    wrong = (abs(rounded - values) > 2.0**-21 * abs(values)) | (values != values)
    if bool(wrong.any()):
        rows = int(wrong.any(1).sum())
        refuse(f"hidden_states has {rows} rows of {values.shape[0]} whose codes and scales rounding to {coding} does not give "
               "back (a scale that is larger than its group's largest value needs, as nvfp4_4over6 chooses some, or NaN); "
               "accepted: what the quantisers here and FlashInfer's give without it, or bfloat16 hidden states with "
               "sluice_moe.FusedMoE")
    return hidden
