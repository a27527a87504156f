# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's fused layers of NVFP4 and MXFP4, on the CPU with numpy and on a GPU: against reference.py in double precision."""
import numpy as np
import pytest

import sluice_moe
import sluice_moe.flashinfer as fi
from flashinfer_case import RELU2, SWIGLU, Case, E, H, I, T, check, interleaved, shuffled
from flashinfer_case import device  # noqa: F401 - a fixture of every test
from reference import (
    E2M1, E4M3, E8M0, bf16, block_values, layer, relu2, round_mxfp8, round_nvfp4, round_nvfp4_token, route_renormalize, swiglu,
    to_bf16, unpack,
)


def scalars(c, encode, calibrated):
    """output1_scale_scalar, output1_scale_gate_scalar, output2_scale_scalar of NVFP4, by expert."""
    dq = c.up.global_scales / encode
    return (calibrated * dq if c.gated else calibrated), dq, c.down.global_scales / calibrated


@pytest.mark.parametrize("act", [SWIGLU, RELU2])
@pytest.mark.parametrize("how", ["plain", "each expert", "extras"])
def test_nvfp4(rng, act, how):
    c = Case(rng, "nvfp4", act)
    if c.gated and how == "extras":
        extra = {"alpha": 1.7, "beta": 0.5, "limit": 0.75}
    else:
        extra = {}
    encode = np.float32(2688 / np.abs(c.x).max())
    codes, scales = fi.fp4_quantize(c.x, np.array([encode]), is_sf_swizzled_layout=False)
    calibrated = np.full(E, 100, np.float32) if how != "each expert" or not c.gated else np.float32([50, 100, 200, 77])
    output1, dq, output2 = scalars(c, encode, calibrated)
    biases, given = None, (None, None)
    if how == "extras":
        biases = [rng.normal(size=(E, n)) / 4 for n in ((I, I, H) if c.gated else (I, H))]
        raw1 = np.concatenate([b / dq[:, None] for b in biases[:-1]], 1).astype(np.float32)
        raw2 = (biases[-1] / output2[:, None]).astype(np.float32)
        given = shuffled(raw1[:, :, None], c.gated)[:, :, 0], shuffled(raw2[:, :, None], False)[:, :, 0]
        biases = biases if c.gated else [biases[0], None, biases[1]]
    vectors = {"alpha": extra.get("alpha"), "beta": extra.get("beta") and extra["beta"] / dq,
               "limit": extra.get("limit") and extra["limit"] / dq}
    vectors = [None if v is None else np.full(E, v, np.float32) if np.isscalar(v) else v.astype(np.float32)
               for v in vectors.values()]
    (w1, w2), (s1, s2) = c.matrices("codes", shuffled), c.matrices("scales", interleaved)
    arguments = (codes, scales, w1, s1, given[0], *vectors, w2, s2, given[1], output1, dq, output2, *c.common)
    x, (up, gate, down) = E2M1[unpack(codes)] * E4M3[scales].repeat(16, 1), c.values
    decode, decode2 = dq.astype(np.float64)[:, None, None], output2.astype(np.float64)[:, None, None]
    out, bound = np.zeros((T, H)), np.zeros((T, H))
    for e in range(E):
        one = layer(x, np.where(c.ids == e, e, -1), c.weights, up * decode, None if gate is None else gate * decode,
                    down * decode2 * float(calibrated[e]),
                    lambda *parts: swiglu(*parts, **extra) if c.gated else relu2(*parts),
                    lambda y: round_nvfp4(y * float(calibrated[e])) / float(calibrated[e]), biases=biases)
        out, bound = out + one[0], bound + one[1]
    (got,) = fi.trtllm_fp4_block_scale_moe(c.logits, None, *arguments, 1, activation_type=act)
    check(got, out, bound)
    for routing in c.routings:
        (got,) = fi.trtllm_fp4_block_scale_routed_moe(routing, None, *arguments, activation_type=act,
                                                      hidden_states_scale_layout=fi.SfLayout.layout_linear)
        check(got, out, bound)


@pytest.mark.parametrize("act", [SWIGLU, RELU2])
def test_nvfp4_with_a_scale_for_each_token(rng, act):
    c = Case(rng, "nvfp4", act)
    c.x *= np.exp(rng.normal(size=(T, 1))).astype(np.float32)
    codes, scales, rows = fi.nvfp4_quantize(c.x, None, fi.SfLayout.layout_linear, per_token_activation=True)
    (w1, w2), (s1, s2) = c.matrices("codes", shuffled), c.matrices("scales", interleaved)
    own, own2 = c.up.global_scales, c.down.global_scales
    (got,) = fi.trtllm_fp4_block_scale_moe(c.logits, None, codes, scales, w1, s1, None, None, None, None, w2, s2, None, own, own,
                                           own2, *c.common, 1, activation_type=act, per_token_scale=rows)
    x = E2M1[unpack(codes)] * E4M3[scales].repeat(16, 1) * rows.astype(np.float64)[:, None]
    up, gate, down = c.values
    wide = own.astype(np.float64)[:, None, None]
    check(got, *layer(x, c.ids, c.weights, up * wide, None if gate is None else gate * wide, down * own2[:, None, None],
                      swiglu if c.gated else relu2, round_nvfp4_token))


@pytest.mark.parametrize("inputs", ["mxfp8", "bf16"])
@pytest.mark.parametrize("act", [SWIGLU, RELU2])
def test_mxfp4(rng, act, inputs):
    c = Case(rng, "mxfp4", act)
    if inputs == "mxfp8":
        hidden, scales = fi.mxfp8_quantize(c.x, False)
        x = E4M3[hidden] * E8M0[scales.reshape(T, -1)].repeat(32, 1)
    else:
        hidden, scales = to_bf16(c.x), None
        x = bf16(hidden)
    (w1, w2), (s1, s2) = c.matrices("codes", shuffled), c.matrices("scales", interleaved)
    vectors = [np.full(E, v, np.float32) for v in (1.702, 1.0, 0.5)] if c.gated else [None] * 3  # gpt-oss
    biases = [rng.normal(size=(E, n)).astype(np.float32) for n in ((I, I, H) if c.gated else (I, H))]
    given = (shuffled(np.concatenate(biases[:-1], 1)[:, :, None], c.gated)[:, :, 0],
             shuffled(biases[-1][:, :, None], False)[:, :, 0])
    for has in ((True, True), (True, False), (False, True)):  # a bias that is left out is zero
        arguments = (hidden, scales, w1, s1, given[0] if has[0] else None, *vectors, w2, s2, given[1] if has[1] else None,
                     None, None, None, *c.common)
        parts = biases if c.gated else [biases[0], None, biases[1]]
        kept = [b if b is None or here else 0 * b for b, here in zip(parts, (has[0], has[0], has[1]))]
        expected = layer(x, c.ids, c.weights, *c.values,
                         lambda *parts: swiglu(*parts, 1.702, 1.0, 0.5) if c.gated else relu2(*parts),
                         round_mxfp8 if inputs == "mxfp8" else lambda y: bf16(to_bf16(y)), biases=kept)
        (got,) = fi.trtllm_fp4_block_scale_moe(c.logits, None, *arguments, 1, activation_type=act)
        check(got, *expected)
        (got,) = fi.trtllm_fp4_block_scale_routed_moe(c.routings[0], None, *arguments, activation_type=act)
        check(got, *expected)


@pytest.mark.parametrize("hidden, inter", [(320, 128), (128, 96), (64, 64), (96, 128)])
@pytest.mark.parametrize("format", ["mxfp4", "nvfp4"])
def test_scales_that_are_mostly_padding(rng, format, hidden, inter):
    """Matrices of a few columns or rows, whose scales are padded to 4 columns and 128 rows."""
    experts, tokens = 3, 5
    up, gate, down = (sluice_moe.quantize_weights(rng.normal(size=(experts, *s)).astype(np.float32) / 8, format)
                      for s in ((inter, hidden), (inter, hidden), (hidden, inter)))
    values = [block_values(w, format) for w in (up, gate, down)]
    w1, w2 = shuffled(np.concatenate([up.codes, gate.codes], 1), True), shuffled(down.codes, False)
    s1, s2 = (np.stack([fi.block_scale_interleave(m) for m in shuffled(s, gated)])
              for s, gated in ((np.concatenate([up.scales, gate.scales], 1), True), (down.scales, False)))
    x = rng.normal(size=(tokens, hidden)).astype(np.float32)
    logits = rng.normal(size=(tokens, experts)).astype(np.float32)
    ids, weights = route_renormalize(logits, 2)
    ones, scalars = np.ones(experts, np.float32), [None] * 3
    if format == "mxfp4":
        codes, scales = fi.mxfp8_quantize(x, False)
        read, rounded = E4M3[codes] * E8M0[scales.reshape(tokens, -1)].repeat(32, 1), round_mxfp8
    else:
        codes, scales = fi.fp4_quantize(x, ones[:1], is_sf_swizzled_layout=False)
        read, rounded, scalars = E2M1[unpack(codes)] * E4M3[scales].repeat(16, 1), round_nvfp4, [ones / 4096] * 3
        values = [v / 4096 for v in values]
    def call(codes, s2):
        return fi.trtllm_fp4_block_scale_moe(logits, None, codes, scales, w1, s1, None, None, None, None, w2, s2, None, *scalars,
                                             experts, 2, None, None, inter, 0, experts, None, 1)[0]

    check(call(codes, s2), *layer(read, ids, weights, *values, swiglu, rounded))
    columns = codes.shape[1] - 16
    with pytest.raises(ValueError, match=f"hidden_states has {columns} columns and gemm1_weights {hidden // 2} bytes per row"):
        call(codes[:, :-16], s2)
    with pytest.raises(ValueError, match=f"gemm2_weights_scale: the scales have {s2.size - 4} elements"):
        call(codes, s2.reshape(-1)[:-4])
