# SPDX-License-Identifier: Apache-2.0
"""Quantisers against all codes in numpy, dense products and routing against double precision."""
import pickle

import numpy as np
import pytest

import sluice_moe
from reference import E2M1, E4M3, E8M0, bf16, nearest, route_renormalize, to_bf16, unpack

CODINGS = ["fp8_static", "fp8_token", "fp8_group", "mxfp8", "nvfp4", "nvfp4_token", "mxfp4"]
GROUP = {"fp8_group": 128, "mxfp8": 32, "mxfp4": 32, "nvfp4": 16, "nvfp4_token": 16}
T, K = 11, 200


def rows(rng):
    """Rows of very different sizes, a zero row, zeros and exact ties."""
    x = rng.normal(size=(T, K)).astype(np.float32) * 10.0 ** rng.integers(-3, 4, size=(T, 1)).astype(np.float32)
    x[3] = 0
    x[4, ::7] = 0
    x[5] = rng.integers(-12, 13, size=K) / 4  # quarters: between the codes of e2m1
    return x


def quantize(x, coding, **more):
    scale = {"fp8_static": 448, "nvfp4": 2688}.get(coding)
    if scale:
        more["input_scale"] = np.abs(x if x.dtype != np.uint16 else bf16(x)).max() / scale
    return sluice_moe.quantize(x, coding, **more)


def groups(values, coding):
    """[T, groups, columns of a group], the last one filled with zeros."""
    size = GROUP.get(coding, K)
    padded = np.zeros((T, -(-K // size) * size))
    padded[:, :K] = values
    return padded.reshape(T, -1, size)


@pytest.mark.parametrize("coding", CODINGS)
def test_codes_are_nearest_under_their_scale(rng, coding):
    x = rows(rng)
    q = quantize(x, coding)
    four_bit = "4" in coding
    codes = unpack(q.codes)[:, :K] if four_bit else q.codes
    table = E2M1 if four_bit else E4M3
    scale = np.ones((T, K))
    if coding in GROUP:
        decoded = {"fp8_group": lambda s: s, "mxfp8": lambda s: E8M0[s], "mxfp4": lambda s: E8M0[s]}.get(
            coding, lambda s: E4M3[s])(q.scales).astype(np.float64)
        scale = np.repeat(decoded, GROUP[coding], axis=1)[:, :K]
    if q.row_scales is not None:
        scale = scale * q.row_scales[:, None].astype(np.float64)
    if q.input_scale is not None:
        scale = scale * q.input_scale[0]
    value = table[codes] * scale

    # What dequantize gives, in float32 with at most three roundings.
    assert (np.abs(sluice_moe.dequantize(q) - value) <= 3 * 2.0**-24 * np.abs(value) + 1e-44).all()
    # No other code is nearer by more than the float32 division and its rounding can hide.
    with np.errstate(divide="ignore", invalid="ignore"):
        target = np.where(scale > 0, x / scale, 0)
    best = np.abs(table[nearest(table, target)] - target)
    chosen = np.abs(table[codes] - target)
    readable = scale > 0  # under a scale that rounded to zero codes have no meaning
    assert (chosen <= best + 2.0**-21 * np.abs(target))[readable].all()

    # The scales, from their definitions.
    amax = np.abs(groups(x, coding)).max(-1)
    if coding == "fp8_token":
        np.testing.assert_allclose(q.row_scales[amax[:, 0] > 0], amax[amax[:, 0] > 0, 0] / 448, rtol=1e-6)
    elif coding == "fp8_group":
        np.testing.assert_allclose(q.scales[amax > 0], amax[amax > 0] / 448, rtol=1e-6)
    elif coding in ("mxfp8", "mxfp4"):  # the smallest power of two under which the largest value fits
        most = 448 if coding == "mxfp8" else 6
        mantissa, exponent = np.frexp(amax.astype(float) / most)  # mantissa in [0.5, 1)
        exponent = exponent.astype(float) - (mantissa == 0.5)
        assert (E8M0[q.scales][amax > 0] == 2.0 ** exponent[amax > 0]).all()
    elif coding == "nvfp4":
        want = E4M3[nearest(E4M3, amax / 6 / q.input_scale[0])]
        near = np.abs(E4M3[q.scales] - amax / 6 / q.input_scale[0])
        assert (near <= np.abs(want - amax / 6 / q.input_scale[0]) + 2.0**-18 * np.abs(want)).all()
    elif coding == "nvfp4_token":
        largest = np.abs(x).max(1)
        np.testing.assert_allclose(q.row_scales[largest > 0], largest[largest > 0] / 2688, rtol=1e-6)


@pytest.mark.parametrize("coding", CODINGS)
def test_bfloat16_reads_as_the_same_numbers(rng, coding):
    bits = to_bf16(rows(rng))
    narrow, wide = quantize(bits, coding), quantize(bf16(bits).astype(np.float32), coding)
    for a, b in zip(narrow[:3], wide[:3]):
        assert (a is None) == (b is None)
        assert a is None or (a == b).all()


@pytest.mark.parametrize("coding", ["mxfp8", "nvfp4_token", "mxfp4"])
@pytest.mark.parametrize("layout", ["128x4", "8x4"])
def test_layouts(rng, coding, layout):
    x = rows(rng)
    linear, other = quantize(x, coding), quantize(x, coding, layout=layout)
    assert (linear.codes == other.codes).all()
    tall = int(layout.split("x")[0])
    height, n = -(-T // tall) * tall, linear.scales.shape[1]
    padded = np.zeros((height, -(-n // 4) * 4), np.uint8)
    padded[:T, :n] = linear.scales
    tiles = padded.reshape(height // tall, tall, -1, 4).transpose(0, 2, 1, 3)  # tile row, tile column, row, column
    if tall == 128:  # 32 rows of 16: rows 0, 32, 64 and 96 beside each other
        tiles = tiles.reshape(*tiles.shape[:2], 4, 32, 4).transpose(0, 1, 3, 2, 4)
    assert (other.scales == tiles.reshape(-1)).all()
    assert (sluice_moe.dequantize(linear) == sluice_moe.dequantize(other)).all()


def test_transposed_groups(rng):
    x = rows(rng)
    linear, other = quantize(x, "fp8_group"), quantize(x, "fp8_group", layout="transposed")
    assert other.scales.shape == (2, T)
    assert (linear.scales.T == other.scales).all()
    assert (sluice_moe.dequantize(linear) == sluice_moe.dequantize(other)).all()


def test_into_given_tensors(rng):
    x = rows(rng)
    first = quantize(x, "nvfp4_token")
    out = first._replace(codes=np.full_like(first.codes, 0xEE), scales=np.full_like(first.scales, 0xEE),
                         row_scales=np.full_like(first.row_scales, np.nan))
    again = quantize(x, "nvfp4_token", out=out)
    assert again.codes is out.codes and (out.codes == first.codes).all() and (out.scales == first.scales).all()
    values = np.full((T, K), np.nan, np.float32)
    assert sluice_moe.dequantize(again, out=values) is values
    assert (values == sluice_moe.dequantize(first)).all()


@pytest.mark.parametrize("coding", ["fp8_static", "nvfp4"])
def test_an_input_scale_that_is_a_number(rng, coding):
    """It comes back as the float32 [1] that the rows were rounded by, of the library of the rows' tensor."""
    x = rows(rng)
    for scale in (0.1, np.float64(0.1), np.float32(0.1)):
        q = sluice_moe.quantize(x, coding, input_scale=scale, threads=np.int64(1))
        assert isinstance(q.input_scale, np.ndarray) and q.input_scale.dtype == np.float32
        assert q.input_scale.shape == (1,) and q.input_scale[0] == np.float32(0.1) and (q.input_scale * 2)[0] == np.float32(0.2)
        back = pickle.loads(pickle.dumps(q))
        assert (sluice_moe.dequantize(back) == sluice_moe.dequantize(q)).all()
        assert (sluice_moe.dequantize(q._replace(input_scale=scale)) == sluice_moe.dequantize(q)).all()


@pytest.mark.parametrize("change, kind, sentence", [
    (lambda x: {"coding": "fp9"}, ValueError, "coding is 'fp9'; accepted: fp8_static"),
    (lambda x: {"coding": "nvfp4"}, ValueError, "input_scale is None; nvfp4 needs the decode factor"),
    (lambda x: {"input_scale": 0.5}, ValueError, "input_scale is given; mxfp8 takes none"),
    (lambda x: {"coding": "nvfp4", "input_scale": 0}, ValueError, "input_scale is 0; accepted: a positive"),
    (lambda x: {"coding": "nvfp4", "input_scale": 1e-60}, ValueError, "input_scale is 1e-60; accepted: a positive, normal, finite"),
    (lambda x: {"coding": "nvfp4", "input_scale": np.ones(2, np.float32)}, ValueError, r"input_scale has shape \[2\]"),
    (lambda x: {"out": (x, x)}, TypeError, "out is tuple; accepted: None, sluice_moe.Quantized"),
    (lambda x: {"threads": 1.5}, TypeError, "threads is float; accepted: an integer"),
    (lambda x: {"threads": np.int64(-1)}, ValueError, "threads is -1; accepted: 0"),
    (lambda x: {"layout": "4x4"}, ValueError, "layout is '4x4'; accepted: linear"),
    (lambda x: {"layout": "transposed"}, sluice_moe.InvalidArgument, "mxfp8 do not come in layout transposed"),
    (lambda x: {"x": x[0]}, ValueError, r"x has shape \[200\]; accepted: \[any, any\]"),
    (lambda x: {"x": x.astype(np.float16)}, TypeError, "x is float16; accepted: float32, bfloat16, uint16"),
])
def test_quantize_refuses(rng, change, kind, sentence):
    x = rows(rng)
    args = {"x": x, "coding": "mxfp8", **change(x)}
    with pytest.raises(kind, match=sentence):
        sluice_moe.quantize(**args)


@pytest.mark.parametrize("format", ["bf16", "fp8_tensor", "fp8_channel", "fp8_block", "mxfp8", "nvfp4", "mxfp4"])
def test_weights(rng, format):
    values = rng.normal(size=(2, 130, 160)).astype(np.float32)
    m = sluice_moe.quantize_weights(values, format)
    info = sluice_moe.format_info(format)
    shapes = info.shapes(2, 130, 160)
    assert {k: t.shape for k, t in m._asdict().items() if t is not None} == shapes
    got = sluice_moe.dequantize_weights(m, format)
    scale = np.ones((2, 130, 160))
    if info.scale_type:
        decode = {"float32": lambda s: s.astype(np.float64), "float8_e8m0fnu": lambda s: E8M0[s],
                  "float8_e4m3fn": lambda s: E4M3[s]}[info.scale_type]
        s = decode(m.scales).reshape(2, -1, 1) if len(m.scales.shape) == 2 else decode(m.scales).reshape(m.scales.shape)
        if len(m.scales.shape) == 1:
            s = decode(m.scales).reshape(2, 1, 1)
        rows_, cols = info.group_rows or 130, info.group_cols or 160
        scale = s.repeat(rows_, 1)[:, :130].repeat(cols, 2)[:, :, :160]
    if info.global_scale:
        scale = scale * m.global_scales[:, None, None]
    table = {16: None, 8: E4M3, 4: E2M1}[info.bits]
    if table is None:
        assert (m.codes == to_bf16(values)).all()
        value = bf16(m.codes)
    else:
        codes = unpack(m.codes) if info.bits == 4 else m.codes
        value = table[codes] * scale
        target = values / scale
        best = np.abs(table[nearest(table, target)] - target)
        assert (np.abs(table[codes] - target) <= best + 2.0**-21 * np.abs(target)).all()
    assert (np.abs(got - value) <= 3 * 2.0**-24 * np.abs(value)).all()
    one = sluice_moe.quantize_weights(values[1], format)
    assert (one.codes[0] == m.codes[1]).all()


def test_odd_columns_have_no_four_bit_codes(rng):
    with pytest.raises(ValueError, match="values has 7 columns; mxfp4 stores two codes per byte"):
        sluice_moe.quantize_weights(np.ones((4, 7), np.float32), "mxfp4")


@pytest.mark.parametrize("format", ["bf16", "fp8_block", "mxfp8", "nvfp4", "mxfp4"])
def test_gemm(rng, format):
    n, k, t = 72, 160, 7
    w = sluice_moe.quantize_weights((0.3 * rng.normal(size=(n, k))).astype(np.float32), format)
    values = sluice_moe.dequantize_weights(w, format)[0].astype(np.float64)
    x, bias = rng.normal(size=(t, k)).astype(np.float32), rng.normal(size=n).astype(np.float32)
    gemm = sluice_moe.Gemm(w, format, inputs="plain", dtype=np.float32, bias=bias)
    assert (gemm.rows, gemm.cols) == (n, k)
    y = np.full((t, n), np.nan, np.float32)
    assert gemm(x, out=y) is y
    expected = x.astype(np.float64) @ values.T + bias
    size = np.abs(x).astype(np.float64) @ np.abs(values).T + np.abs(bias)
    assert (np.abs(y - expected) <= (k + 4) * 2.0**-24 * size).all()
    memory = np.empty(gemm.workspace_size(t) + 64, np.uint8)
    space = memory[-memory.ctypes.data % 64:][:gemm.workspace_size(t)]
    assert (gemm(x, workspace=space) == y).all()
    assert (sluice_moe.gemm(x, w, format, inputs="plain", dtype="float32", bias=bias) == y).all()
    if format != "bf16" and format != "mxfp4":  # rounded inputs are those of quantize()
        own = sluice_moe.format_info(format).inputs
        more = {"input_scale": float(np.abs(x).max() / 2688)} if own == "nvfp4" else {}
        rounded = sluice_moe.dequantize(sluice_moe.quantize(x, own, **more)).astype(np.float64)
        got = sluice_moe.gemm(x, w, format, dtype="float32", **more)
        size = np.abs(rounded) @ np.abs(values).T
        # The scales may multiply the sums instead of the terms: one more rounding for each group.
        assert (np.abs(got - rounded @ values.T) <= (2 * k + 4) * 2.0**-24 * size).all()
    with pytest.raises(ValueError, match=r"x has shape \[7, 159\]"):
        gemm(x[:, :-1].copy())
    with pytest.raises(ValueError, match="x is Quantized on the cpu"):
        gemm(sluice_moe.quantize(x, "mxfp8"))
    with pytest.raises(sluice_moe.InvalidArgument, match="nobody multiplies these"):
        sluice_moe.Gemm(w, format, inputs="nvfp4" if format != "nvfp4" else "mxfp8")


@pytest.mark.parametrize("scale", [1e-60, 1e-40, 1e300, 10**400, float("nan"), -1.0])
def test_input_scales_are_those_of_float32(rng, scale):
    """1e-60 would be 0 in float32, which a C struct has for 1."""
    w = sluice_moe.quantize_weights(rng.normal(size=(32, 64)).astype(np.float32), "fp8_channel")
    how = {"inputs": "fp8_static", "dtype": "float32"}
    with pytest.raises(ValueError, match="input_scale is .*; accepted: a positive, normal, finite float32"):
        sluice_moe.Gemm(w, "fp8_channel", input_scale=scale, **how)
    gemm = sluice_moe.Gemm(w, "fp8_channel", input_scale=2.0**-126, **how)
    with pytest.raises(ValueError, match="input_scale is "):
        gemm.refit(w, input_scale=scale)
    spec = "experts=1 top_k=1 hidden=64 inter=32 weights=fp8_channel inputs=fp8_static act=relu2 dtype=float32"
    down = sluice_moe.quantize_weights(rng.normal(size=(64, 32)).astype(np.float32), "fp8_channel")
    for name in ("input_scale1", "input_scale2"):
        with pytest.raises(ValueError, match=f"weights.{name} is "):
            sluice_moe.FusedMoE(spec, sluice_moe.MoeWeights(up=w, down=down, **{name: scale}))


@pytest.mark.parametrize("format", ["bf16", "fp8_block", "mxfp4"])
def test_gemm_in_memory_of_the_caller(rng, format):
    n, k, t = 72, 160, 7
    matrices = [sluice_moe.quantize_weights((0.3 * rng.normal(size=(n, k))).astype(np.float32), format) for _ in range(2)]
    values = [sluice_moe.dequantize_weights(w, format)[0].astype(np.float64) for w in matrices]
    x, biases = rng.normal(size=(t, k)).astype(np.float32), rng.normal(size=(2, n)).astype(np.float32)
    how = {"inputs": "plain", "dtype": "float32"}
    size = sluice_moe.Gemm.prepared_size(format, n, k, device="cpu", **how)
    memory = np.full(size + 192, 0x7F, np.uint8)
    begin = -memory.ctypes.data % 64 + 64
    own = memory[begin:begin + size]

    def check(y, i):
        magnitude = np.abs(x).astype(np.float64) @ np.abs(values[i]).T + np.abs(biases[i])
        assert (np.abs(y - (x.astype(np.float64) @ values[i].T + biases[i])) <= (k + 4) * 2.0**-24 * magnitude).all()

    gemm = sluice_moe.Gemm(matrices[0], format, bias=biases[0], memory=own, **how)
    check(gemm(x), 0)
    before = own.copy()
    gemm.refit(matrices[1], bias=biases[1])
    check(gemm(x), 1)
    assert (own != before).any()
    before_call = own.copy()
    codes = matrices[0].codes
    inside = own[:codes.nbytes].view(codes.dtype).reshape(codes.shape)  # what is read would be written over
    for call, sentence in (
            (lambda: gemm(x, out=own[:t * n * 4].view(np.float32).reshape(t, n)), "out and the prepared weights share memory"),
            (lambda: gemm(x, workspace=own[:64]), "workspace and the prepared weights share memory"),
            (lambda: gemm.refit(matrices[0]._replace(codes=inside), bias=biases[0]), "memory and weights share memory"),
            (lambda: gemm.refit(matrices[0], bias=own[:n * 4].view(np.float32)), "memory and weights share memory"),
            (lambda: sluice_moe.Gemm(matrices[0]._replace(codes=inside), format, memory=own, **how),
             "memory and weights share memory")):
        with pytest.raises(ValueError, match=sentence):
            call()
    assert (own == before_call).all()
    with pytest.raises(sluice_moe.InvalidArgument, match="a refit cannot add or drop the bias"):
        gemm.refit(matrices[0])
    with pytest.raises(ValueError, match=r"has shape \[1, 71, "):
        gemm.refit(sluice_moe.quantize_weights(np.ones((n - 1, k), np.float32), format), bias=biases[0])
    check(gemm(x), 1)  # what was refused changed nothing
    gemm.refit(matrices[0], bias=biases[0])
    assert (own == before).all()
    assert (memory[:begin] == 0x7F).all() and (memory[begin + size:] == 0x7F).all()
    for bad, problem, sentence in (
            (memory[begin + 8:], ValueError, "accepted: multiples of 64"), (own[::2], ValueError, "memory has strides"),
            (own[:-1], sluice_moe.InvalidArgument, f"memory has {size - 1} bytes; the prepared weights need {size}"),
            (bytes(size), ValueError, "memory is read-only")):
        with pytest.raises(problem, match=sentence):
            sluice_moe.Gemm(matrices[0], format, memory=bad, **how)
    with pytest.raises(sluice_moe.InvalidArgument, match="both must be positive"):
        sluice_moe.Gemm.prepared_size(format, 0, k, device="cpu")


def test_route(rng):
    spec = "experts=9 top_k=3 hidden=32 inter=32 dtype=float32"
    logits = rng.permuted(np.tile(np.arange(9.0), (20, 1)), axis=1)  # apart by more than float32 errs
    logits = (logits / 3 + rng.uniform(-0.1, 0.1, size=(20, 9))).astype(np.float32)
    ids, weights = sluice_moe.route(spec, logits)
    want_ids, want = route_renormalize(logits, 3)
    assert (ids == want_ids).all()
    np.testing.assert_allclose(weights, want, rtol=1e-6)
    bias = rng.normal(size=9).astype(np.float32)
    ids, weights = sluice_moe.route(spec + " routing=deepseek_v3 routed_scale=2.5", logits, bias=bias)
    p = 1 / (1 + np.exp(-logits.astype(np.float64)))
    score = np.take_along_axis(p + bias, ids, 1)
    want = -np.sort(-(p + bias), axis=1)[:, :3]
    np.testing.assert_allclose(score, want, atol=1e-6)  # of two that are nearer than float32 errs, either
    assert (np.sort(ids, axis=1)[:, 1:] > np.sort(ids, axis=1)[:, :-1]).all()
    chosen = np.take_along_axis(p, ids, 1)
    np.testing.assert_allclose(weights, 2.5 * chosen / chosen.sum(1, keepdims=True), rtol=1e-5)
    with pytest.raises(sluice_moe.InvalidArgument, match="routing renormalize ignores it"):
        sluice_moe.route(spec, logits, bias=bias)
    with pytest.raises(ValueError, match=r"logits has shape \[20, 8\]; accepted: \[any, 9\]"):
        sluice_moe.route(spec, logits[:, :8].copy())
