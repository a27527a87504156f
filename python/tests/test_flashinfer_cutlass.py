# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's cutlass_fused_moe, on the CPU with numpy and on a GPU: against reference.py in double precision."""
import re

import numpy as np
import pytest

import sluice_moe
import sluice_moe.flashinfer as fi
from flashinfer_case import SWIGLU, Case, E, H, T, check
from flashinfer_case import device  # noqa: F401 - a fixture of every test
from reference import E2M1, E4M3, bf16, layer, round_e4m3, round_fp8_group, round_nvfp4, swiglu, to_bf16, unpack
from sluice_moe.flashinfer._layouts import linear_scales


@pytest.mark.parametrize("form", ["bf16", "fp8", "blocks", "nvfp4", "nvfp4 codes", "nvfp4 linear codes"])
@pytest.mark.parametrize("rank", [None, 1])
def test_cutlass(rng, form, rank):
    """The routing is given, and rows lie as in the checkpoint but for the halves."""
    format = {"bf16": "bf16", "fp8": "fp8_tensor", "blocks": "fp8_block"}.get(form, "nvfp4")
    ranks = {} if rank is None else {"ep_size": 2, "ep_rank": rank}
    c = Case(rng, format, SWIGLU, (0, E) if rank is None else (2, 2))
    mine = slice(c.local[0], sum(c.local))
    w1, w2 = c.matrices("codes", lambda w, gated: w)
    x, rounded, more = bf16(to_bf16(c.x)), lambda y: bf16(to_bf16(y)), {}
    hidden, scales, factors = to_bf16(c.x), None, [1, 1, 1]
    if form == "fp8":
        hidden = sluice_moe.quantize(c.x, "fp8_static", input_scale=0.01).codes
        x, rounded = E4M3[hidden], lambda y: round_e4m3(y * 2) / 2
        dequant = [np.float32(0.01) * c.up.scales, c.down.scales / 2]
        scales = [dequant[0][mine], np.float32([2]), dequant[1][mine], np.float32(0.01).reshape(1)]
        factors = [dequant[0], dequant[0], c.down.scales]
    elif form == "blocks":
        x = E4M3[(q := sluice_moe.quantize(to_bf16(c.x), "fp8_group")).codes] * q.scales.astype(np.float64).repeat(128, 1)
        scales, more, rounded = [*c.matrices("scales", lambda s, gated: s)], {"use_deepseek_fp8_block_scale": True}, round_fp8_group
    elif format == "nvfp4":
        encode = np.float32(2688 / np.abs(bf16(hidden)).max())
        codes, sf = fi.fp4_quantize(hidden, encode.reshape(1), is_sf_swizzled_layout=False)
        x = E2M1[unpack(codes)] * E4M3[sf].repeat(16, 1) / float(encode)
        rounded = lambda y: round_nvfp4(y * 100) / 100
        s1, s2 = c.matrices("scales", lambda s, gated: fi.block_scale_interleave(s))
        own, own2 = c.up.global_scales, c.down.global_scales
        scales = [encode.reshape(1), s1.view(np.int32), (own / encode)[mine], np.float32([100]), s2.view(np.int32), own2[mine] / 100]
        scales[2], scales[5] = scales[2].astype(np.float32), scales[5].astype(np.float32)
        factors, (w1, w2) = [own, own, own2], (w.view(np.int64) for w in (w1, w2))
        if form != "nvfp4":
            hidden = codes
            more = {"input_sf": sf if "linear" in form else fi.block_scale_interleave(sf), "swizzled_input_sf": "linear" not in form}
    values = [v * np.asarray(f, np.float64).reshape(-1, 1, 1) for v, f in zip(c.values, factors)]
    ids, weights = c.ids.astype(np.int32), c.weights.astype(np.float32)
    output = np.empty((T, H), np.uint16)
    (got,) = fi.cutlass_fused_moe(hidden, ids, weights, w1, w2, "bfloat16", scales, output=output, **ranks, **more)
    assert got is output
    check(got, *layer(x, c.here, weights, *values, swiglu, rounded))
    vectors = {"alpha": 1.5, "beta": 0.5, "limit": 0.75}
    given = {f"swiglu_{k}": np.full(c.local[1], v, np.float32) for k, v in vectors.items()}
    (got,) = fi.cutlass_fused_moe(hidden, ids, weights, w1, w2, "bfloat16", scales, activation_type=5, **given, **ranks, **more)
    check(got, *layer(x, c.here, weights, *values, lambda *parts: swiglu(*parts, **vectors), rounded))
    for bad, sentence in ((given, "accepted with 5 (SwigluBias)"), ({"min_latency_mode": True}, "min_latency_mode is True"),
                          ({"workspace_buffer": ids}, "workspace_buffer is given"), ({"backend": "auto"}, "backend 'auto'"),
                          ({"fc1_expert_biases": ids}, "fc1_expert_biases is given"), ({"output_dtype": "float16"}, "output_dtype is float16")):
        with pytest.raises(sluice_moe.Unsupported, match=re.escape(sentence)):
            fi.cutlass_fused_moe(**{**dict(input=hidden, token_selected_experts=ids, token_final_scales=weights,
                                           fc1_expert_weights=w1, fc2_expert_weights=w2, output_dtype="bfloat16",
                                           quant_scales=scales, **ranks, **more), **bad})


def test_nvfp4_with_padded_scales(rng, monkeypatch):
    """Scales of 128 rows and 4 columns each, where neither the rows nor the columns come to that."""
    experts, hidden, inter, tokens = 2, 160, 96, 5
    quantise = lambda *shape: [fi.fp4_quantize(rng.normal(size=shape).astype(np.float32), np.ones(1, np.float32))
                               for _ in range(experts)]
    first, second = quantise(2 * inter, hidden), quantise(hidden, inter)
    assert first[0][1].shape == (256, 12) and second[0][1].shape == (256, 8)
    w1, s1, w2, s2 = (np.stack([pair[i] for pair in pairs]) for pairs in (first, second) for i in (0, 1))
    values = [np.stack([E2M1[unpack(codes)] * E4M3[linear_scales(scales, rows, cols // 16)].repeat(16, 1) for codes, scales in pairs])
              for pairs, rows, cols in ((first, 2 * inter, hidden), (second, hidden, inter))]
    x = rng.normal(size=(tokens, hidden)).astype(np.float32)
    one, ones = np.ones(1, np.float32), np.ones(experts, np.float32)
    codes, scales = fi.fp4_quantize(to_bf16(x), one)
    rounded = E2M1[unpack(codes)] * E4M3[linear_scales(scales, tokens, hidden // 16)].repeat(16, 1)
    ids, weights = np.int32([[0, 1]] * tokens), rng.uniform(size=(tokens, 2)).astype(np.float32)
    arguments = (to_bf16(x), ids, weights, w1, w2, "bfloat16", [one, s1.view(np.int32), ones, one, s2.view(np.int32), ones])
    (got,) = fi.cutlass_fused_moe(*arguments)
    check(got, *layer(rounded, ids, weights, values[0][:, :inter], values[0][:, inter:], values[1], swiglu, round_nvfp4))
    monkeypatch.setenv("FLASHINFER_NVFP4_4OVER6", "1")
    with pytest.raises(sluice_moe.Unsupported, match="FLASHINFER_NVFP4_4OVER6 is 1, by which this layer would round its rows"):
        fi.cutlass_fused_moe(*arguments)
