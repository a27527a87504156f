# SPDX-License-Identifier: Apache-2.0
"""Layers as SGLang and vLLM hold them after loading, in every format, against reference.py in double precision."""
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: no layers of SGLang and vLLM")

import sluice_moe  # noqa: E402
from conftest import DEVICES  # noqa: E402
from on_gpu import to_torch  # noqa: E402
from reference import (  # noqa: E402
    E2M1, E4M3, bf16, block_values, every_mantissa, layer, relu2, round_e4m3, round_fp8_group, round_mxfp8, round_nvfp4, swiglu,
    to_bf16, unpack,
)
from sluice_moe import _experts  # noqa: E402

E, K, H, I, T = 6, 2, 256, 128, 7
SCALE1, SCALE2 = 0.004, 0.05  # of static activations


def values_of(w, format):
    """What codes and scales read as, [E, rows, cols]."""
    factors = {"nvfp4": w.global_scales, "fp8_tensor": w.scales, "fp8_channel": w.scales}.get(format)
    values = block_values(w, format)
    return values if factors is None else values * factors.astype(np.float64).reshape(E, -1, 1)


class Case:
    """Weights of a format as parameters of a layer, and what they stand for."""

    def __init__(self, rng, format, gated, device, interleaved=False, names="modelopt"):
        self.gated, self.format = gated, format
        parts = [sluice_moe.quantize_weights(rng.normal(size=(E, *s)).astype(np.float32) / 8, format)
                 for s in ((I, H), (I, H), (H, I))]
        self.up, self.gate, self.down = parts if gated else (parts[0], None, parts[2])
        self.values = [None if w is None else values_of(w, format) for w in (self.up, self.gate, self.down)]
        self.device = device
        self.layer = types.SimpleNamespace()

        def first(name):
            halves = [getattr(w, name) for w in (self.gate, self.up) if w is not None]
            if interleaved:
                return np.stack(halves, 2).reshape(E, 2 * I, -1)
            return np.concatenate(halves, 1)

        def add(name, array, view=None):
            t = to_torch(np.ascontiguousarray(array), device)
            setattr(self.layer, name, torch.nn.Parameter(t if view is None else t.view(view), requires_grad=False))

        kind = torch.float8_e4m3fn if format.startswith("fp8") or format == "mxfp8" else None
        weight = "weight_packed" if names == "compressed" else "weight"
        add(f"w13_{weight}", first("codes"), kind)
        add(f"w2_{weight}", self.down.codes, kind)
        if format == "fp8_tensor":
            add("w13_weight_scale", np.stack([w.scales for w in (self.gate, self.up) if w is not None], 1))
            add("w2_weight_scale", self.down.scales)
        elif format == "fp8_channel":
            add("w13_weight_scale", first("scales").reshape(E, -1, 1))
            add("w2_weight_scale", self.down.scales.reshape(E, -1, 1))
        elif format != "bf16":
            scale = "weight_scale_inv" if format == "fp8_block" else "weight_scale"
            kind = torch.float8_e4m3fn if format == "nvfp4" else None
            add(f"w13_{scale}", first("scales"), kind)
            add(f"w2_{scale}", self.down.scales, kind)
        if format == "nvfp4":
            own = np.stack([w.global_scales for w in (self.gate, self.up) if w is not None], 1)
            if names == "compressed":  # encode factors
                add("w13_weight_global_scale", 1 / own)
                add("w2_weight_global_scale", 1 / self.down.global_scales)
            else:
                add("w13_weight_scale_2", own)
                add("w2_weight_scale_2", self.down.global_scales)
        self.x = to_bf16(rng.normal(size=(T, H)))
        self.ids = np.argsort(rng.normal(size=(T, E)), 1)[:, :K].astype(np.int64)
        self.ids[2, 1] = self.ids[4] = -1  # other ranks' experts
        self.weights = rng.uniform(0.1, 1, size=(T, K)).astype(np.float32)

    def static(self, names="modelopt"):
        for name, scale in (("w13", SCALE1), ("w2", SCALE2)):
            smaller = torch.full((E,), scale, device=self.device) * torch.linspace(0.5, 1, E, device=self.device)
            suffix, value = ("input_scale", smaller) if names == "modelopt" else ("input_global_scale", 1 / smaller)
            setattr(self.layer, f"{name}_{suffix}", torch.nn.Parameter(value, requires_grad=False))

    def held(self, **more):
        return _experts.Held(**{"top_k": K, "activation": "silu" if self.gated else "relu2", "gated": self.gated, **more})

    def run(self, experts):
        ids, weights = torch.from_numpy(self.ids).to(self.device), torch.from_numpy(self.weights).to(self.device)
        out = experts(to_torch(self.x, self.device), weights, ids)
        assert out.dtype == torch.bfloat16
        return out.double().cpu().numpy()

    def check(self, experts, first, second, act=None, biases=None):
        """first, second: how both products' inputs are rounded."""
        act = act or (swiglu if self.gated else relu2)
        expected, bound = layer(first(bf16(self.x)), self.ids, self.weights.astype(np.float64), *self.values, act, second,
                                biases=biases)
        got = self.run(experts)
        slack = (2.0**-8 * size_of(self) if self.format.startswith("fp8") and self.device == "cuda" else 0)
        assert (np.abs(got - expected) <= bound + slack).all()
        assert (got[4] == 0).all()


def size_of(c):
    """Hopper's FP8 sums keep 14 bits of the largest term: a bound by magnitudes of all."""
    up, gate, down = (None if v is None else np.abs(v) for v in c.values)
    out = np.zeros((T, H))
    for t in range(T):
        for e in c.ids[t]:
            if e >= 0:
                first = up[e] @ np.abs(bf16(c.x[t]))
                out[t] += down[e] @ (first * (first if gate is None else 1 + gate[e] @ np.abs(bf16(c.x[t]))))
    return out


def plain(y):
    return y


def to_static(scale):
    return lambda y: round_e4m3(y / np.float32(scale)) * np.float32(scale)


def token_e4m3(y):
    scale = np.maximum(np.abs(y).max(-1, keepdims=True), 1e-30) / 448
    return round_e4m3(y / scale) * scale


def round_tokens(y):
    """By the library's codes, which test_ops.py holds against the definition: bfloat16 rows often lie on the border of two
    codes or scales, which float32 decides. So do the next two."""
    q = sluice_moe.quantize(y.astype(np.float32), "nvfp4_token")
    return E2M1[unpack(q.codes)] * E4M3[q.scales].repeat(16, 1) * q.row_scales.astype(np.float64)[:, None]


def rows_e4m3(y):
    q = sluice_moe.quantize(y.astype(np.float32), "fp8_token")
    return E4M3[q.codes] * q.row_scales.astype(np.float64)[:, None]


def groups_e4m3(y):
    q = sluice_moe.quantize(y.astype(np.float32), "fp8_group")
    return E4M3[q.codes] * q.scales.astype(np.float64).repeat(128, 1)


ROUNDINGS = {
    "bf16": (plain, lambda y: bf16(to_bf16(y))), "mxfp8": (round_mxfp8, round_mxfp8),
    "fp8_block": (groups_e4m3, round_fp8_group), "fp8_channel": (rows_e4m3, token_e4m3),
    "fp8_tensor": (rows_e4m3, token_e4m3), "mxfp4": (plain, lambda y: bf16(to_bf16(y))),
}


@pytest.mark.parametrize("names", ["modelopt", "compressed"])
def test_static_scales_are_the_checkpoints(rng, names):
    """ModelOpt's decode factors bit for bit; of compressed-tensors' encode factors the inverse, as Sluice's loader and vLLM's
    own method take it. The largest of all experts counts."""
    for _ in range(200):
        given = (rng.uniform(1, 2, size=(2, E)) * 2.0 ** rng.integers(-20, 21, size=(2, E))).astype(np.float32)
        name = "input_scale" if names == "modelopt" else "input_global_scale"
        layer = types.SimpleNamespace(**{f"{w}_{name}": torch.nn.Parameter(torch.from_numpy(g)) for w, g in zip(("w13", "w2"), given)})
        expected = given.max(1) if names == "modelopt" else np.float32(1) / given.min(1)
        assert _experts._static(layer) == tuple(map(float, expected))


def test_inverting_a_decode_factor_twice_changes_no_code():
    """NVFP4 is rounded by the inverse of the decode factor. An engine that keeps that inverse, and a kernel that inverts it
    back and forth, round by the same one: for every float."""
    decode, one = every_mantissa(), np.float32(1)
    encode = one / decode
    assert (one / (one / encode) == encode).all()
    assert (one / encode != decode).any()  # the decode factor itself is lost


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("format", ROUNDINGS)
def test_formats(rng, format, gated, device):
    c = Case(rng, format, gated, device)
    experts = _experts.Experts(c.layer, c.held())
    c.check(experts, *ROUNDINGS[format])
    assert f"weights={format}" in experts.spec and "routed=1" in experts.spec
    # Other weights at the same addresses; the layer's own may go.
    other = Case(rng, format, gated, device)
    experts.load(other.layer)
    _experts.drop_weights(other.layer)
    assert other.layer.w13_weight.numel() == 0
    other.check(experts, *ROUNDINGS[format])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("how", ["static", "compressed", "per token", "weight only"])
def test_nvfp4(rng, gated, how, device):
    names = "compressed" if how == "compressed" else "modelopt"
    c = Case(rng, "nvfp4", gated, device, names=names)
    if how in ("static", "compressed"):
        c.static(names)
    experts = _experts.Experts(c.layer, c.held(per_token=how == "per token", weight_only=how == "weight only"))
    if how == "per token":
        c.check(experts, round_tokens, lambda y: round_tokens(bf16(to_bf16(y))))
    elif how == "weight only":
        c.check(experts, plain, lambda y: bf16(to_bf16(y)))
    else:
        c.check(experts, lambda y: round_nvfp4(y, np.float32(SCALE1)), lambda y: round_nvfp4(y, np.float32(SCALE2)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("format", ["fp8_tensor", "fp8_channel"])
def test_static_fp8(rng, format, device):
    c = Case(rng, format, True, device)
    c.static()
    c.check(_experts.Experts(c.layer, c.held()), to_static(SCALE1), to_static(SCALE2))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("interleaved", [True, False])
def test_gpt_oss(rng, interleaved, device):
    c = Case(rng, "mxfp4", True, device, interleaved=interleaved)
    biases = [bf16(to_bf16(rng.normal(size=(E, n)))) for n in (I, I, H)]
    halves = [biases[1], biases[0]]
    joined = np.stack(halves, 2).reshape(E, 2 * I) if interleaved else np.concatenate(halves, 1)
    c.layer.w13_bias = torch.from_numpy(joined).to(device, torch.bfloat16)
    c.layer.w2_bias = torch.from_numpy(biases[2]).to(device, torch.bfloat16)
    for held in ({"activation": "swigluoai" if interleaved else "swigluoai_uninterleave"}, {"alpha": 1.702, "limit": 7.0}):
        experts = _experts.Experts(c.layer, c.held(interleaved=interleaved, **held))
        c.check(experts, *ROUNDINGS["mxfp4"], act=lambda up, gate: swiglu(up, gate, 1.702, 1.0, 7.0), biases=biases)


def test_a_limit_alone_adds_nothing(rng):
    c = Case(rng, "bf16", True, "cpu")
    experts = _experts.Experts(c.layer, c.held(limit=0.25))
    c.check(experts, *ROUNDINGS["bf16"], act=lambda up, gate: swiglu(up, gate, limit=0.25))


def test_refusals(rng):
    def change(format="nvfp4", held={}, static=True, gated=True, **changes):
        c = Case(rng, format, gated, "cpu")
        if static:
            c.static()
        for name, value in changes.items():
            setattr(c.layer, name, value)
        return c.layer, c.held(**held)

    for (layer_, held), sentence in (
            (change(w13_weight=None), "no w13_weight"),
            (change(static=False), "NVFP4 weights without w13_input_scale"),
            (change(w13_weight_scale_2=None), "NVFP4 weights without w13_weight_scale_2"),
            (change(w13_weight_scale=torch.ones(E, 2 * I, 7)), "w13_weight_scale is float32"),
            (change(w13_weight_scale=None), "without scales"),
            (change("bf16", w13_weight_scale=torch.ones(E, 2)), "quantised while they are loaded"),
            (change("fp8_tensor", w2_weight=torch.ones(E, H, 96)), "twice the columns"),
            (change(w13_bias=torch.ones(E, 2 * I)), "a bias of one product alone"),
            (change(held={"activation": "swiglustep"}), "activation is 'swiglustep' with a gate; accepted: silu"),
            (change(held={"activation": "gelu", "limit": 1.0}), "limit is given with activation 'gelu'"),
            (change("bf16", gated=False, held={"activation": "tanh"}), "without a gate; accepted: silu, gelu, relu2")):
        with pytest.raises(sluice_moe.Unsupported, match=sentence):
            _experts.read(layer_, held)


def test_options_by_the_environment(rng, monkeypatch):
    c = Case(rng, "nvfp4", True, "cpu")
    monkeypatch.setenv("SLUICE_NVFP4_PER_TOKEN_ACTIVATION", "1")
    monkeypatch.setenv("SLUICE_MOE_SPEC", "deterministic=1")
    experts = _experts.Experts(c.layer, c.held())
    assert "inputs=nvfp4_token" in experts.spec and experts.spec.endswith("deterministic=1")
    c.check(experts, round_tokens, lambda y: round_tokens(bf16(to_bf16(y))))

