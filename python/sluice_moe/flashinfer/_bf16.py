# SPDX-License-Identifier: Apache-2.0
"""bfloat16 layers."""
from __future__ import annotations

from typing import Any

from ..specs import MoeWeights, Spec
from ._arguments import checked
from ._enums import WeightLayout
from ._layouts import canonical, rows_of_blocks
from ._moe import Problem, extras, stack
from ._refusal import refuse, refuse_given


def _run(p: Problem, hidden_states: Any, gemm1_weights: Any, gemm2_weights: Any, use_shuffled_weight: bool,
         weight_layout: int, vectors: dict[str, Any]) -> Any:
    if weight_layout not in (WeightLayout.MajorK, WeightLayout.BlockMajorK):
        refuse(f"weight_layout is {weight_layout}; accepted: 0 (MajorK), 2 (BlockMajorK)")

    def layer() -> tuple[Spec, MoeWeights]:
        hidden, more = hidden_states.shape[1], extras(p, **vectors)
        spec = p.spec(hidden, "bf16", act_params=int(bool(more)))
        w1, w2 = gemm1_weights, gemm2_weights
        if weight_layout == WeightLayout.BlockMajorK:
            w1, w2 = rows_of_blocks(w1), rows_of_blocks(w2)
        tile, locals_, inter = 128 if use_shuffled_weight else 0, p.local_num_experts, p.intermediate_size
        up, gate = canonical(stack("gemm1_weights", w1, (locals_, inter * (1 + spec.gated), hidden)), spec.gated, tile)
        down, _ = canonical(stack("gemm2_weights", w2, (locals_, hidden, inter)), False, tile)
        return spec, MoeWeights(up=up, gate=gate, down=down, **more)

    return p.run(lambda: hidden_states, layer, gemm1_weights, gemm2_weights, *vectors.values(),
                 use_shuffled_weight, weight_layout)


@checked
def trtllm_bf16_moe(routing_logits: Any, routing_bias: Any, hidden_states: Any, gemm1_weights: Any, gemm2_weights: Any,
                    num_experts: int, top_k: int, n_group: int | None, topk_group: int | None, intermediate_size: int,
                    local_expert_offset: int, local_num_experts: int, routed_scaling_factor: float | None = None,
                    routing_method_type: int = 0, use_shuffled_weight: bool = True,
                    weight_layout: int = WeightLayout.BlockMajorK, do_finalize: bool = True, enable_pdl: bool = True,
                    tune_max_num_tokens: int = 8192, activation_type: int = 3, norm_topk_prob: bool = True,
                    routing_replay_out: Any = None, gemm1_alpha: Any = None, gemm1_beta: Any = None,
                    gemm1_clamp_limit: Any = None, output: Any = None) -> Any:
    """bfloat16 [T, H]. hidden_states bfloat16 [T, H]; gemm1_weights [L, H / 64, 2 I, 64] with the up half first,
    gemm2_weights [L, I / 64, H, 64], both shuffled; or [L, rows, columns] with weight_layout 0."""
    p = Problem(num_experts, top_k, n_group, topk_group, intermediate_size, local_expert_offset, local_num_experts,
                routed_scaling_factor, routing_method_type, activation_type, do_finalize, routing_replay_out, output,
                norm_topk_prob, routing_logits, routing_bias)
    return _run(p, hidden_states, gemm1_weights, gemm2_weights, use_shuffled_weight, weight_layout,
                {"alpha": gemm1_alpha, "beta": gemm1_beta, "clamp_limit": gemm1_clamp_limit})


@checked
def trtllm_bf16_routed_moe(topk_ids: Any, hidden_states: Any, gemm1_weights: Any, gemm2_weights: Any, num_experts: int,
                           top_k: int, n_group: int | None, topk_group: int | None, intermediate_size: int,
                           local_expert_offset: int, local_num_experts: int, routed_scaling_factor: float | None = None,
                           routing_method_type: int = 0, use_shuffled_weight: bool = True,
                           weight_layout: int = WeightLayout.BlockMajorK, do_finalize: bool = True, enable_pdl: bool = True,
                           gemm1_lora_delta: Any = None, tune_max_num_tokens: int = 8192, activation_type: int = 3,
                           routing_replay_out: Any = None, gemm1_alpha: Any = None, gemm1_beta: Any = None,
                           gemm1_clamp_limit: Any = None, output: Any = None) -> Any:
    """The same with given routing: int32 [T, K] packed (id << 16 | bfloat16 weight), or a pair (ids, weights)."""
    refuse_given(gemm1_lora_delta=gemm1_lora_delta)
    p = Problem(num_experts, top_k, n_group, topk_group, intermediate_size, local_expert_offset, local_num_experts,
                routed_scaling_factor, routing_method_type, activation_type, do_finalize, routing_replay_out, output,
                topk_ids=topk_ids)
    return _run(p, hidden_states, gemm1_weights, gemm2_weights, use_shuffled_weight, weight_layout,
                {"alpha": gemm1_alpha, "beta": gemm1_beta, "clamp_limit": gemm1_clamp_limit})
