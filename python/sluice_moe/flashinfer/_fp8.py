# SPDX-License-Identifier: Apache-2.0
"""FP8 layers: one scale per matrix, DeepSeek's blocks of 128, MXFP8."""
from __future__ import annotations

from typing import Any

from ..specs import Matrices, MoeWeights, Spec
from . import _values
from ._arguments import checked
from ._enums import Fp8QuantizationType, WeightLayout
from ._layouts import bits, canonical, contiguous, linear_stack, permute, rows_of_blocks
from ._moe import Calibrated, Problem, check_activation, coded_hidden, extras, stack
from ._refusal import refuse, refuse_given

_SCALARS = ("output1_scales_scalar", "output1_scales_gate_scalar", "output2_scales_scalar")


def check_sizes(name: str, given: int | None, size: int) -> None:
    if given is not None and given != size:
        refuse(f"{name} is {given}; accepted: None, or all of {size}")


def _per_tensor(p: Problem, hidden_states: Any, gemm1_weights: Any, scalars: tuple[Any, Any, Any], gemm2_weights: Any,
                use_routing_scales_on_input: bool, gemm1_clamp_limit: Any) -> Any:
    refuse_given(gemm1_clamp_limit=gemm1_clamp_limit)  # of SwigluStep, which is refused, too
    more = {}
    if use_routing_scales_on_input:
        if p.topk_ids is not None or p.routing_method_type != 3:
            refuse("use_routing_scales_on_input is True; accepted: False, or with routing_method_type 3 (Llama4)")
        more["weight_on_input"] = 1

    def layer() -> tuple[Spec, MoeWeights]:
        hidden, inter, experts = hidden_states.shape[1], p.intermediate_size, p.local_num_experts
        spec = p.spec(hidden, "fp8_tensor", "fp8_static", **more)
        c = Calibrated.read(p, *scalars, _SCALARS, spec.gated, False)
        up, gate = canonical(stack("gemm1_weights", bits(gemm1_weights), (experts, inter * (1 + spec.gated), hidden)),
                             spec.gated, 128)
        down, _ = canonical(stack("gemm2_weights", bits(gemm2_weights), (experts, hidden, inter)), False, 128)
        return spec, MoeWeights(up=Matrices(up, c.up), gate=None if gate is None else Matrices(gate, c.gate),
                                down=Matrices(down, c.down), input_scale1=1.0, input_scale2=c.input_scale2)

    return p.run(lambda: coded_hidden(_values.e4m3(bits(hidden_states)), "fp8_static", "bfloat16"), layer, gemm1_weights,
                 gemm2_weights, *scalars, use_routing_scales_on_input)


@checked
def trtllm_fp8_per_tensor_scale_moe(
        routing_logits: Any, routing_bias: Any, hidden_states: Any, gemm1_weights: Any, output1_scales_scalar: Any,
        output1_scales_gate_scalar: Any, gemm2_weights: Any, output2_scales_scalar: Any, num_experts: int, top_k: int,
        n_group: int | None, topk_group: int | None, intermediate_size: int, local_expert_offset: int, local_num_experts: int,
        routed_scaling_factor: float | None, use_routing_scales_on_input: bool, routing_method_type: int = 0,
        do_finalize: bool = True, enable_pdl: bool | None = None, tune_max_num_tokens: int = 8192, activation_type: int = 3,
        norm_topk_prob: bool = True, routing_replay_out: Any = None, output: Any = None, gemm1_clamp_limit: Any = None) -> Any:
    """bfloat16 [T, H]. hidden_states e4m3 [T, H]; gemm1_weights e4m3 [L, 2 I, H] with the up half first and gemm2_weights
    [L, H, I], shuffled; the scalars float32 [L]."""
    p = Problem(num_experts, top_k, n_group, topk_group, intermediate_size, local_expert_offset, local_num_experts,
                routed_scaling_factor, routing_method_type, activation_type, do_finalize, routing_replay_out, output,
                norm_topk_prob, routing_logits, routing_bias)
    return _per_tensor(p, hidden_states, gemm1_weights,
                       (output1_scales_scalar, output1_scales_gate_scalar, output2_scales_scalar), gemm2_weights,
                       use_routing_scales_on_input, gemm1_clamp_limit)


@checked
def trtllm_fp8_per_tensor_scale_routed_moe(
        topk_ids: Any, routing_bias: Any, hidden_states: Any, gemm1_weights: Any, output1_scales_scalar: Any,
        output1_scales_gate_scalar: Any, gemm2_weights: Any, output2_scales_scalar: Any, num_experts: int, top_k: int,
        n_group: int | None, topk_group: int | None, intermediate_size: int, local_expert_offset: int, local_num_experts: int,
        routed_scaling_factor: float | None, use_routing_scales_on_input: bool, routing_method_type: int = 0,
        do_finalize: bool = True, enable_pdl: bool | None = None, tune_max_num_tokens: int = 8192, activation_type: int = 3,
        routing_replay_out: Any = None, output: Any = None, gemm1_clamp_limit: Any = None) -> Any:
    """The same with given routing: int32 [T, K] packed (id << 16 | bfloat16 weight), or a pair (ids, weights)."""
    refuse_given(routing_bias=routing_bias)
    p = Problem(num_experts, top_k, n_group, topk_group, intermediate_size, local_expert_offset, local_num_experts,
                routed_scaling_factor, routing_method_type, activation_type, do_finalize, routing_replay_out, output,
                topk_ids=topk_ids)
    return _per_tensor(p, hidden_states, gemm1_weights,
                       (output1_scales_scalar, output1_scales_gate_scalar, output2_scales_scalar), gemm2_weights,
                       use_routing_scales_on_input, gemm1_clamp_limit)


def _blocks(p: Problem, hidden_states: Any, hidden_states_scale: Any, gemm1_weights: Any, gemm1_scale: Any,
            gemm2_weights: Any, gemm2_scale: Any, shuffled: bool, weight_layout: int, quantization: int,
            vectors: dict[str, Any]) -> Any:
    tokens, hidden = hidden_states.shape
    inter, experts = p.intermediate_size, p.local_num_experts
    deepseek = quantization == Fp8QuantizationType.DeepSeekFp8
    if not deepseek and quantization != Fp8QuantizationType.MxFp8:
        raise ValueError(f"fp8_quantization_type is {quantization}; accepted: Fp8QuantizationType.DeepSeekFp8 (1), "
                         "Fp8QuantizationType.MxFp8 (2)")
    check_activation(p, vectors)
    format, coding = ("fp8_block", "fp8_group") if deepseek else ("mxfp8", "mxfp8")
    unit = 128 if deepseek else 32
    if hidden % unit or inter % 128:
        raise ValueError(f"hidden_states has {hidden} columns and intermediate_size is {inter}; accepted: multiples of {unit}, "
                         "128")
    # DeepSeek's: the first product is rounded to e4m3 before the activation, too. float32, as scales of the inputs are.
    kind: dict[str, Any] = {"fp8_block_trtllm": 1, "dtype": "float32"} if deepseek else {}
    if deepseek and shuffled:
        if weight_layout != WeightLayout.BlockMajorK:
            refuse(f"weight_layout is {weight_layout} with use_shuffled_weight; accepted: 2 (BlockMajorK)")
        tile = 64
    elif weight_layout != WeightLayout.MajorK or not (deepseek or shuffled):
        refuse(f"weight_layout is {weight_layout} and use_shuffled_weight {shuffled}; accepted: 0 (MajorK) with "
               + ("False" if deepseek else "True"))
    else:
        tile = 0 if deepseek else 128

    def layer() -> tuple[Spec, MoeWeights]:
        more = extras(p, **vectors)
        spec = p.spec(hidden, format, coding, act_params=int(bool(more)), **kind)
        rows = inter * (1 + spec.gated)
        w1, w2 = bits(gemm1_weights), bits(gemm2_weights)
        if tile == 64:
            w1, w2 = rows_of_blocks(w1), rows_of_blocks(w2)
        up, gate = canonical(stack("gemm1_weights", w1, (experts, rows, hidden)), spec.gated, tile, reordered=not deepseek)
        down, _ = canonical(stack("gemm2_weights", w2, (experts, hidden, inter)), False, tile)
        if deepseek:
            up_scale, gate_scale = canonical(stack("gemm1_weights_scale", gemm1_scale, (experts, rows // 128, hidden // 128)),
                                             spec.gated)
            down_scale = contiguous(stack("gemm2_weights_scale", gemm2_scale, (experts, hidden // 128, inter // 128)))
        else:
            up_scale, gate_scale = canonical(linear_stack(gemm1_scale, "gemm1_weights_scale", experts, rows, hidden // 32),
                                             spec.gated, tile)
            down_scale, _ = canonical(linear_stack(gemm2_scale, "gemm2_weights_scale", experts, hidden, inter // 32), False,
                                      tile)
        return spec, MoeWeights(up=Matrices(up, up_scale), gate=None if gate is None else Matrices(gate, gate_scale),
                                down=Matrices(down, down_scale), **more)

    def coded() -> Any:
        if deepseek:
            scales = contiguous(permute(stack("hidden_states_scale", hidden_states_scale, (hidden // 128, tokens)), (1, 0)))
        else:
            scales = _values.e8m0(stack("hidden_states_scale", bits(hidden_states_scale).reshape(tokens, -1),
                                        (tokens, hidden // 32)))
        return coded_hidden(_values.by_groups(_values.e4m3(bits(hidden_states)), scales), coding,
                            kind.get("dtype", "bfloat16"))

    return p.run(coded, layer, gemm1_weights, gemm1_scale, gemm2_weights, gemm2_scale, *vectors.values(), format,
                 tile)


@checked
def trtllm_fp8_block_scale_moe(
        routing_logits: Any, routing_bias: Any, hidden_states: Any, hidden_states_scale: Any, gemm1_weights: Any,
        gemm1_weights_scale: Any, gemm2_weights: Any, gemm2_weights_scale: Any, num_experts: int, top_k: int,
        n_group: int | None, topk_group: int | None, intermediate_size: int, local_expert_offset: int, local_num_experts: int,
        routed_scaling_factor: float | None, routing_method_type: int = 0, use_shuffled_weight: bool = False,
        weight_layout: int = WeightLayout.MajorK, do_finalize: bool = True, enable_pdl: bool | None = None,
        tune_max_num_tokens: int = 8192, fp8_quantization_type: int = Fp8QuantizationType.DeepSeekFp8,
        num_fused_shared_experts: int | None = None, activation_type: int = 3, norm_topk_prob: bool = True,
        routing_replay_out: Any = None, gemm1_alpha: Any = None, gemm1_beta: Any = None, gemm1_clamp_limit: Any = None,
        output: Any = None, valid_hidden_size: int | None = None, valid_intermediate_size: int | None = None, *,
        gemm1_bias: Any = None, gemm2_bias: Any = None) -> Any:
    """bfloat16 [T, H]. DeepSeekFp8: hidden_states e4m3 [T, H] with float32 scales [H / 128, T]; weights e4m3 [L, 2 I, H],
    the up half first, and [L, H, I], as they are, or shuffled by tiles of 64 and in BlockMajorK; scales float32 of blocks
    of 128 x 128. Rounded once at the end, where FlashInfer rounds to bfloat16 before the experts are added, too.
    MxFp8: scales UE8M0 of 32 columns, hidden_states' linear; weights shuffled, their scales too, in the 128x4 layout."""
    if num_fused_shared_experts:
        refuse(f"num_fused_shared_experts is {num_fused_shared_experts}; accepted: None, 0")
    refuse_given(gemm1_bias=gemm1_bias, gemm2_bias=gemm2_bias)
    check_sizes("valid_hidden_size", valid_hidden_size, hidden_states.shape[1])
    check_sizes("valid_intermediate_size", valid_intermediate_size, intermediate_size)
    p = Problem(num_experts, top_k, n_group, topk_group, intermediate_size, local_expert_offset, local_num_experts,
                routed_scaling_factor, routing_method_type, activation_type, do_finalize, routing_replay_out, output,
                norm_topk_prob, routing_logits, routing_bias)
    return _blocks(p, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale, gemm2_weights,
                   gemm2_weights_scale, use_shuffled_weight, weight_layout, fp8_quantization_type,
                   {"alpha": gemm1_alpha, "beta": gemm1_beta, "clamp_limit": gemm1_clamp_limit})


@checked
def trtllm_fp8_block_scale_routed_moe(
        topk_ids: Any, routing_bias: Any, hidden_states: Any, hidden_states_scale: Any, gemm1_weights: Any,
        gemm1_weights_scale: Any, gemm2_weights: Any, gemm2_weights_scale: Any, num_experts: int, top_k: int,
        n_group: int | None, topk_group: int | None, intermediate_size: int, local_expert_offset: int, local_num_experts: int,
        routed_scaling_factor: float | None, routing_method_type: int = 0, use_shuffled_weight: bool = False,
        weight_layout: int = WeightLayout.MajorK, do_finalize: bool = True, enable_pdl: bool | None = None,
        gemm1_lora_delta: Any = None, output: Any = None, tune_max_num_tokens: int = 8192,
        fp8_quantization_type: int = Fp8QuantizationType.DeepSeekFp8, activation_type: int = 3, gemm1_alpha: Any = None,
        gemm1_beta: Any = None, gemm1_clamp_limit: Any = None, valid_hidden_size: int | None = None,
        valid_intermediate_size: int | None = None) -> Any:
    """The same with given routing: int32 [T, K] packed (id << 16 | bfloat16 weight), or a pair (ids, weights)."""
    refuse_given(routing_bias=routing_bias, gemm1_lora_delta=gemm1_lora_delta)
    check_sizes("valid_hidden_size", valid_hidden_size, hidden_states.shape[1])
    check_sizes("valid_intermediate_size", valid_intermediate_size, intermediate_size)
    p = Problem(num_experts, top_k, n_group, topk_group, intermediate_size, local_expert_offset, local_num_experts,
                routed_scaling_factor, routing_method_type, activation_type, do_finalize, None, output, topk_ids=topk_ids)
    return _blocks(p, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale, gemm2_weights,
                   gemm2_weights_scale, use_shuffled_weight, weight_layout, fp8_quantization_type,
                   {"alpha": gemm1_alpha, "beta": gemm1_beta, "clamp_limit": gemm1_clamp_limit})
