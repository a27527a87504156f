# SPDX-License-Identifier: Apache-2.0
"""cutlass_fused_moe: the routing is given, weights lie as they are, gate below up."""
from __future__ import annotations

from typing import Any

from .. import _tensor
from ..specs import Matrices, MoeWeights, Spec
from . import _values
from ._arguments import checked
from ._dense import result_dtype
from ._enums import ActivationType
from ._layouts import bits, canonical, contiguous, linear_scales, linear_stack
from ._moe import Problem, coded_hidden, extras, on_host, stack
from ._quantisers import refuse_4over6
from ._refusal import refuse, refuse_given


def _scalar(name: str, given: Any) -> float:
    values = [float(v) for v in on_host(given).reshape(-1)]
    if not values or any(v != values[0] for v in values):
        refuse(f"{name} is {values[:4]}..; accepted: one value for all experts")
    return values[0]


def _vector(name: str, given: Any, experts: int) -> Any:
    """[L] of a value for each expert, or of one for all."""
    flat = contiguous(given).reshape(-1)
    if flat.shape[0] == 1:
        flat = contiguous(flat * _values.filled((experts,), 1, flat))
    _tensor.read(flat, name, "float32", (experts,), device=None)
    return flat


def _scales(given: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    if given is None or len(given) != len(names):
        raise ValueError(f"quant_scales has {0 if given is None else len(given)} tensors; accepted for these weights: "
                         f"{', '.join(names)}")
    for name, scale in zip(names, given):
        if scale is None:
            raise ValueError(f"quant_scales' {name} is None; accepted: a tensor")
    return tuple(given)


Vectors = dict[str, Any]


def _bf16(p: Problem, x: Any, w1: Any, w2: Any, scales: Any, vectors: Vectors) -> Any:
    if scales:
        refuse(f"quant_scales has {len(scales)} tensors with bfloat16 weights; accepted: None, or none")

    def layer() -> tuple[Spec, MoeWeights]:
        more = extras(p, **vectors)
        spec = p.spec(x.shape[1], "bf16", act_params=int(bool(more)))
        up, gate = canonical(_first(p, w1, spec.gated, x.shape[1]), spec.gated)
        return spec, MoeWeights(up=up, gate=gate, down=contiguous(_second(p, w2, x.shape[1])), **more)

    return p.run(lambda: x, layer, w1, w2, *vectors.values())


def _first(p: Problem, w1: Any, gated: bool, columns: int) -> Any:
    return stack("fc1_expert_weights", w1, (p.local_num_experts, p.intermediate_size * (1 + gated), columns))


def _second(p: Problem, w2: Any, hidden: int, per_byte: int = 1) -> Any:
    return stack("fc2_expert_weights", w2, (p.local_num_experts, hidden, p.intermediate_size // per_byte))


def _fp8(p: Problem, x: Any, w1: Any, w2: Any, scales: Any, vectors: Vectors) -> Any:
    dequant1, quant2, dequant2, _ = _scales(scales, ("gemm1 dequant scale", "gemm2 activation quant scale",
                                                     "gemm2 dequant scale", "gemm1 input dequant scale"))

    def layer() -> tuple[Spec, MoeWeights]:
        more = extras(p, **vectors)
        spec = p.spec(x.shape[1], "fp8_tensor", "fp8_static", act_params=int(bool(more)))
        encode, experts = _scalar("gemm2 activation quant scale", quant2), p.local_num_experts
        up, gate = canonical(_first(p, bits(w1), spec.gated, x.shape[1]), spec.gated)
        first = _vector("gemm1 dequant scale", dequant1, experts)
        second = _vector("gemm2 dequant scale", dequant2, experts) * encode
        return spec, MoeWeights(
            up=Matrices(up, first), gate=None if gate is None else Matrices(gate, first),
            down=Matrices(contiguous(_second(p, bits(w2), x.shape[1])), contiguous(second)), input_scale1=1.0,
            input_scale2=1 / encode, **more)

    return p.run(lambda: coded_hidden(_values.e4m3(bits(x)), "fp8_static", "bfloat16"), layer, w1, w2, *scales,
                 *vectors.values())


def _fp8_blocks(p: Problem, x: Any, w1: Any, w2: Any, scales: Any, vectors: Vectors) -> Any:
    first, second = _scales(scales, ("gemm1 weights block scales", "gemm2 weights block scales"))
    hidden, inter, experts = x.shape[1], p.intermediate_size, p.local_num_experts
    if hidden % 128 or inter % 128:
        raise ValueError(f"input has {hidden} columns and the weights {inter} rows of a half; accepted: multiples of 128")

    def layer() -> tuple[Spec, MoeWeights]:
        more = extras(p, **vectors)
        spec = p.spec(hidden, "fp8_block", "fp8_group", act_params=int(bool(more)))
        up, gate = canonical(_first(p, bits(w1), spec.gated, hidden), spec.gated)
        up_scale, gate_scale = canonical(
            stack("gemm1 weights block scales", first, (experts, inter * (1 + spec.gated) // 128, hidden // 128)), spec.gated)
        down_scale = contiguous(stack("gemm2 weights block scales", second, (experts, hidden // 128, inter // 128)))
        return spec, MoeWeights(up=Matrices(up, up_scale), gate=None if gate is None else Matrices(gate, gate_scale),
                                down=Matrices(contiguous(_second(p, bits(w2), hidden)), down_scale), **more)

    return p.run(lambda: x, layer, w1, w2, *scales, *vectors.values())


def _nvfp4(p: Problem, x: Any, w1: Any, w2: Any, scales: Any, vectors: Vectors, input_sf: Any, swizzled: bool) -> Any:
    refuse_4over6()
    encode1, blocks1, dequant1, encode2, blocks2, dequant2 = _scales(
        scales, ("gemm1 activation global scale", "gemm1 weights block scales", "gemm1 dequant scale",
                 "gemm2 activation global scale", "gemm2 weights block scales", "gemm2 dequant scale"))
    tokens, experts, inter, hidden = x.shape[0], p.local_num_experts, p.intermediate_size, w2.shape[1]

    def layer() -> tuple[Spec, MoeWeights]:
        more = extras(p, **vectors)
        spec = p.spec(hidden, "nvfp4", "nvfp4", act_params=int(bool(more)))
        first = _vector("gemm1 dequant scale", dequant1, experts)
        global1 = _scalar("gemm1 activation global scale", encode1)
        global2 = _scalar("gemm2 activation global scale", encode2)
        if input_sf is None:
            first = contiguous(first * global1)  # the weights' alone
        up, gate = canonical(_first(p, bits(w1), spec.gated, hidden // 2), spec.gated)
        rows = inter * (1 + spec.gated)
        up_scale, gate_scale = canonical(
            linear_stack(bits(blocks1), "gemm1 weights block scales", experts, rows, hidden // 16), spec.gated)
        down_scale = linear_stack(bits(blocks2), "gemm2 weights block scales", experts, hidden, inter // 16)
        second = contiguous(_vector("gemm2 dequant scale", dequant2, experts) * global2)
        return spec, MoeWeights(
            up=Matrices(up, up_scale, first), gate=None if gate is None else Matrices(gate, gate_scale, first),
            down=Matrices(contiguous(_second(p, bits(w2), hidden, 2)), down_scale, second),
            input_scale1=1 / global1 if input_sf is None else 1.0, input_scale2=1 / global2, **more)

    def coded() -> Any:
        if input_sf is None:
            return x
        if swizzled:
            sf = linear_scales(input_sf, tokens, hidden // 16)
        else:
            sf = stack("input_sf", bits(input_sf).reshape(tokens, -1), (tokens, hidden // 16))
        values = _values.by_groups(_values.e2m1(stack("input", bits(x), (tokens, hidden // 2))), _values.e4m3(sf))
        return coded_hidden(values, "nvfp4", "bfloat16")

    return p.run(coded, layer, w1, w2, *scales, *vectors.values(), input_sf is None)


@checked
def cutlass_fused_moe(
        input: Any, token_selected_experts: Any, token_final_scales: Any, fc1_expert_weights: Any, fc2_expert_weights: Any,
        output_dtype: Any, quant_scales: Any, fc1_expert_biases: Any = None, fc2_expert_biases: Any = None,
        input_sf: Any = None, swiglu_alpha: Any = None, swiglu_beta: Any = None, swiglu_limit: Any = None, tp_size: int = 1,
        tp_rank: int = 0, ep_size: int = 1, ep_rank: int = 0, cluster_size: int = 1, cluster_rank: int = 0,
        output: Any = None, enable_alltoall: bool = False, use_deepseek_fp8_block_scale: bool = False,
        use_w4_group_scaling: bool = False, use_mxfp8_act_scaling: bool = False, min_latency_mode: bool = False,
        use_packed_weights: bool = False, use_wfp4afp8_humming: bool = False, tune_max_num_tokens: int = 8192,
        enable_pdl: bool | None = None, activation_type: int = ActivationType.Swiglu, swizzled_input_sf: bool = True,
        use_fused_finalize: bool = True, profile_ids: Any = None, workspace_buffer: Any = None, *,
        clamped_relu2_limit: Any = None, situ_beta: Any = None, situ_linear_beta: Any = None,
        backend: str = "cutlass") -> list[Any]:
    """[bfloat16 [T, H]]. input bfloat16 [T, H]; weights [L, 2 I, H], the up half first, and [L, H, I]; experts int32 [T, K],
    global ids, with float32 weights. quant_scales tells the format: None: bfloat16; four tensors: e4m3 with one scale per
    matrix, input e4m3; with use_deepseek_fp8_block_scale two: e4m3 in blocks of 128 x 128; six: NVFP4 with scales in the
    128x4 layout, input bfloat16, or two e2m1 per byte with input_sf. alpha, beta and limit go with SwigluBias (5). The
    sums have one order, as with use_fused_finalize=False; the weights are one rank's, and tp_size and tp_rank change
    nothing."""
    refuse_given(fc1_expert_biases=fc1_expert_biases, fc2_expert_biases=fc2_expert_biases, profile_ids=profile_ids,
                 workspace_buffer=workspace_buffer, clamped_relu2_limit=clamped_relu2_limit, situ_beta=situ_beta,
                 situ_linear_beta=situ_linear_beta)
    for name, value in (("enable_alltoall", enable_alltoall), ("use_w4_group_scaling", use_w4_group_scaling),
                        ("use_mxfp8_act_scaling", use_mxfp8_act_scaling), ("min_latency_mode", min_latency_mode),
                        ("use_packed_weights", use_packed_weights), ("use_wfp4afp8_humming", use_wfp4afp8_humming)):
        if value:
            refuse(f"{name} is {value}; accepted: False")
    if cluster_size != 1 or backend != "cutlass":
        refuse(f"cluster_size is {cluster_size} and backend {backend!r}; accepted: 1, 'cutlass'")
    result_dtype("output_dtype", output_dtype)
    if not 0 <= ep_rank < ep_size:
        raise ValueError(f"ep_rank is {ep_rank} of ep_size {ep_size}; accepted: 0 to ep_size - 1")
    experts, hidden = fc2_expert_weights.shape[:2]
    vectors = {"alpha": swiglu_alpha, "beta": swiglu_beta, "clamp_limit": swiglu_limit}
    if activation_type == ActivationType.SwigluBias:
        activation_type = ActivationType.Swiglu
    elif any(v is not None for v in vectors.values()):
        refuse(f"swiglu_alpha, swiglu_beta or swiglu_limit is given with activation_type {int(activation_type)}; accepted with "
               "5 (SwigluBias)")
    nvfp4 = quant_scales is not None and len(quant_scales) == 6
    columns = bits(fc2_expert_weights).shape[2] * 2 if nvfp4 else fc2_expert_weights.shape[2]
    p = Problem(int(experts * ep_size), token_selected_experts.shape[1], None, None, columns, int(ep_rank * experts), experts,
                None, 0, activation_type, True, None, output, topk_ids=(token_selected_experts, token_final_scales),
                names={"hidden": "input", "topk_ids": "token_selected_experts", "topk_weights": "token_final_scales"})
    if nvfp4:
        return [_nvfp4(p, input, fc1_expert_weights, fc2_expert_weights, quant_scales, vectors, input_sf, swizzled_input_sf)]
    refuse_given(input_sf=input_sf)
    if input.shape[1] != hidden:
        raise ValueError(f"input has {input.shape[1]} columns; accepted: {hidden}, fc2_expert_weights' rows")
    family = _fp8_blocks if use_deepseek_fp8_block_scale else _fp8 if quant_scales is not None and len(quant_scales) == 4 else _bf16
    return [family(p, input, fc1_expert_weights, fc2_expert_weights, quant_scales, vectors)]
