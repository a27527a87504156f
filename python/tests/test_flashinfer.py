# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's layouts and calls, on the CPU with numpy and on a GPU: layouts by their published formulas, results in double."""
import re

import numpy as np
import pytest

import sluice_moe
import sluice_moe.flashinfer as fi
from flashinfer_case import device  # noqa: F401 - a fixture of every test
from reference import E2M1, E4M3, E8M0, bf16, every_mantissa, nearest, swiglu_moe, to_bf16, unpack
from sluice_moe.flashinfer._layouts import linear_scales

E, K, H, I, T = 4, 2, 128, 128, 9


def place_128x4(m, k, groups):
    return (m // 128 * -(-groups // 4) + k // 4) * 512 + m % 32 * 16 + m % 128 // 32 * 4 + k % 4


def test_layouts(rng):
    x = rng.integers(0, 256, size=(256, 6)).astype(np.uint8)
    flat = fi.block_scale_interleave(x)
    assert flat.shape == (256 * 8,)
    for m, k in [(0, 0), (1, 5), (31, 3), (32, 0), (200, 4), (255, 5)]:
        assert flat[place_128x4(m, k, 6)] == x[m, k]
    assert (flat != 0).sum() == (x != 0).sum()
    assert (linear_scales(flat, 256, 6) == x).all()
    assert (fi.block_scale_interleave(np.stack([x, x])) == np.concatenate([flat, flat])).all()
    out = np.empty(256 * 8, np.uint8)
    assert fi.block_scale_interleave(x, out=out) is out and (out == flat).all()

    # Published maps of old rows to new ones.
    to32 = [0, 8, 16, 24, 1, 9, 17, 25]
    shuffled = fi.shuffle_matrix_a(x, 128)
    for old, new in enumerate(to32):
        assert (shuffled[new] == x[old]).all() and (shuffled[new + 32] == x[old + 32]).all()
    shuffled = fi.shuffle_matrix_a(x, 64)
    for old, new in enumerate([0, 8, 1, 9, 2, 10]):
        assert (shuffled[new] == x[old]).all()
    assert (fi.shuffle_matrix_sf_a(x, 128) == fi.block_scale_interleave(fi.shuffle_matrix_a(x, 128))).all()
    gated = fi.reorder_rows_for_gated_act_gemm(x)
    assert (gated[0::2] == x[:128]).all() and (gated[1::2] == x[128:]).all()
    blocks = fi.convert_to_block_layout(x, 2)
    assert blocks.shape == (3, 256, 2) and (blocks[1] == x[:, 2:4]).all()


def test_quantisers(rng):
    x = rng.normal(size=(37, 96)).astype(np.float32)
    codes, scales = fi.mxfp8_quantize(x, False)
    assert codes.shape == (37, 96) and scales.shape == (37 * 3,)
    value = E4M3[codes] * E8M0[scales.reshape(37, 3)].repeat(32, 1)
    amax = np.abs(x).reshape(37, 3, 32).max(-1).repeat(32, 1)
    assert (np.abs(value - x) <= amax / 14).all()  # half a step of 32 in 256 to 448
    swizzled = fi.mxfp8_quantize(x)[1]
    assert (linear_scales(swizzled, 37, 3).reshape(-1) == scales).all()
    padded, more = fi.mxfp8_quantize(x, False, alignment=128)
    assert padded.shape == (37, 128) and (padded[:, :96] == codes).all() and (padded[:, 96:] == 0).all()
    assert (more.reshape(37, 4)[:, :3].reshape(-1) == scales).all()

    encode = np.array([2688 / np.abs(x).max()], np.float32)
    codes, scales = fi.fp4_quantize(x, encode, is_sf_swizzled_layout=False)
    assert codes.shape == (37, 48) and scales.shape == (37, 6)
    value = E2M1[unpack(codes)] * E4M3[scales].repeat(16, 1) / encode
    amax = np.abs(x).reshape(37, 6, 16).max(-1).repeat(16, 1)
    assert (np.abs(value - x) <= amax / 3).all()
    assert (linear_scales(fi.nvfp4_quantize(x, encode)[1], 37, 6) == scales).all()
    assert fi.nvfp4_quantize(x, encode)[1].shape == fi.nvfp4_quantize(x, None, per_token_activation=True)[1].shape == (128, 8)
    assert fi.nvfp4_quantize(x, encode, fi.SfLayout.layout_8x4)[1].shape == (40, 8)
    assert fi.mxfp4_quantize(x)[1].shape == (128, 4)
    assert (linear_scales(fi.nvfp4_quantize(x, encode, fi.SfLayout.layout_8x4)[1], 37, 6, "8x4") == scales).all()
    again = 1 / (1 / encode)  # in float32 not always what it was
    assert (fi.fp4_quantize(x, 1 / encode, is_global_scale_inversed=True)[0] == fi.fp4_quantize(x, again)[0]).all()
    weights = rng.normal(size=(128, 64)).astype(np.float32)
    shuffled, sf = fi.nvfp4_quantize(weights, encode, do_shuffle=True)
    plain, plain_sf = fi.fp4_quantize(weights, encode, is_sf_swizzled_layout=False)
    assert (shuffled == fi.shuffle_matrix_a(plain, 128)).all()
    assert (sf.reshape(-1) == fi.shuffle_matrix_sf_a(plain_sf, 128)).all()
    codes, scales, rows = fi.nvfp4_quantize(x, None, fi.SfLayout.layout_linear, per_token_activation=True)
    np.testing.assert_allclose(rows, np.abs(x).max(1) / 2688, rtol=1e-6)
    codes, scales = fi.mxfp4_quantize(x, sfLayout=fi.SfLayout.layout_linear)
    assert (np.abs(E2M1[unpack(codes)] * E8M0[scales].repeat(32, 1) - x) <=
            np.abs(x).reshape(37, 3, 32).max(-1).repeat(32, 1) / 3).all()


@pytest.mark.parametrize("per_token", [False, True])
def test_shuffled_nvfp4(rng, per_token):
    """A row's codes, scales and own factor move together."""
    x = (rng.normal(size=(64, 96)) * np.exp(rng.normal(size=(64, 1)))).astype(np.float32)
    one, how = np.ones(1, np.float32), {"per_token_activation": per_token}
    codes, scales, *rows = fi.nvfp4_quantize(x, one, fi.SfLayout.layout_linear, **how)
    moved, swizzled, *moved_rows = fi.nvfp4_quantize(x, one, do_shuffle=True, **how)
    old = np.arange(64)
    new = old // 32 * 32 + old % 32 // 4 + 8 * (old % 4)  # the published map
    assert (moved[new] == codes).all() and (codes[1:] != codes[:-1]).any(1).all()
    assert swizzled.shape == (128, 8)
    assert (swizzled.reshape(-1)[place_128x4(new[:, None], np.arange(6), 6)] == scales).all()
    assert (swizzled != 0).sum() == (scales != 0).sum()
    assert len(rows) == len(moved_rows) == per_token
    for row in moved_rows:
        np.testing.assert_allclose(row[new], np.abs(x).max(1) / 2688, rtol=1e-6)


def test_a_global_scale_that_is_no_inverse(rng):
    """Of the floats a sixth are no float's inverse. Scales at the border between two codes, where the inverse of the inverse
    gives the neighbouring code, are those of the given factor."""
    one = np.float32(1)
    all_of_them = every_mantissa()
    back = one / (one / all_of_them)
    least, most = (one / np.nextafter(one / all_of_them, to) for to in (np.float32(0), np.float32(2)))
    none = (back != all_of_them) & (least != all_of_them) & (most != all_of_them)
    assert (none == (back != all_of_them)).all() and 0.171 < none.mean() < 0.172
    borders = (E4M3[0x50:0x7e] + E4M3[0x51:0x7f]) / 2  # 8 to 448
    count = 0
    for encode in rng.choice(all_of_them[none], 40) * np.float32(2) ** rng.integers(-8, 9, 40).astype(np.float32):
        factor, other = (np.float32(g * np.float32(1 / 6)) for g in (encode, one / (one / encode)))
        amax = (borders / factor).astype(np.float32).view(np.int32)[:, None] + np.arange(-2, 3, dtype=np.int32)
        amax = amax.view(np.float32).reshape(-1)
        expected = nearest(E4M3, amax * factor)
        count += (expected != nearest(E4M3, amax * other)).sum()
        x = (rng.uniform(-1, 1, size=(len(amax), 16)) * amax[:, None]).astype(np.float32)
        x[:, 3] = amax
        codes, scales = fi.fp4_quantize(x, np.array([encode]), is_sf_swizzled_layout=False)
        assert (scales[:, 0] == expected).all()
        inverse = one / (E4M3[expected].astype(np.float32) * (one / encode))
        assert (unpack(codes) == nearest(E2M1, x * inverse[:, None])).all()
    assert count > 0


def test_rows_of_zeros_are_zeros():
    zeros = np.zeros((16, 64), np.float16)
    largest = np.array([np.finfo(np.float32).max], np.float32)  # 448 * 6 / amax, as FlashInfer bounds it
    for out in (fi.nvfp4_quantize(zeros, largest), fi.nvfp4_quantize(zeros, None, per_token_activation=True)):
        for tensor in out:
            assert not tensor.any()
    some = zeros.copy()
    some[3] = 6
    rows = fi.nvfp4_quantize(some, None, per_token_activation=True, out_scale=np.float32(2))[2]
    assert rows[3] == np.float32(6 / 2688) * 2 and not np.delete(rows, 3).any()


def test_what_quantisers_take(rng):
    half = rng.normal(size=(5, 64)).astype(np.float16)
    one = np.ones(1, np.float32)
    for quantise in (lambda x: fi.mxfp8_quantize(x), lambda x: fi.fp4_quantize(x, one), lambda x: fi.mxfp4_quantize(x),
                     lambda x: fi.nvfp4_quantize(x, None, per_token_activation=True)):
        for narrow, wide in zip(quantise(half), quantise(half.astype(np.float32))):
            assert (narrow == wide).all()
    codes, scales = fi.fp4_quantize(half, one * 3)
    for factor in (np.float16(3).reshape(1), np.array(3, np.float32)):
        for got, expected in zip(fi.fp4_quantize(half, factor), (codes, scales)):
            assert (got == expected).all()
    # A batch of matrices is quantised as their rows are; UE8M0 scales have no global scale.
    stacked = fi.fp4_quantize(half[None], one * 3)
    assert stacked[0].shape == (1, 5, 32) and (stacked[0][0] == codes).all() and (stacked[1] == scales).all()
    assert (fi.mxfp8_quantize(half[None])[0] == fi.mxfp8_quantize(half)[0][None]).all()
    for got, expected in zip(fi.fp4_quantize(half, one * 3, 32, True), fi.mxfp4_quantize(half)):
        assert (got == expected).all()
    for call, sentence in (
            (lambda: fi.fp4_quantize(half, np.ones(5, np.float32)), "global_scale has shape [5]; accepted: [1], []"),
            (lambda: fi.fp4_quantize(half[:, :40], one), "input has 40 columns; accepted: multiples of sf_vec_size, 16"),
            (lambda: fi.mxfp8_quantize(half[0]), "input has shape [64]; accepted: [M, K], [.., M, K]"),
            (lambda: fi.fp4_quantize(half, -one), "global_scale is -1.0; accepted: 0 or more"),
            (lambda: fi.nvfp4_quantize(half, -one), "a_global_sf is -1.0; accepted: 0 or more"),
            (lambda: fi.nvfp4_quantize(half[:, :40], one), "a has 40 columns; accepted: multiples of 16"),
            (lambda: fi.nvfp4_quantize(half[:, :40], None, fi.SfLayout.layout_linear, per_token_activation=True),
             "a has 40 columns; accepted: multiples of 16"),
            *((lambda layout=layout, token=token: fi.nvfp4_quantize(half, one, layout, True, per_token_activation=token),
               f"sfLayout is {layout} with do_shuffle; accepted: SfLayout.layout_128x4")
              for layout in (fi.SfLayout.layout_8x4, fi.SfLayout.layout_linear) for token in (False, True)),
            *((lambda alignment=alignment: fi.mxfp8_quantize(half, alignment=alignment), f"alignment is {alignment}; accepted: ")
              for alignment in (0, -32, 48)),
            (lambda: fi.convert_to_block_layout(half, 0), "blockK is 0; accepted: 1 to"),
            (lambda: fi.block_scale_interleave(np.ones((3, 5), np.uint8), out=np.zeros(1023, np.uint8)),
             "out has 1023 elements; accepted: 1024, padding among them"),
            (lambda: fi.nvfp4_quantize(half[None], one), "a has shape [1, 5, 64]; accepted: 2 dimensions"),
            (lambda: fi.reorder_rows_for_gated_act_gemm(half[0]), "x has shape [64]; accepted: 2 dimensions")):
        with pytest.raises(ValueError, match=re.escape(sentence)):
            call()
    for call, sentence in (
            (lambda: fi.fp4_quantize(half, 1.0), "global_scale is float; accepted: None, a tensor [1]"),
            (lambda: fi.fp4_quantize(half.astype(np.float64), one),
             "input is float64; accepted: float32, bfloat16, uint16, float16"),
            (lambda: fi.nvfp4_quantize(half.astype(np.float64), one), "a is float64; accepted: float32, bfloat16"),
            (lambda: fi.mxfp8_quantize(half, alignment=32.0), "alignment is float; accepted: an integer"),
            (lambda: fi.block_scale_interleave(np.ones((3, 5), np.uint8), out=np.zeros(256, np.float32)),
             "out is float32; accepted: ")):
        with pytest.raises(TypeError, match=re.escape(sentence)):
            call()


def test_dense_products(rng):
    a, w = rng.normal(size=(11, 128)).astype(np.float32), rng.normal(size=(48, 128)).astype(np.float32)
    (qa, sa), (qw, sw) = fi.mxfp8_quantize(a), fi.mxfp8_quantize(w)
    x = E4M3[qa] * E8M0[linear_scales(sa, 11, 4)].repeat(32, 1)
    y = E4M3[qw] * E8M0[linear_scales(sw, 48, 4)].repeat(32, 1)
    got = fi.mm_mxfp8(qa, qw.T, sa, sw)
    bound = (2.0**-9 + 130 * 2.0**-24) * (np.abs(x) @ np.abs(y).T)
    assert got.dtype == np.uint16 and (np.abs(bf16(got) - x @ y.T) <= bound).all()
    out = np.empty((11, 48), np.uint16)
    assert (fi.mm_mxfp8(qa, qw.T, sa, sw, out) == got).all() and (out == got).all()
    small = fi.mxfp8_quantize(a, sf_swizzle_layout=fi.SfLayout.layout_8x4)[1]
    assert (fi.mm_mxfp8(qa, qw.T, small, sw, use_8x4_sf_layout=True) == got).all()
    assert (fi.mm_mxfp8(qa, qw.T, linear_scales(sa, 11, 4), linear_scales(sw, 48, 4).T) == got).all()
    for bad, sentence in (
            ((qa, qw.T, sa, sw[:-4]), "the scales have"),
            ((qa[None], qw.T, sa, sw), "a has shape [1, 11, 128] and b [128, 48]; mm_mxfp8 accepts 2d tensors"),
            ((qa, qw, sa, sw), "b has 48 rows; accepted: 128, a's columns"),
            ((qa, qw.T, sa[None, :, None], sw), "a_descale must be 1D (swizzled) or 2D (non-swizzled)"),
            ((qa, qw.T, sa, linear_scales(sw, 48, 4)), "b_descale has shape [4, 48]; accepted in 2 dimensions: linear scales of [48, 4]")):
        with pytest.raises(ValueError, match=re.escape(sentence)):
            fi.mm_mxfp8(*bad)
    half = fi.mm_mxfp8(qa, qw.T, sa, sw, out_dtype=np.float16)  # 10 bits of mantissa; the least normal number is 2^-14
    narrow = (2.0**-11 + 130 * 2.0**-24) * (np.abs(x) @ np.abs(y).T) + 2.0**-25
    assert half.dtype == np.float16 and (np.abs(half - x @ y.T) <= narrow).all()
    out = np.full((11, 48), np.nan, np.float16)
    assert (fi.mm_mxfp8(qa, qw.T, sa, sw, out, np.float16) == half).all() and (out == half).all()
    with pytest.raises(TypeError, match="out is float32; accepted: float16"):
        fi.mm_mxfp8(qa, qw.T, sa, sw, np.empty((11, 48), np.float32), np.float16)
    with pytest.raises(sluice_moe.Unsupported, match="out_dtype is float32; accepted: bfloat16, float16"):
        fi.mm_mxfp8(qa, qw.T, sa, sw, out_dtype=np.float32)

    ga, gw = (np.array([2688 / np.abs(t).max()], np.float32) for t in (a, w))
    (qa, sa), (qw, sw) = fi.nvfp4_quantize(a, ga), fi.nvfp4_quantize(w, gw)
    x = E2M1[unpack(qa)] * E4M3[linear_scales(sa, 11, 8)].repeat(16, 1)
    y = E2M1[unpack(qw)] * E4M3[linear_scales(sw, 48, 8)].repeat(16, 1)
    alpha = 1 / (ga * gw)
    bound = (2.0**-9 + 130 * 2.0**-24) * (np.abs(x) @ np.abs(y).T) * alpha
    assert (np.abs(bf16(fi.mm_fp4(qa, qw.T, sa, sw, alpha)) - alpha * (x @ y.T)) <= bound).all()
    # FlashInfer's users give the transposed view of b's scales, too, which lie in memory as they did.
    got = fi.mm_fp4(qa, qw.T, sa, sw, alpha)
    assert (fi.mm_fp4(qa, qw.T, sa.reshape(-1), sw.T, alpha) == got).all()
    half = fi.mm_fp4(qa, qw.T, sa, sw, alpha, np.float16)
    narrow = (2.0**-11 + 130 * 2.0**-24) * (np.abs(x) @ np.abs(y).T) * alpha + 2.0**-25
    assert half.dtype == np.float16 and (np.abs(half - alpha * (x @ y.T)) <= narrow).all()
    with pytest.raises(ValueError, match="mm_fp4 accepts 2d tensors"):
        fi.mm_fp4(qa, qw.T[None], sa, sw, alpha)
    per_row = np.repeat(alpha, 11) * np.arange(1, 12, dtype=np.float32)
    got = bf16(fi.mm_fp4(qa, qw.T, sa, sw, per_row))
    assert (np.abs(got - per_row[:, None] * (x @ y.T)) <= bound * np.arange(1, 12)[:, None]).all()
    for product in (fi.mm_fp4, fi.mm_mxfp8):  # trtllm's b is shuffled
        with pytest.raises(sluice_moe.Unsupported, match="backend is 'trtllm'; accepted: 'auto', 'cutlass', 'cudnn'"):
            product(qa, qw.T, sa, sw, backend="trtllm")
    with pytest.raises(sluice_moe.Unsupported, match="use_nvfp4 False"):
        fi.mm_fp4(qa, qw.T, sa, sw, alpha, use_nvfp4=False)


@pytest.mark.parametrize("shuffled", [True, False])
def test_bf16_layers(rng, shuffled):
    up, gate, down = (to_bf16(0.1 * rng.normal(size=s)) for s in ((E, I, H), (E, I, H), (E, H, I)))
    hidden = to_bf16(rng.normal(size=(T, H)))
    logits = rng.normal(size=(T, E)).astype(np.float32)
    w1, w2 = np.concatenate([up, gate], 1), down
    if shuffled:  # what FlashInfer's users do to their checkpoints
        w1 = np.stack([fi.convert_to_block_layout(fi.shuffle_matrix_a(fi.reorder_rows_for_gated_act_gemm(w), 128), 64)
                       for w in w1])
        w2 = np.stack([fi.convert_to_block_layout(fi.shuffle_matrix_a(w, 128), 64) for w in w2])
    layout = {"use_shuffled_weight": shuffled, "weight_layout": 2 if shuffled else 0}
    replay = np.full((T + 3, K), -9, np.int16)
    got = fi.trtllm_bf16_moe(logits, None, hidden, w1, w2, E, K, None, None, I, 0, E, None, 1, routing_replay_out=replay,
                             **layout)
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :K]
    weights = np.exp(np.take_along_axis(logits, ids, 1).astype(np.float64))
    weights /= weights.sum(1, keepdims=True)
    expected, size = swiglu_moe(bf16(hidden), ids, weights, bf16(up), bf16(gate), bf16(down))
    bound = 4 * 2.0**-8 * size
    assert (np.abs(bf16(got) - expected) <= bound).all()
    assert (replay[:T] == ids).all() and (replay[T:] == -9).all()
    for ignored in ({"routed_scaling_factor": 2.5}, {"norm_topk_prob": False}, {"topk_group": 1}):  # by this routing
        arguments = {"num_experts": E, "top_k": K, "n_group": None, "topk_group": None, "intermediate_size": I,
                     "local_expert_offset": 0, "local_num_experts": E, "routing_method_type": 1, **layout, **ignored}
        assert (fi.trtllm_bf16_moe(logits, None, hidden, w1, w2, **arguments) == got).all()
    output = np.empty((T, H), np.uint16)
    assert fi.trtllm_bf16_moe(logits, None, hidden, w1, w2, E, K, None, None, I, 0, E, None, 1, output=output,
                              **layout) is output
    assert (output == got).all()

    half = to_bf16(weights)
    packed = (ids.astype(np.int32) << 16 | half.astype(np.int32)).astype(np.int32)
    for given in (packed, (ids.astype(np.int32), half)):
        routed = fi.trtllm_bf16_routed_moe(given, hidden, w1, w2, E, K, None, None, I, 0, E, **layout)
        assert (np.abs(bf16(routed) - expected) <= bound).all()
    # A rank with the last two experts.
    part = fi.trtllm_bf16_moe(logits, None, hidden, w1[2:], w2[2:], E, K, None, None, I, 2, 2, None, 1, **layout)
    expected, size = swiglu_moe(bf16(hidden), np.where(ids >= 2, ids, -1), weights, bf16(up), bf16(gate), bf16(down))
    assert (np.abs(bf16(part) - expected) <= 4 * 2.0**-8 * size + 1e-30).all()
    with pytest.raises(sluice_moe.Unsupported, match="do_finalize is False"):
        fi.trtllm_bf16_moe(logits, None, hidden, w1, w2, E, K, None, None, I, 0, E, do_finalize=False, **layout)
    with pytest.raises(sluice_moe.Unsupported, match="activation_type is 5"):
        fi.trtllm_bf16_moe(logits, None, hidden, w1, w2, E, K, None, None, I, 0, E, activation_type=5, **layout)
