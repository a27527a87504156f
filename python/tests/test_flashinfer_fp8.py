# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's fused layers of FP8 and MXFP8, on the CPU with numpy and on a GPU: against reference.py in double precision."""
import numpy as np
import pytest

import sluice_moe
import sluice_moe.flashinfer as fi
from flashinfer_case import RELU2, SWIGLU, Case, E, H, I, K, T, check, interleaved, shuffled
from flashinfer_case import device  # noqa: F401 - a fixture of every test
from reference import E4M3, E8M0, bf16, layer, relu2, round_e4m3, round_fp8_group, round_mxfp8, swiglu, to_bf16


@pytest.mark.parametrize("act", [SWIGLU, RELU2])
@pytest.mark.parametrize("local", [(0, E), (1, 2)])
def test_fp8_per_tensor(rng, act, local):
    c = Case(rng, "fp8_tensor", act, local)
    encode = np.float32(448 / np.abs(c.x).max())
    codes = np.array([int(v) for v in sluice_moe.quantize(c.x, "fp8_static", input_scale=1 / encode).codes.reshape(-1)],
                     np.uint8).reshape(T, H)
    scales = [None if w is None else w.scales for w in (c.up, c.gate, c.down)]
    dq = scales[0] / encode  # FlashInfer's users requantise both halves with one scale
    calibrated = np.float32(3.5) * (np.arange(E, dtype=np.float32) + 1 if c.gated else np.ones(E, np.float32))
    output1 = calibrated * dq if c.gated else calibrated
    output2 = scales[2] / calibrated
    w1, w2 = c.matrices("codes", shuffled)
    arguments = (codes, w1, c.cut(output1), c.cut(dq), w2, c.cut(output2), *c.common, False)
    up, gate, down = c.values
    decode = dq.astype(np.float64)[:, None, None]

    def expected(weights):
        out, bound = np.zeros((T, H)), np.zeros((T, H))
        for e in range(E):  # each expert is calibrated for itself
            one = layer(E4M3[codes], np.where(c.here == e, c.here, -1), weights, up * decode, None if gate is None else
                        gate * decode, down * scales[2][:, None, None], swiglu if c.gated else relu2,
                        lambda y: round_e4m3(y * float(calibrated[e])) / float(calibrated[e]))
            out, bound = out + one[0], bound + one[1]
        return out, bound

    replay = np.full((T + 1, K), -9, np.int16)
    got = fi.trtllm_fp8_per_tensor_scale_moe(c.logits, None, *arguments, 1, activation_type=act, routing_replay_out=replay)
    check(got, *expected(c.weights))
    assert (replay[:T] == c.ids).all() and (replay[T:] == -9).all() and (got[3] == 0).all()
    for routing in c.routings:
        output = np.empty((T, H), np.uint16)
        assert fi.trtllm_fp8_per_tensor_scale_routed_moe(routing, None, *arguments, activation_type=act, output=output) is output
        check(output, *expected(c.weights))
    with pytest.raises(sluice_moe.Unsupported, match="use_routing_scales_on_input is True"):
        fi.trtllm_fp8_per_tensor_scale_moe(c.logits, None, *arguments[:-1], True, 1, activation_type=act)


def test_llama4_scales_the_input(rng):
    c = Case(rng, "fp8_tensor", SWIGLU)
    codes = sluice_moe.quantize(c.x, "fp8_static", input_scale=1.0).codes
    ones = np.full(E, 2.0**-8, np.float32)
    w1, w2 = c.matrices("codes", shuffled)
    bias = rng.normal(size=E).astype(np.float32)  # which FlashInfer takes and does not read
    got = fi.trtllm_fp8_per_tensor_scale_moe(c.logits, bias, codes, w1, ones, ones, w2, ones, E, 1, None, None, I, 0, E, None,
                                             True, 3)
    ids = c.logits.argmax(1)[:, None]
    weight = bf16(to_bf16(1 / (1 + np.exp(-c.logits.max(1).astype(np.float64)))))
    up, gate, down = (v * 2.0**-8 for v in c.values)
    expected, bound = layer(E4M3[codes] * weight[:, None], ids, np.ones((T, 1)), up, gate, down, swiglu, round_e4m3)
    check(got, expected, bound)


@pytest.mark.parametrize("act", [SWIGLU, RELU2])
@pytest.mark.parametrize("prepared", [False, True])
def test_fp8_blocks_of_deepseek(rng, act, prepared):
    c = Case(rng, "fp8_block", act)
    q = sluice_moe.quantize(c.x, "fp8_group", layout="transposed")
    assert q.scales.shape == (H // 128, T)
    x = E4M3[q.codes] * q.scales.T.astype(np.float64).repeat(128, 1)
    w1, w2 = c.matrices("codes", lambda w, gated: w)
    layout = {"use_shuffled_weight": prepared, "weight_layout": 2 if prepared else 0}
    if prepared:  # halves stay apart, tiles of 64, blocks of 128 columns
        w1, w2 = (np.stack([fi.convert_to_block_layout(m, 128) for m in shuffled(w, False, 64)]) for w in (w1, w2))
    s1, s2 = c.matrices("scales", lambda s, gated: s)
    arguments = (q.codes, q.scales, w1, s1, w2, s2, *c.common)
    for vectors in ({}, {"alpha": 1.7, "beta": 1.0, "clamp_limit": 0.5}) if act == SWIGLU else ({},):
        given = {f"gemm1_{k}": np.full(E, v, np.float32) for k, v in vectors.items()}
        params = {"limit" if k == "clamp_limit" else k: float(np.float32(v)) for k, v in vectors.items()}
        expected = layer(x, c.ids, c.weights, *c.values, lambda *parts: swiglu(*parts, **params) if c.gated else relu2(*parts),
                         round_fp8_group, raw=round_fp8_group)
        check(fi.trtllm_fp8_block_scale_moe(c.logits, None, *arguments, 1, activation_type=act, **layout, **given), *expected)
        for routing in c.routings:
            check(fi.trtllm_fp8_block_scale_routed_moe(routing, None, *arguments, activation_type=act, **layout, **given),
                  *expected)
    output = np.empty((T, H), np.uint16)
    assert fi.trtllm_fp8_block_scale_moe(c.logits, None, *arguments, 1, activation_type=act, **layout, output=output) is output
    doubled = (q.codes, q.scales * np.where(np.arange(T) % 2, 3, 1).astype(np.float32), *arguments[2:])
    assert fi.trtllm_fp8_block_scale_moe(c.logits, None, *doubled, 1, activation_type=act, **layout).shape == (T, H)


@pytest.mark.parametrize("act", [SWIGLU, RELU2])
@pytest.mark.parametrize("local", [(0, E), (2, 2)])
def test_mxfp8(rng, act, local):
    c = Case(rng, "mxfp8", act, local)
    codes, scales = fi.mxfp8_quantize(c.x, False)
    x = E4M3[codes] * E8M0[scales.reshape(T, -1)].repeat(32, 1)
    (w1, w2), (s1, s2) = c.matrices("codes", shuffled), c.matrices("scales", interleaved)
    arguments = (codes, scales, w1, s1, w2, s2, *c.common)
    more = {"use_shuffled_weight": True, "fp8_quantization_type": fi.Fp8QuantizationType.MxFp8, "activation_type": act}
    expected = layer(x, c.here, c.weights, *c.values, swiglu if c.gated else relu2, round_mxfp8)
    check(fi.trtllm_fp8_block_scale_moe(c.logits, None, *arguments, 1, **more), *expected)
    for routing in c.routings:
        check(fi.trtllm_fp8_block_scale_routed_moe(routing, None, codes, scales.reshape(T, -1), *arguments[2:], **more),
              *expected)
    # Scales twice as large as they need be read as what they say: rounding gives the same values with others.
    larger = fi.trtllm_fp8_block_scale_moe(c.logits, None, codes, scales + 1, *arguments[2:], 1, **more)
    check(larger, *layer(2 * x, c.here, c.weights, *c.values, swiglu if c.gated else relu2, round_mxfp8))
