# SPDX-License-Identifier: Apache-2.0
"""What FlashInfer's fused layers refuse, on the CPU with numpy and on a GPU, and the sentence that says so."""
import inspect
import re

import numpy as np
import pytest

import sluice_moe
import sluice_moe.flashinfer as fi
from flashinfer_case import SWIGLU, Case, E, H, I, K, T, interleaved, shuffled
from flashinfer_case import device  # noqa: F401 - a fixture of every test
from reference import to_bf16


def test_refusals(rng):
    """Nothing that a function cannot do is left out silently."""
    c = Case(rng, "nvfp4", SWIGLU)
    codes, scales = fi.fp4_quantize(c.x, np.array([np.float32(2688 / np.abs(c.x).max())]), is_sf_swizzled_layout=False)
    (w1, w2), (s1, s2) = c.matrices("codes", shuffled), c.matrices("scales", interleaved)
    ones = np.ones(E, np.float32)
    names = list(inspect.signature(fi.trtllm_fp4_block_scale_moe).parameters)
    arguments = dict(zip(names, (c.logits, None, codes, scales, w1, s1, None, None, None, None, w2, s2, None, ones, ones, ones,
                                 *c.common, 1)))
    fi.trtllm_fp4_block_scale_moe(**arguments)
    uneven = np.float32([1, 2, 3, 4])
    too_large, ones_only = scales.copy(), codes.copy()
    too_large[2], ones_only[2] = 0x7E, 0x22  # 448 times 1: a quantiser would take 6 times a sixth of it, if that were a code
    for more, problem, sentence in (
            ({"do_finalize": False}, sluice_moe.Unsupported, "do_finalize is False"),
            ({"activation_type": 10}, sluice_moe.Unsupported, "activation_type is 10; accepted: 0 (Gelu), 2 (Silu), 3 (Swiglu)"),
            ({"num_fused_shared_experts": 1}, sluice_moe.Unsupported, "num_fused_shared_experts is 1"),
            ({"valid_hidden_size": H - 16}, sluice_moe.Unsupported, f"valid_hidden_size is {H - 16}; accepted: None, or all of {H}"),
            ({"valid_intermediate_size": 1}, sluice_moe.Unsupported, "valid_intermediate_size is 1"),
            ({"hidden_states_scale_layout": fi.SfLayout.layout_128x4}, sluice_moe.Unsupported, "hidden_states_scale_layout"),
            ({"gemm1_clamp_limit": ones, "output1_scale_scalar": uneven}, sluice_moe.Unsupported, "one factor for all experts"),
            ({"routing_method_type": 10}, sluice_moe.Unsupported, "routing_method_type is 10"),
            ({"routing_bias": ones}, sluice_moe.InvalidArgument, "routing bias is given"),
            ({"output1_scale_scalar": None}, ValueError, "output1_scale_scalar is None"),
            ({"output2_scale_scalar": ones[:2]}, ValueError, "output2_scale_scalar has shape [2]"),
            ({"gemm1_alpha": np.float64(ones)}, TypeError, "gemm1_alpha is float64"),
            ({"hidden_states_scale": None}, ValueError, "hidden_states_scale is None"),
            ({"hidden_states_scale": scales[:, :3]}, ValueError, "hidden_states_scale has shape"),
            ({"hidden_states": ones_only, "hidden_states_scale": too_large}, sluice_moe.Unsupported, "1 rows of 6 whose codes and scales rounding to nvfp4"),
            ({"gemm1_weights": w1[:, :-32]}, ValueError, f"gemm1_weights has shape [{E}, {2 * I - 32}, {H // 2}]"),
            ({"gemm2_weights_scale": s2[:, :, :-4]}, ValueError, "gemm2_weights_scale: the scales have"),
            ({"routing_replay_out": np.zeros((T - 1, K), np.int16)}, ValueError, "routing_replay_out has shape"),
            ({"output": np.zeros((T, H), np.float32)}, TypeError, "output is float32"),
            ({"routing_logits": np.float64(c.logits)}, TypeError, "routing_logits is float64"),
            ({"n_group": 4, "routing_method_type": 2}, TypeError, "topk_group is NoneType; accepted: an integer"),
            ({"n_group": 4, "topk_group": 5, "routing_method_type": 2}, ValueError, "topk_group is 5; accepted: 1 to 4"),
            ({"per_token_scale": np.ones(T + 1, np.float32)}, ValueError, "per_token_scale has shape")):
        with pytest.raises(problem, match=re.escape(sentence)):
            fi.trtllm_fp4_block_scale_moe(**{**arguments, **more})
    routed = (c.routings[0], None, *list(arguments.values())[2:])
    for more in ({"routing_bias": ones}, {"gemm1_lora_delta": ones}):
        with pytest.raises(sluice_moe.Unsupported, match=f"{next(iter(more))} is given"):
            given = dict(zip(inspect.signature(fi.trtllm_fp4_block_scale_routed_moe).parameters, routed))
            fi.trtllm_fp4_block_scale_routed_moe(**{**given, **more})

    c = Case(rng, "bf16", SWIGLU)
    w1, w2 = c.matrices("codes", lambda w, gated: w)
    hidden, ids, weights = to_bf16(c.x), c.ids.astype(np.int32), c.weights.astype(np.float32)
    with pytest.raises(TypeError, match="hidden_states is float16; accepted: bfloat16"):
        fi.trtllm_bf16_moe(c.logits, None, c.x.astype(np.float16), w1, w2, *c.common, 1, use_shuffled_weight=False,
                           weight_layout=0)
    for bad, sentence in (((c.x.astype(np.float16), ids, weights), "input is float16; accepted: bfloat16"),
                          ((hidden, ids.astype(np.int64), weights), "token_selected_experts is int64; accepted: int32"),
                          ((hidden, ids, weights.astype(np.float64)), "token_final_scales is float64; accepted: float32")):
        with pytest.raises(TypeError, match=sentence):
            fi.cutlass_fused_moe(*bad, w1, w2, "bfloat16", None)

    c = Case(rng, "mxfp8", SWIGLU)
    codes, scales = fi.mxfp8_quantize(c.x, False)
    (w1, w2), (s1, s2) = c.matrices("codes", shuffled), c.matrices("scales", interleaved)
    for more, sentence in (
            ({"use_shuffled_weight": False}, "weight_layout is 0 and use_shuffled_weight False; accepted: 0 (MajorK) with True"),
            ({"weight_layout": 2}, "weight_layout is 2 and use_shuffled_weight True"),
            ({"gemm1_bias": w1[0]}, "gemm1_bias is given"), ({"gemm2_bias": w1[0]}, "gemm2_bias is given"),
            ({"num_fused_shared_experts": 2}, "num_fused_shared_experts is 2")):
        with pytest.raises(sluice_moe.Unsupported, match=re.escape(sentence)):
            fi.trtllm_fp8_block_scale_moe(c.logits, None, codes, scales, w1, s1, w2, s2, *c.common, 1,
                                          **{"use_shuffled_weight": True, "fp8_quantization_type": 2, **more})
    for more, sentence in (
            ({"fp8_quantization_type": 0}, "fp8_quantization_type is 0; accepted: Fp8QuantizationType.DeepSeekFp8 (1), Fp8QuantizationType.MxFp8 (2)"),
            ({"gemm1_beta": ones, "activation_type": 4}, "gemm1_beta is given with activation_type 4; accepted: None, or with ActivationType.Swiglu (3)")):
        with pytest.raises(ValueError, match=re.escape(sentence)):
            fi.trtllm_fp8_block_scale_moe(c.logits, None, codes, scales, w1, s1, w2, s2, *c.common, 1,
                                          **{"use_shuffled_weight": True, "fp8_quantization_type": 2, **more})
    codes = codes.copy()
    codes[0, 0] = 0x7F
    with pytest.raises(sluice_moe.Unsupported, match="or NaN"):
        fi.trtllm_fp8_block_scale_moe(c.logits, None, codes, scales, w1, s1, w2, s2, *c.common, 1, use_shuffled_weight=True,
                                      fp8_quantization_type=2)
    with pytest.raises(sluice_moe.Unsupported, match="gemm1_clamp_limit is given"):
        fi.trtllm_fp8_per_tensor_scale_moe(c.logits, None, codes, w1, ones, ones, w2, ones, *c.common, False,
                                           gemm1_clamp_limit=ones)
