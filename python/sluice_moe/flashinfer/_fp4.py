# SPDX-License-Identifier: Apache-2.0
"""FP4 layers: NVFP4 with NVFP4 inputs, MXFP4 with MXFP8 or bfloat16 inputs. Weights are always shuffled."""
from __future__ import annotations

from typing import Any

from .. import _tensor
from ..specs import Matrices, MoeWeights, Spec
from . import _values
from ._arguments import checked
from ._enums import SfLayout
from ._fp8 import check_sizes
from ._layouts import bits, canonical, linear_stack
from ._moe import Calibrated, Problem, coded_hidden, extras, on_host, stack
from ._quantisers import refuse_4over6
from ._refusal import refuse, refuse_given

_SCALARS = ("output1_scale_scalar", "output1_scale_gate_scalar", "output2_scale_scalar")


Pair = tuple[Any, Any]


def _matrices(p: Problem, spec: Spec, gemm1: Pair, gemm2: Pair, group: int) -> tuple[Pair, Pair, Pair]:
    """(codes, linear scales) of up, gate and down."""
    hidden, inter, experts = spec.hidden, p.intermediate_size, p.local_num_experts
    rows = inter * (1 + spec.gated)
    w1 = canonical(stack("gemm1_weights", bits(gemm1[0]), (experts, rows, hidden // 2)), spec.gated, 128)
    s1 = canonical(linear_stack(gemm1[1], "gemm1_weights_scale", experts, rows, hidden // group), spec.gated, 128)
    w2, _ = canonical(stack("gemm2_weights", bits(gemm2[0]), (experts, hidden, inter // 2)), False, 128)
    s2, _ = canonical(linear_stack(gemm2[1], "gemm2_weights_scale", experts, hidden, inter // group), False, 128)
    return (w1[0], s1[0]), (w1[1], s1[1]), (w2, s2)


def _biases(p: Problem, spec: Spec, gemm1_bias: Any, gemm2_bias: Any, c: Calibrated | None) -> dict[str, Any]:
    """In the layer's units: with scalars of the experts FlashInfer takes biases of the products before they are scaled."""
    if gemm1_bias is None and gemm2_bias is None:
        return {}
    rows, experts = p.intermediate_size * (1 + spec.gated), p.local_num_experts
    if gemm1_bias is None:
        gemm1_bias = _values.filled((experts, rows), 0, gemm2_bias)
    if gemm2_bias is None:
        gemm2_bias = _values.filled((experts, spec.hidden), 0, gemm1_bias)
    stack("gemm1_bias", gemm1_bias, (experts, rows))
    stack("gemm2_bias", gemm2_bias, (experts, spec.hidden))
    up, gate = canonical(gemm1_bias[:, :, None], spec.gated, 128)
    down, _ = canonical(gemm2_bias[:, :, None], False, 128)
    out = {"bias_up": up[:, :, 0], "bias_down": down[:, :, 0]}
    if gate is not None:
        out["bias_gate"] = gate[:, :, 0]
    if c is not None:
        factors = {"bias_up": c.up, "bias_gate": c.gate, "bias_down": c.down * c.input_scale2}
        out = {name: bias * factors[name][:, None] for name, bias in out.items()}
    return {name: on_host(bias) for name, bias in out.items()}


def _nvfp4(p: Problem, hidden_states: Any, hidden_scale: Any, gemm1: tuple[Any, Any], gemm2: tuple[Any, Any],
           scalars: tuple[Any, Any, Any], biases: tuple[Any, Any], vectors: dict[str, Any], per_token_scale: Any) -> Any:
    refuse_4over6()
    tokens, hidden = hidden_states.shape[0], 2 * hidden_states.shape[1]
    token = per_token_scale is not None
    coding, dtype = ("nvfp4_token", "float32") if token else ("nvfp4", "bfloat16")

    def layer() -> tuple[Spec, MoeWeights]:
        more = extras(p, **vectors)
        spec = p.spec(hidden, "nvfp4", coding, dtype=dtype, act_params=int(bool(more)),
                      bias=int(any(b is not None for b in biases)))
        limited = "limit" in more
        if token:  # nothing is calibrated: the scalars are the matrices' own
            for name, vector in zip(_SCALARS, scalars):
                _tensor.read(vector, name, "float32", (p.local_num_experts,), device=None)
            c = Calibrated(scalars[0] if spec.gated else scalars[1], scalars[1], scalars[2], 1.0, scalars[0])
            if limited and bool((scalars[0] != scalars[1]).any()):
                refuse("output1_scale_scalar and output1_scale_gate_scalar differ; accepted with gemm1_clamp_limit and "
                       "per_token_scale: the same")
        else:
            c = Calibrated.read(p, *scalars, _SCALARS, spec.gated, limited)
        if "limit" in more:
            more["limit"] = more["limit"] * on_host(c.gate)
        if "beta" in more:
            more["beta"] = more["beta"] * on_host(c.beta)
        up, gate, down = _matrices(p, spec, gemm1, gemm2, 16)
        return spec, MoeWeights(
            up=Matrices(*up, c.up), gate=None if gate[0] is None else Matrices(*gate, c.gate), down=Matrices(*down, c.down),
            input_scale1=1.0, input_scale2=c.input_scale2, **_biases(p, spec, *biases, c), **more)

    def coded() -> Any:
        scales = stack("hidden_states_scale", bits(hidden_scale).reshape(tokens, -1), (tokens, hidden // 16))
        values = _values.by_groups(_values.e2m1(bits(hidden_states)), _values.e4m3(scales))
        if token:
            values = values * stack("per_token_scale", per_token_scale, (tokens,))[:, None]
        return coded_hidden(values, coding, dtype)

    return p.run(coded, layer, *gemm1, *gemm2, *scalars, *biases, *vectors.values(), coding)


def _mxfp4(p: Problem, hidden_states: Any, hidden_scale: Any, gemm1: tuple[Any, Any], gemm2: tuple[Any, Any],
           scalars: tuple[Any, Any, Any], biases: tuple[Any, Any], vectors: dict[str, Any], per_token_scale: Any) -> Any:
    refuse_given(per_token_scale=per_token_scale)
    tokens, hidden = hidden_states.shape

    def layer() -> tuple[Spec, MoeWeights]:
        for name, scalar in zip(_SCALARS, scalars):
            if scalar is not None and bool((scalar != 1).any()):
                refuse(f"{name} is given with MXFP4 weights; accepted: None, or ones")
        more = extras(p, **vectors)
        inputs = "plain" if hidden_scale is None else "mxfp8"
        spec = p.spec(hidden, "mxfp4", inputs, act_params=int(bool(more)), bias=int(any(b is not None for b in biases)))
        up, gate, down = _matrices(p, spec, gemm1, gemm2, 32)
        return spec, MoeWeights(up=Matrices(*up), gate=None if gate[0] is None else Matrices(*gate), down=Matrices(*down),
                                **_biases(p, spec, *biases, None), **more)

    def coded() -> Any:
        if hidden_scale is None:
            return hidden_states
        scales = stack("hidden_states_scale", bits(hidden_scale).reshape(tokens, -1), (tokens, hidden // 32))
        return coded_hidden(_values.by_groups(_values.e4m3(bits(hidden_states)), _values.e8m0(scales)), "mxfp8", "bfloat16")

    return p.run(coded, layer, *gemm1, *gemm2, *scalars, *biases, *vectors.values(), hidden_scale is None)


def _run(p: Problem, hidden_states: Any, hidden_scale: Any, gemm1: tuple[Any, Any], gemm2: tuple[Any, Any],
         scalars: tuple[Any, Any, Any], biases: tuple[Any, Any], vectors: dict[str, Any], per_token_scale: Any,
         num_fused_shared_experts: int | None, valid: tuple[int | None, int | None], scale_layout: Any) -> list[Any]:
    if num_fused_shared_experts:
        refuse(f"num_fused_shared_experts is {num_fused_shared_experts}; accepted: None, 0")
    if scale_layout not in (None, SfLayout.layout_linear, SfLayout.layout_linear.value):
        refuse(f"hidden_states_scale_layout is {scale_layout!r}; accepted: None, SfLayout.layout_linear")
    codes, scales = (_elements(x) for x in gemm1)
    if scales == 0 or codes == 0:
        raise ValueError("gemm1_weights or their scales are empty; accepted: those of at least one expert")
    # Scales of small matrices do not tell the format: they are padding for the most part.
    columns, packed = hidden_states.shape[1], gemm1[0].shape[2]
    nvfp4 = columns == packed
    if not nvfp4 and columns != 2 * packed:
        raise ValueError(f"hidden_states has {columns} columns and gemm1_weights {packed} bytes per row; accepted: as many bytes "
                         "with NVFP4 weights, twice as many columns with MXFP4")
    check_sizes("valid_hidden_size", valid[0], 2 * packed)
    check_sizes("valid_intermediate_size", valid[1], p.intermediate_size)
    if nvfp4 and hidden_scale is None:
        raise ValueError("hidden_states_scale is None; NVFP4 weights need NVFP4 hidden states with their scales")
    family = _nvfp4 if nvfp4 else _mxfp4
    return [family(p, hidden_states, hidden_scale, gemm1, gemm2, scalars, biases, vectors, per_token_scale)]


def _elements(x: Any) -> int:
    count = 1
    for size in x.shape:
        count *= int(size)
    return count


@checked
def trtllm_fp4_block_scale_moe(
        routing_logits: Any, routing_bias: Any, hidden_states: Any, hidden_states_scale: Any, gemm1_weights: Any,
        gemm1_weights_scale: Any, gemm1_bias: Any, gemm1_alpha: Any, gemm1_beta: Any, gemm1_clamp_limit: Any,
        gemm2_weights: Any, gemm2_weights_scale: Any, gemm2_bias: Any, output1_scale_scalar: Any,
        output1_scale_gate_scalar: Any, output2_scale_scalar: Any, num_experts: int, top_k: int, n_group: int | None,
        topk_group: int | None, intermediate_size: int, local_expert_offset: int, local_num_experts: int,
        routed_scaling_factor: float | None, routing_method_type: int = 0, do_finalize: bool = True,
        enable_pdl: bool | None = None, activation_type: int = 3, per_token_scale: Any = None, output: Any = None,
        tune_max_num_tokens: int = 8192, norm_topk_prob: bool = True, routing_replay_out: Any = None,
        num_fused_shared_experts: int | None = None, valid_hidden_size: int | None = None,
        valid_intermediate_size: int | None = None, hidden_states_scale_layout: Any = None) -> list[Any]:
    """[bfloat16 [T, H]]. Weights uint8 [L, 2 I, H / 2], the up half first, and [L, H, I / 2], scales in the 128x4 layout,
    shuffled, as are the biases float32 [L, 2 I] and [L, H]. The columns of hidden_states tell the format: as many as bytes in
    a row of gemm1_weights, or twice as many.
    NVFP4 (16 columns share a scale, e4m3): hidden_states uint8 [T, H / 2] with linear scales e4m3 [T, H / 16]; the scalars
    float32 [L]; biases, beta and limit divided by them, as FlashInfer has them. per_token_scale float32 [T]: each row's own
    global scale, and the scalars are those of the weights alone; rounded once at the end.
    MXFP4 (32 columns, UE8M0): hidden_states e4m3 [T, H] with linear scales UE8M0 [T, H / 32], or bfloat16 and None."""
    p = Problem(num_experts, top_k, n_group, topk_group, intermediate_size, local_expert_offset, local_num_experts,
                routed_scaling_factor, routing_method_type, activation_type, do_finalize, routing_replay_out, output,
                norm_topk_prob, routing_logits, routing_bias)
    return _run(p, hidden_states, hidden_states_scale, (gemm1_weights, gemm1_weights_scale),
                (gemm2_weights, gemm2_weights_scale), (output1_scale_scalar, output1_scale_gate_scalar, output2_scale_scalar),
                (gemm1_bias, gemm2_bias), {"alpha": gemm1_alpha, "beta": gemm1_beta, "clamp_limit": gemm1_clamp_limit},
                per_token_scale, num_fused_shared_experts, (valid_hidden_size, valid_intermediate_size),
                hidden_states_scale_layout)


@checked
def trtllm_fp4_block_scale_routed_moe(
        topk_ids: Any, routing_bias: Any, hidden_states: Any, hidden_states_scale: Any, gemm1_weights: Any,
        gemm1_weights_scale: Any, gemm1_bias: Any, gemm1_alpha: Any, gemm1_beta: Any, gemm1_clamp_limit: Any,
        gemm2_weights: Any, gemm2_weights_scale: Any, gemm2_bias: Any, output1_scale_scalar: Any,
        output1_scale_gate_scalar: Any, output2_scale_scalar: Any, num_experts: int, top_k: int, n_group: int | None,
        topk_group: int | None, intermediate_size: int, local_expert_offset: int, local_num_experts: int,
        routed_scaling_factor: float | None, routing_method_type: int = 0, do_finalize: bool = True,
        enable_pdl: bool | None = None, activation_type: int = 3, per_token_scale: Any = None, output: Any = None,
        tune_max_num_tokens: int = 8192, gemm1_lora_delta: Any = None, valid_hidden_size: int | None = None,
        valid_intermediate_size: int | None = None, num_fused_shared_experts: int | None = None,
        hidden_states_scale_layout: Any = None) -> list[Any]:
    """The same with given routing: int32 [T, K] packed (id << 16 | bfloat16 weight), or a pair (ids, weights)."""
    refuse_given(routing_bias=routing_bias, gemm1_lora_delta=gemm1_lora_delta)
    p = Problem(num_experts, top_k, n_group, topk_group, intermediate_size, local_expert_offset, local_num_experts,
                routed_scaling_factor, routing_method_type, activation_type, do_finalize, None, output, topk_ids=topk_ids)
    return _run(p, hidden_states, hidden_states_scale, (gemm1_weights, gemm1_weights_scale),
                (gemm2_weights, gemm2_weights_scale), (output1_scale_scalar, output1_scale_gate_scalar, output2_scale_scalar),
                (gemm1_bias, gemm2_bias), {"alpha": gemm1_alpha, "beta": gemm1_beta, "clamp_limit": gemm1_clamp_limit},
                per_token_scale, num_fused_shared_experts, (valid_hidden_size, valid_intermediate_size),
                hidden_states_scale_layout)
