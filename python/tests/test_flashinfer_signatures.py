# SPDX-License-Identifier: Apache-2.0
"""The order and the names of the arguments of sluice_moe.flashinfer's functions: FlashInfer's."""
import inspect

import pytest

import sluice_moe.flashinfer as fi
from flashinfer_case import device  # noqa: F401 - a fixture of every test


# FlashInfer 0.7.2.post1's signatures: callers pass most arguments by position.
_SIZES = ("num_experts top_k n_group topk_group intermediate_size local_expert_offset local_num_experts routed_scaling_factor ")
_FP8 = "hidden_states gemm1_weights output1_scales_scalar output1_scales_gate_scalar gemm2_weights output2_scales_scalar "
_BLOCK = "routing_bias hidden_states hidden_states_scale gemm1_weights gemm1_weights_scale gemm2_weights gemm2_weights_scale "
_FP4 = ("routing_bias hidden_states hidden_states_scale gemm1_weights gemm1_weights_scale gemm1_bias gemm1_alpha gemm1_beta "
        "gemm1_clamp_limit gemm2_weights gemm2_weights_scale gemm2_bias output1_scale_scalar output1_scale_gate_scalar "
        "output2_scale_scalar ")
_VECTORS = "gemm1_alpha gemm1_beta gemm1_clamp_limit "
SIGNATURES = {
    "trtllm_bf16_moe": "routing_logits routing_bias hidden_states gemm1_weights gemm2_weights " + _SIZES + "routing_method_type "
    "use_shuffled_weight weight_layout do_finalize enable_pdl tune_max_num_tokens activation_type norm_topk_prob "
    "routing_replay_out " + _VECTORS + "output",
    "trtllm_bf16_routed_moe": "topk_ids hidden_states gemm1_weights gemm2_weights " + _SIZES + "routing_method_type "
    "use_shuffled_weight weight_layout do_finalize enable_pdl gemm1_lora_delta tune_max_num_tokens activation_type "
    "routing_replay_out " + _VECTORS + "output",
    "trtllm_fp8_per_tensor_scale_moe": "routing_logits routing_bias " + _FP8 + _SIZES + "use_routing_scales_on_input "
    "routing_method_type do_finalize enable_pdl tune_max_num_tokens activation_type norm_topk_prob routing_replay_out output "
    "gemm1_clamp_limit",
    "trtllm_fp8_per_tensor_scale_routed_moe": "topk_ids routing_bias " + _FP8 + _SIZES + "use_routing_scales_on_input "
    "routing_method_type do_finalize enable_pdl tune_max_num_tokens activation_type routing_replay_out output "
    "gemm1_clamp_limit",
    "trtllm_fp8_block_scale_moe": "routing_logits " + _BLOCK + _SIZES + "routing_method_type use_shuffled_weight weight_layout "
    "do_finalize enable_pdl tune_max_num_tokens fp8_quantization_type num_fused_shared_experts activation_type norm_topk_prob "
    "routing_replay_out " + _VECTORS + "output valid_hidden_size valid_intermediate_size gemm1_bias gemm2_bias",
    "trtllm_fp8_block_scale_routed_moe": "topk_ids " + _BLOCK + _SIZES + "routing_method_type use_shuffled_weight weight_layout "
    "do_finalize enable_pdl gemm1_lora_delta output tune_max_num_tokens fp8_quantization_type activation_type " + _VECTORS
    + "valid_hidden_size valid_intermediate_size",
    "trtllm_fp4_block_scale_moe": "routing_logits " + _FP4 + _SIZES + "routing_method_type do_finalize enable_pdl "
    "activation_type per_token_scale output tune_max_num_tokens norm_topk_prob routing_replay_out num_fused_shared_experts "
    "valid_hidden_size valid_intermediate_size hidden_states_scale_layout",
    "trtllm_fp4_block_scale_routed_moe": "topk_ids " + _FP4 + _SIZES + "routing_method_type do_finalize enable_pdl "
    "activation_type per_token_scale output tune_max_num_tokens gemm1_lora_delta valid_hidden_size valid_intermediate_size "
    "num_fused_shared_experts hidden_states_scale_layout",
    "cutlass_fused_moe": "input token_selected_experts token_final_scales fc1_expert_weights fc2_expert_weights output_dtype "
    "quant_scales fc1_expert_biases fc2_expert_biases input_sf swiglu_alpha swiglu_beta swiglu_limit tp_size tp_rank ep_size "
    "ep_rank cluster_size cluster_rank output enable_alltoall use_deepseek_fp8_block_scale use_w4_group_scaling "
    "use_mxfp8_act_scaling min_latency_mode use_packed_weights use_wfp4afp8_humming tune_max_num_tokens enable_pdl "
    "activation_type swizzled_input_sf use_fused_finalize profile_ids workspace_buffer clamped_relu2_limit situ_beta "
    "situ_linear_beta backend",
    "mm_fp4": "a b a_descale b_descale alpha out_dtype out block_size use_8x4_sf_layout backend use_nvfp4 enable_pdl skip_check",
    "mm_mxfp8": "a b a_descale b_descale out out_dtype use_8x4_sf_layout backend skip_check",
    "mxfp8_quantize": "input is_sf_swizzled_layout alignment enable_pdl backend sf_swizzle_layout",
    "fp4_quantize": "input global_scale sf_vec_size sf_use_ue8m0 is_sf_swizzled_layout is_sf_8x4_layout "
    "is_global_scale_inversed enable_pdl backend nvfp4_4over6",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_argument_order(name):
    parameters = inspect.signature(getattr(fi, name)).parameters
    assert list(parameters) == SIGNATURES[name].split()
    keywords = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert keywords == {"trtllm_fp8_block_scale_moe": ["gemm1_bias", "gemm2_bias"], "cutlass_fused_moe": [
        "clamped_relu2_limit", "situ_beta", "situ_linear_beta", "backend"], "mm_fp4": ["skip_check"],
        "mm_mxfp8": ["skip_check"]}.get(name, [])
