# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's fused layers whose hidden states come quantised, on the CPU with numpy and on a GPU: against reference.py in
double precision."""
import importlib.util
import inspect
import re

import numpy as np
import pytest

import sluice_moe
import on_gpu
import sluice_moe.flashinfer as fi
from conftest import DEVICES
from reference import (
    E2M1, E4M3, E8M0, bf16, layer, relu2, round_e4m3, round_fp8_group, round_mxfp8, round_nvfp4, round_nvfp4_token,
    route_renormalize, swiglu, to_bf16, unpack,
)

E, K, H, I, T = 4, 2, 256, 128, 6
SWIGLU, RELU2 = 3, 6


@pytest.fixture(autouse=True, params=DEVICES)
def device(request, monkeypatch):
    if request.param == "cuda":
        monkeypatch.setitem(globals(), "fi", on_gpu.flashinfer)
    return request.param


def values_of(w, format):
    """What codes and scales read as, [E, rows, cols]."""
    if format == "bf16":
        return bf16(w.codes)
    if format == "nvfp4":
        return E2M1[unpack(w.codes)] * E4M3[w.scales].repeat(16, 2)
    if format == "mxfp4":
        return E2M1[unpack(w.codes)] * E8M0[w.scales].repeat(32, 2)
    codes = E4M3[w.codes]
    if format == "mxfp8":
        return codes * E8M0[w.scales].repeat(32, 2)
    if format == "fp8_block":
        return codes * w.scales.astype(np.float64).repeat(128, 1).repeat(128, 2)
    return codes


def joined(up, gate):
    return up if gate is None else np.concatenate([up, gate], 1)


def shuffled(w, gated, tile=128, reorder=True):
    """What FlashInfer's users do to a checkpoint's rows."""
    return np.stack([fi.shuffle_matrix_a(fi.reorder_rows_for_gated_act_gemm(m) if gated and reorder else m, tile) for m in w])


def interleaved(scales, gated):
    s = shuffled(scales, gated)
    return fi.block_scale_interleave(s).reshape(s.shape)


class Case:
    """Weights of a format, hidden states and a routing; `call` is what every function has in common."""

    def __init__(self, rng, format, act, local=(0, E)):
        self.gated, self.local = act == SWIGLU, local
        begin, count = local
        quantised = [sluice_moe.quantize_weights(rng.normal(size=(E, *s)).astype(np.float32) / 8, format)
                     for s in ((I, H), (I, H), (H, I))]
        self.up, self.gate, self.down = quantised if self.gated else (quantised[0], None, quantised[2])
        self.values = [None if w is None else values_of(w, format) for w in (self.up, self.gate, self.down)]
        self.x = rng.normal(size=(T, H)).astype(np.float32)
        self.x[3] = 0
        self.logits = rng.normal(size=(T, E)).astype(np.float32)
        self.ids, self.weights = route_renormalize(self.logits, K)
        self.here = np.where((self.ids >= begin) & (self.ids < begin + count), self.ids, -1)
        half = to_bf16(self.weights)
        packed = (self.ids.astype(np.int32) << 16 | half.astype(np.int32)).astype(np.int32)
        self.routings = [packed, (self.ids.astype(np.int32), half)]
        self.common = (E, K, None, None, I, begin, count, None)

    def cut(self, w):
        return w[self.local[0]:sum(self.local)]

    def matrices(self, names, prepare):
        """codes or scales of both products, prepared, of the local experts."""
        parts = [None if w is None else getattr(w, names) for w in (self.up, self.gate, self.down)]
        first = prepare(self.cut(joined(*parts[:2])), self.gated)
        return first, prepare(self.cut(parts[2]), False)


def check(got, expected, bound):
    assert (np.abs(bf16(got) - expected) <= bound).all(), np.max(np.abs(bf16(got) - expected) / bound)


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
    arguments = (hidden, scales, w1, s1, given[0], *vectors, w2, s2, given[1], None, None, None, *c.common)
    expected = layer(x, c.ids, c.weights, *c.values,
                     lambda *parts: swiglu(*parts, 1.702, 1.0, 0.5) if c.gated else relu2(*parts),
                     round_mxfp8 if inputs == "mxfp8" else lambda y: bf16(to_bf16(y)),
                     biases=biases if c.gated else [biases[0], None, biases[1]])
    (got,) = fi.trtllm_fp4_block_scale_moe(c.logits, None, *arguments, 1, activation_type=act)
    check(got, *expected)
    (got,) = fi.trtllm_fp4_block_scale_routed_moe(c.routings[0], None, *arguments, activation_type=act)
    check(got, *expected)


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
                          ({"fc1_expert_biases": ids}, "fc1_expert_biases is given"), ({"output_dtype": "float16"}, "out_dtype is float16")):
        with pytest.raises(sluice_moe.Unsupported, match=re.escape(sentence)):
            fi.cutlass_fused_moe(**{**dict(input=hidden, token_selected_experts=ids, token_final_scales=weights,
                                           fc1_expert_weights=w1, fc2_expert_weights=w2, output_dtype="bfloat16",
                                           quant_scales=scales, **ranks, **more), **bad})


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
            ({"gemm1_bias": np.zeros((E, 2 * I), np.float32)}, sluice_moe.Unsupported, "only one of gemm1_bias and gemm2_bias"),
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
            ({"output": np.zeros((T, H), np.float32)}, TypeError, "out is float32"),
            ({"per_token_scale": np.ones(T + 1, np.float32)}, ValueError, "per_token_scale has shape")):
        with pytest.raises(problem, match=re.escape(sentence)):
            fi.trtllm_fp4_block_scale_moe(**{**arguments, **more})
    routed = (c.routings[0], None, *list(arguments.values())[2:])
    for more in ({"routing_bias": ones}, {"gemm1_lora_delta": ones}):
        with pytest.raises(sluice_moe.Unsupported, match=f"{next(iter(more))} is given"):
            given = dict(zip(inspect.signature(fi.trtllm_fp4_block_scale_routed_moe).parameters, routed))
            fi.trtllm_fp4_block_scale_routed_moe(**{**given, **more})

    c = Case(rng, "mxfp8", SWIGLU)
    codes, scales = fi.mxfp8_quantize(c.x, False)
    (w1, w2), (s1, s2) = c.matrices("codes", shuffled), c.matrices("scales", interleaved)
    for more, sentence in (
            ({"use_shuffled_weight": False}, "weight_layout is 0 and use_shuffled_weight False; accepted: 0 (MajorK) with True"),
            ({"weight_layout": 2}, "weight_layout is 2 and use_shuffled_weight True"),
            ({"fp8_quantization_type": 0}, "fp8_quantization_type is 0; accepted: 1 (DeepSeekFp8), 2 (MxFp8)"),
            ({"gemm1_bias": w1[0]}, "gemm1_bias is given"), ({"gemm2_bias": w1[0]}, "gemm2_bias is given"),
            ({"num_fused_shared_experts": 2}, "num_fused_shared_experts is 2")):
        with pytest.raises(sluice_moe.Unsupported, match=re.escape(sentence)):
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


def as_torch(x):
    if isinstance(x, (list, tuple)):
        return type(x)(as_torch(v) for v in x)
    return on_gpu.to_torch(x) if isinstance(x, np.ndarray) else x


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed: none of its tensors")
@pytest.mark.parametrize("form", ["fp8", "deepseek", "deepseek shuffled", "mxfp8", "nvfp4", "nvfp4 per token", "mxfp4", "cutlass"])
def test_the_same_with_torch(rng, form, device):
    """torch's tensors on the CPU give the bits that numpy's arrays do; what FlashInfer takes as float8 may come so."""
    import torch
    if device != "cpu":
        pytest.skip("the CPU's")
    c = Case(rng, {"fp8": "fp8_tensor", "deepseek": "fp8_block", "mxfp8": "mxfp8", "mxfp4": "mxfp4"}.get(form.split()[0], "nvfp4"),
             SWIGLU)
    more = {"routing_method_type": 1}
    (w1, w2) = c.matrices("codes", shuffled)
    ones = np.full(E, 2.0**-7, np.float32)
    if form == "fp8":
        codes = sluice_moe.quantize(c.x, "fp8_static", input_scale=0.01).codes
        name, arguments, floats = "trtllm_fp8_per_tensor_scale_moe", [c.logits, None, codes, w1, ones, ones, w2, ones, *c.common, False], (2, 3, 6)
    elif form.startswith("deepseek"):
        q = sluice_moe.quantize(c.x, "fp8_group", layout="transposed")
        w1, w2 = c.matrices("codes", lambda w, gated: w)
        if "shuffled" in form:
            w1, w2 = (np.stack([fi.convert_to_block_layout(m, 128) for m in shuffled(w, False, 64)]) for w in (w1, w2))
            more |= {"use_shuffled_weight": True, "weight_layout": 2}
        s1, s2 = c.matrices("scales", lambda s, gated: s)
        name, arguments, floats = "trtllm_fp8_block_scale_moe", [c.logits, None, q.codes, q.scales, w1, s1, w2, s2, *c.common], (2, 4, 6)
    elif form == "mxfp8":
        codes, scales = fi.mxfp8_quantize(c.x, False)
        s1, s2 = c.matrices("scales", interleaved)
        name, arguments, floats = "trtllm_fp8_block_scale_moe", [c.logits, None, codes, scales, w1, s1, w2, s2, *c.common], (2, 4, 6)
        more |= {"use_shuffled_weight": True, "fp8_quantization_type": 2}
    elif form == "cutlass":
        w1, w2 = c.matrices("codes", lambda w, gated: w)
        s1, s2 = c.matrices("scales", lambda s, gated: fi.block_scale_interleave(s))
        scales = [np.float32([700]), s1.view(np.int32), ones, np.float32([100]), s2.view(np.int32), ones]
        name, floats, more = "cutlass_fused_moe", (), {}
        arguments = [to_bf16(c.x), c.ids.astype(np.int32), c.weights.astype(np.float32), w1.view(np.int64), w2.view(np.int64),
                     "bfloat16", scales]
    else:
        s1, s2 = c.matrices("scales", interleaved)
        if form == "mxfp4":
            codes, scales = fi.mxfp8_quantize(c.x, False)
            scalars_, floats = [None] * 3, (2, 3, 5, 11)
        elif form == "nvfp4":
            codes, scales = fi.fp4_quantize(c.x, np.float32([700]), is_sf_swizzled_layout=False)
            scalars_, floats = [ones] * 3, (3, 5, 11)
        else:
            codes, scales, more["per_token_scale"] = fi.nvfp4_quantize(c.x, None, fi.SfLayout.layout_linear, per_token_activation=True)
            scalars_, floats = [ones] * 3, (3, 5, 11)
        name = "trtllm_fp4_block_scale_moe"
        arguments = [c.logits, None, codes, scales, w1, s1, None, None, None, None, w2, s2, None, *scalars_, *c.common]
    function = getattr(fi, name)
    first = lambda out: out[0] if isinstance(out, list) else out
    expected = first(function(*arguments, **more))
    given = [as_torch(a) for a in arguments]
    for i in floats:
        given[i] = given[i].view(torch.float8_e4m3fn)
    got = first(function(*given, **{k: as_torch(v) for k, v in more.items()}))
    assert got.dtype is torch.bfloat16 and (got.view(torch.int16).numpy().view(np.uint16) == expected).all()
    output = torch.empty(T, H, dtype=torch.bfloat16)
    assert first(function(*given, **{k: as_torch(v) for k, v in more.items()}, output=output)) is output
    assert torch.equal(output, got)


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
