# SPDX-License-Identifier: Apache-2.0
"""FlashInfer 0.7.2's names, argument order and layouts, for scripts and tests that were written for it.

    import sluice_moe.flashinfer as flashinfer

Covered, on Hopper GPUs and on the CPU (torch tensors, or numpy arrays with bfloat16 and float8 as ml_dtypes or bits):
    mxfp8_quantize, fp4_quantize, nvfp4_quantize (both with nvfp4_4over6), mxfp4_quantize; block_scale_interleave,
    shuffle_matrix_a, shuffle_matrix_sf_a, reorder_rows_for_gated_act_gemm, convert_to_block_layout; mm_mxfp8, mm_fp4 (NVFP4);
    trtllm_bf16_moe, trtllm_fp8_per_tensor_scale_moe, trtllm_fp8_block_scale_moe (DeepSeek, MXFP8),
    trtllm_fp4_block_scale_moe (NVFP4, also per token, MXFP4 with MXFP8 or bfloat16 inputs), and each one's _routed_moe;
    cutlass_fused_moe (bfloat16, FP8 per tensor and in DeepSeek's blocks, NVFP4).
Not covered: FP8 per channel, MXINT4, do_finalize=False, fused shared experts, LoRA, Situ, SwigluStep.

Layers round their inputs themselves, so hidden states that come as codes and scales are read as the values that they stand
for, and it is checked that rounding gives them back; else the call is refused. That is so for what quantisers make.
Weights come shuffled with every call, so every call repacks them: right for tests, slow for serving. Keep a
sluice_moe.FusedMoE or Gemm for that. To capture a call in a CUDA graph, make the same call once outside of the capture: what
it prepares stays with its gemm1_weights tensor. A captured call does not check its codes. enable_pdl, tune_max_num_tokens and
a quantiser's backend change no result and are ignored. As in FlashInfer, so are
    in routed calls n_group, topk_group, routed_scaling_factor and routing_method_type; in others routed_scaling_factor with
    other routing methods than 2 and 7, norm_topk_prob with others than 6, routing_bias with 3 (Llama4), and topk_group without
    an n_group above 1;
    in cutlass_fused_moe tp_size, tp_rank, cluster_rank and use_fused_finalize, swizzled_input_sf without input_sf, and
    use_deepseek_fp8_block_scale with the six quant_scales of NVFP4.
An argument that asks for what is not here raises Unsupported. Importing this module does not replace FlashInfer.
"""
from ._bf16 import trtllm_bf16_moe, trtllm_bf16_routed_moe
from ._cutlass import cutlass_fused_moe
from ._dense import mm_fp4, mm_mxfp8
from ._enums import ActivationType, Fp8QuantizationType, RoutingMethodType, SfLayout, WeightLayout
from ._fp4 import trtllm_fp4_block_scale_moe, trtllm_fp4_block_scale_routed_moe
from ._fp8 import (
    trtllm_fp8_block_scale_moe, trtllm_fp8_block_scale_routed_moe, trtllm_fp8_per_tensor_scale_moe,
    trtllm_fp8_per_tensor_scale_routed_moe,
)
from ._layouts import (
    block_scale_interleave, convert_to_block_layout, reorder_rows_for_gated_act_gemm, shuffle_matrix_a, shuffle_matrix_sf_a,
)
from ._quantisers import fp4_quantize, mxfp4_quantize, mxfp8_quantize, nvfp4_quantize

__all__ = [
    "ActivationType", "Fp8QuantizationType", "RoutingMethodType", "SfLayout", "WeightLayout", "block_scale_interleave",
    "convert_to_block_layout", "cutlass_fused_moe", "fp4_quantize", "mm_fp4", "mm_mxfp8", "mxfp4_quantize", "mxfp8_quantize",
    "nvfp4_quantize", "reorder_rows_for_gated_act_gemm", "shuffle_matrix_a", "shuffle_matrix_sf_a", "trtllm_bf16_moe",
    "trtllm_bf16_routed_moe", "trtllm_fp4_block_scale_moe", "trtllm_fp4_block_scale_routed_moe",
    "trtllm_fp8_block_scale_moe", "trtllm_fp8_block_scale_routed_moe", "trtllm_fp8_per_tensor_scale_moe",
    "trtllm_fp8_per_tensor_scale_routed_moe",
]
