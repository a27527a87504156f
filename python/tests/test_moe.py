# SPDX-License-Identifier: Apache-2.0
"""FusedMoE against the definition in double precision; refit, shards, memory of the caller, and its refusals."""
import numpy as np
import pytest

import sluice_moe
from conftest import DEVICES
from reference import bf16, route_renormalize, swiglu_moe, to_bf16

E, K, H, I, T = 6, 2, 64, 96, 9
SPEC = f"experts={E} top_k={K} hidden={H} inter={I} weights=bf16 dtype=float32 act=swiglu routing=renormalize"


class Layer:
    def __init__(self, rng, format="bf16"):
        self.weights, self.values = {}, {}
        for name, shape in (("up", (E, I, H)), ("gate", (E, I, H)), ("down", (E, H, I))):
            self.weights[name] = sluice_moe.quantize_weights((0.3 * rng.normal(size=shape)).astype(np.float32), format)
            self.values[name] = sluice_moe.dequantize_weights(self.weights[name], format).astype(np.float64)
        self.x = rng.normal(size=(T, H)).astype(np.float32)
        self.logits = rng.normal(size=(T, E)).astype(np.float32)

    def moe_weights(self, **more):
        return sluice_moe.MoeWeights(**self.weights, **more)

    def expected(self, x=None):
        ids, weights = route_renormalize(self.logits, K)
        return swiglu_moe(self.x if x is None else x, ids, weights, **self.values)


# Float32 sums of at most H + I products, and a few operations around them.
BOUND = (H + I + 16) * 2.0**-24


def test_the_definition(rng):
    layer = Layer(rng)
    moe = sluice_moe.FusedMoE(SPEC, layer.moe_weights())
    out = np.full((T, H), np.nan, np.float32)
    ids, weights = np.full((T, K), -7, np.int32), np.full((T, K), np.nan, np.float32)
    got = moe(layer.x, layer.logits, out=out, chosen_ids=ids, chosen_weights=weights)
    assert got is out
    expected, size = layer.expected()
    assert (np.abs(out - expected) <= BOUND * size).all()
    want_ids, want_weights = route_renormalize(layer.logits, K)
    assert (ids == want_ids).all()
    np.testing.assert_allclose(weights, want_weights, rtol=1e-6)
    assert "chosen" in moe.explain() and moe.explain() == sluice_moe.explain(SPEC)


@pytest.mark.parametrize("format", ["fp8_tensor", "fp8_channel", "fp8_block", "mxfp8", "nvfp4", "mxfp4"])
def test_every_weight_format_with_plain_inputs(rng, format):
    spec = SPEC.replace("weights=bf16", f"weights={format} inputs=plain")
    layer = Layer(rng, format)
    expected, size = layer.expected()
    got = sluice_moe.FusedMoE(spec, layer.moe_weights())(layer.x, layer.logits)
    assert (np.abs(got - expected) <= BOUND * size).all()


def test_bfloat16_as_bits(rng):
    spec = SPEC.replace("dtype=float32", "dtype=bfloat16")
    layer = Layer(rng)
    x = to_bf16(layer.x)
    got = sluice_moe.FusedMoE(spec, layer.moe_weights())(x, layer.logits)
    assert got.dtype == np.uint16
    expected, size = layer.expected(bf16(x))
    # Roundings to bfloat16: the activation, GEMM2's result, the router weight, the output.
    assert (np.abs(bf16(got) - expected) <= (4 * 2.0**-8 + BOUND) * size).all()


def test_routed(rng):
    layer = Layer(rng)
    moe = sluice_moe.FusedMoE(SPEC + " routed=1", layer.moe_weights())
    ids = rng.integers(-1, E, size=(T, K)).astype(np.int32)
    weights = rng.normal(size=(T, K)).astype(np.float32)
    expected, size = swiglu_moe(layer.x, ids, weights, **layer.values)
    assert (np.abs(moe(layer.x, topk_ids=ids, topk_weights=weights) - expected) <= BOUND * size + 1e-30).all()
    half = to_bf16(weights)
    expected, size = swiglu_moe(layer.x, ids, bf16(half), **layer.values)
    for given in ({"topk_ids": ids, "topk_weights": half},
                  {"topk_ids": (ids << 16 | half.astype(np.int32)).astype(np.int32)}):
        assert (np.abs(moe(layer.x, **given) - expected) <= BOUND * size + 1e-30).all()
    with pytest.raises(ValueError, match="the spec says routed=1"):
        moe(layer.x, layer.logits)
    with pytest.raises(ValueError, match="topk_ids is None"):
        moe(layer.x)


def test_weights_are_copied_and_refitted(rng):
    first, second = Layer(rng), Layer(rng)
    weights = first.moe_weights()
    moe = sluice_moe.FusedMoE(SPEC, weights)
    expected, size = first.expected()
    for m in first.weights.values():
        m.codes[:] = 0x7FC0  # NaN
    assert (np.abs(moe(first.x, first.logits) - expected) <= BOUND * size).all()
    moe.refit(second.moe_weights())
    expected, size = second.expected()
    assert (np.abs(moe(second.x, second.logits) - expected) <= BOUND * size).all()


def test_biases_and_activation_parameters(rng):
    layer = Layer(rng)
    small = {name: (0.1 * rng.normal(size=(E, n))).astype(np.float32)
             for name, n in (("bias_up", I), ("bias_gate", I), ("bias_down", H))}
    params = {"alpha": np.full(E, 1.5, np.float32), "beta": np.full(E, 1.0, np.float32),
              "limit": np.full(E, 2.0, np.float32)}
    moe = sluice_moe.FusedMoE(SPEC + " bias=1 act_params=1", layer.moe_weights(**small, **params))
    got = moe(layer.x, layer.logits)
    ids, weights = route_renormalize(layer.logits, K)
    v = layer.values
    expected = np.zeros((T, H))
    for t in range(T):
        for e, w in zip(ids[t], weights[t]):
            u = np.clip(v["up"][e] @ layer.x[t] + small["bias_up"][e], -2, 2)
            g = np.minimum(v["gate"][e] @ layer.x[t] + small["bias_gate"][e], 2)
            expected[t] += w * (v["down"][e] @ ((u + 1) * g / (1 + np.exp(-1.5 * g))) + small["bias_down"][e])
    np.testing.assert_allclose(got, expected, atol=BOUND * layer.expected()[1].max() * 4)
    with pytest.raises(sluice_moe.InvalidArgument, match="limit is given, but the spec does not announce it"):
        sluice_moe.FusedMoE(SPEC, layer.moe_weights(limit=params["limit"]))
    with pytest.raises(ValueError, match=r"weights.limit has shape \[6, 1\]; accepted: \[6\]"):
        sluice_moe.FusedMoE(SPEC + " act_params=1", layer.moe_weights(limit=params["limit"][:, None]))


def test_workspace_of_the_caller(rng):
    layer = Layer(rng)
    moe = sluice_moe.FusedMoE(SPEC, layer.moe_weights())
    size = moe.workspace_size(T)
    memory = np.full(size + 192, 0x7F, np.uint8)
    begin = -memory.ctypes.data % 64 + 64
    expected = moe(layer.x, layer.logits)
    assert (moe(layer.x, layer.logits, workspace=memory[begin:begin + size]) == expected).all()
    assert (memory[:begin] == 0x7F).all() and (memory[begin + size:] == 0x7F).all()
    with pytest.raises(ValueError, match="accepted: multiples of 64"):
        moe(layer.x, layer.logits, workspace=memory[begin + 4:])
    with pytest.raises(sluice_moe.InvalidArgument, match=f"workspace_size is {size - 1}; a call of 9 tokens needs {size}"):
        moe(layer.x, layer.logits, workspace=memory[begin:begin + size - 1])


def test_prepared_weights_in_memory_of_the_caller(rng):
    first, second = Layer(rng), Layer(rng)
    size = sluice_moe.prepared_bytes(SPEC, "cpu")
    memory = np.full(size + 192, 0x7F, np.uint8)
    begin = -memory.ctypes.data % 64 + 64
    own = memory[begin:begin + size]
    moe = sluice_moe.FusedMoE(SPEC, first.moe_weights(), memory=own)
    plain = sluice_moe.FusedMoE(SPEC, first.moe_weights(), backend="cpu")
    assert (moe(first.x, first.logits) == plain(first.x, first.logits)).all()
    before = own.copy()
    moe.refit(second.moe_weights())
    plain.refit(second.moe_weights())
    assert (moe(second.x, second.logits) == plain(second.x, second.logits)).all() and (own != before).any()
    moe.refit(first.moe_weights())
    assert (own == before).all()
    assert (memory[:begin] == 0x7F).all() and (memory[begin + size:] == 0x7F).all()
    for bad, problem, sentence in (
            (memory[begin + 8:], ValueError, "accepted: multiples of 64"), (own.view(np.float32), TypeError, "memory is float32"),
            (own[:-1], sluice_moe.InvalidArgument, f"memory has {size - 1} bytes; the prepared weights need {size}"),
            (bytes(size), ValueError, "memory is read-only"), (own[::2], ValueError, "memory has strides")):
        with pytest.raises(problem, match=sentence):
            sluice_moe.FusedMoE(SPEC, first.moe_weights(), memory=bad)
    with pytest.raises(ValueError, match="backend is 'reference' with memory on the cpu; accepted: auto, cpu"):
        sluice_moe.FusedMoE(SPEC, first.moe_weights(), memory=own, backend="reference")
    with pytest.raises(sluice_moe.InvalidArgument, match="top_k"):
        sluice_moe.prepared_bytes(SPEC.replace("top_k=2", "top_k=9"), "cpu")


def test_memory_of_the_caller_is_the_prepared_weights_alone(rng):
    layer, weights = Layer(rng), Layer(rng).moe_weights()
    size = sluice_moe.prepared_bytes(SPEC, "cpu")
    memory = np.zeros(size + 4096, np.uint8)
    begin = -memory.ctypes.data % 64 + 64
    own = memory[begin:begin + size]
    inside = own[:E * I * H * 2].view(np.uint16).reshape(E, I, H)
    inside[:] = weights.up.codes
    before = memory.copy()
    weights.up = sluice_moe.Matrices(inside)
    with pytest.raises(ValueError, match="memory and weights share memory; accepted: a tensor of its own"):
        sluice_moe.FusedMoE(SPEC, weights, memory=own)
    assert (memory == before).all()  # what was refused changed nothing
    moe = sluice_moe.FusedMoE(SPEC, layer.moe_weights(), memory=own)
    before = memory.copy()
    with pytest.raises(ValueError, match="memory and weights share memory"):
        moe.refit(weights)
    output, space = T * H * 4, moe.workspace_size(T)
    for first in (begin, begin + size - 64 - size % 64):
        with pytest.raises(ValueError, match="out and the prepared weights share memory; accepted: a tensor of its own"):
            moe(layer.x, layer.logits, out=memory[first:first + output].view(np.float32).reshape(T, H))
    with pytest.raises(ValueError, match="workspace and the prepared weights share memory"):
        moe(layer.x, layer.logits, workspace=own[:min(space, size) // 64 * 64])
    with pytest.raises(ValueError, match="chosen_ids and the prepared weights share memory"):
        moe(layer.x, layer.logits, chosen_ids=own[:T * K * 4].view(np.int32).reshape(T, K))
    assert (memory == before).all()
    behind = begin + size + -size % 4  # the first place that is free
    out = memory[behind:behind + output].view(np.float32).reshape(T, H)
    expected, bound = layer.expected()
    assert (np.abs(moe(layer.x, layer.logits, out=out) - expected) <= BOUND * bound).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("format, inputs", [("bf16", "plain"), ("fp8_tensor", "fp8_static"), ("fp8_block", "fp8_group"), ("mxfp8", "mxfp8"),
                                            ("nvfp4", "nvfp4"), ("mxfp4", "plain")])
def test_a_refit_fills_memory_that_has_lost_all(rng, device, format, inputs):
    """As an engine's that sleeps: the same weights again, into memory with other bytes."""
    layer = Layer(rng, format)
    weights = layer.moe_weights(input_scale1=0.011, input_scale2=0.007,
                                **{f"bias_{n}": rng.normal(size=(E, w)).astype(np.float32) for n, w in (("up", I), ("gate", I), ("down", H))},
                                **{n: np.full(E, v, np.float32) for n, v in (("alpha", 1.5), ("beta", 0.5), ("limit", 3.0))})
    spec = SPEC.replace("weights=bf16 dtype=float32", f"weights={format} inputs={inputs} dtype=bfloat16 bias=1 act_params=1")
    size = sluice_moe.prepared_bytes(spec, device)
    x, logits = to_bf16(layer.x), layer.logits
    if device == "cpu":
        memory = np.empty(size + 64, np.uint8)
        memory = memory[-memory.ctypes.data % 64:][:size]
        lose, values = memory.fill, bf16
    else:
        import torch
        memory = torch.empty(size, dtype=torch.uint8, device=device)
        x, logits = torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).to(device), torch.from_numpy(logits).to(device)
        lose, values = memory.fill_, lambda out: out.float().cpu().numpy()
    moe = sluice_moe.FusedMoE(spec, weights, memory=memory, device=device)
    before = values(moe(x, logits))
    lose(0x7F)
    moe.refit(weights)
    after = values(moe(x, logits))
    assert np.isfinite(before).all() and (after == before).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tokens", [1, T])
def test_a_scale_of_given_weights(rng, device, tokens):
    """routed_scale multiplies what the call gives: packed, float32 or bfloat16."""
    layer = Layer(rng)
    ids, weights = route_renormalize(layer.logits[:tokens], K)
    ids, given = ids.astype(np.int32), bf16(to_bf16(weights.astype(np.float32))).astype(np.float32)
    spec = SPEC.replace("dtype=float32", "dtype=bfloat16") + " routed=1"
    x, scale = to_bf16(layer.x[:tokens]), 2.5
    tensors = {"x": x, "ids": ids, "scaled": (scale * given).astype(np.float32), "float32": given, "bfloat16": to_bf16(given),
               "packed": (ids << 16 | to_bf16(given).astype(np.int32)).astype(np.int32)}
    if device != "cpu":
        import torch
        tensors = {n: (torch.from_numpy(t.view(np.int16)).view(torch.bfloat16) if t.dtype == np.uint16 else torch.from_numpy(t)).to(device)
                   for n, t in tensors.items()}
    plain, scaled = (sluice_moe.FusedMoE(spec + more, layer.moe_weights(), device=device) for more in ("", f" routed_scale={scale}"))
    chosen = np.empty((tokens, K), np.float32) if device == "cpu" else torch.empty(tokens, K, device=device)

    def bits(out):
        return out if device == "cpu" else out.view(torch.int16).cpu().numpy()

    want = bits(plain(tensors["x"], topk_ids=tensors["ids"], topk_weights=tensors["scaled"]))
    for name in ("float32", "bfloat16"):
        assert (bits(scaled(tensors["x"], topk_ids=tensors["ids"], topk_weights=tensors[name], chosen_weights=chosen)) == want).all()
        assert (np.asarray(chosen if device == "cpu" else chosen.cpu()) == scale * given).all()
    assert (bits(scaled(tensors["x"], topk_ids=tensors["packed"])) == want).all()


def test_shards_add_up(rng):
    layer = Layer(rng)
    bias = {"bias_up": (E, I), "bias_gate": (E, I), "bias_down": (E, H)}
    weights = layer.moe_weights(**{k: (0.1 * rng.normal(size=s)).astype(np.float32) for k, s in bias.items()})
    spec = SPEC + " bias=1"
    whole = sluice_moe.FusedMoE(spec, weights)(layer.x, layer.logits)
    total = np.zeros((T, H))
    for tp_rank in range(2):
        for ep_rank in range(3):
            line, part = sluice_moe.shard(spec, weights, tp_rank=tp_rank, tp_size=2, ep_rank=ep_rank, ep_size=3)
            own = sluice_moe.read_spec(line)
            assert (own.inter, own.local_experts, own.local_offset) == (I // 2, 2, 2 * ep_rank)
            assert part.up.codes.shape == (2, I // 2, H)
            assert (part.up.codes == layer.weights["up"].codes[2 * ep_rank:2 * ep_rank + 2,
                                                               tp_rank * I // 2:(tp_rank + 1) * I // 2]).all()
            total += sluice_moe.FusedMoE(line, part)(layer.x, layer.logits)
    np.testing.assert_allclose(whole, total, atol=BOUND * layer.expected()[1].max() * 2)
    with pytest.raises(sluice_moe.InvalidArgument, match="would get none of 6 experts"):
        sluice_moe.shard(spec, weights, ep_rank=6, ep_size=7)


def test_a_mapping_is_a_spec():
    spec = sluice_moe.read_spec({"experts": 8, "top_k": 2, "hidden": 64, "inter": 32, "weights": "nvfp4", "routed": True})
    for flag in (np.bool_(True), np.int64(1)):
        assert sluice_moe.read_spec({"experts": 8, "top_k": 2, "hidden": 64, "inter": 32, "routed": flag}).routed
    assert (spec.inputs, spec.routed, spec.gated, spec.local_experts) == ("nvfp4", True, True, 8)
    assert sluice_moe.read_spec(str(spec)) == spec


def test_no_tokens(rng):
    layer = Layer(rng)
    moe = sluice_moe.FusedMoE(SPEC, layer.moe_weights())
    assert moe(np.empty((0, H), np.float32), np.empty((0, E), np.float32)).shape == (0, H)


REFUSALS = {
    "hidden": [
        (lambda x: x.astype(np.float64), TypeError, "hidden is float64; accepted: float32"),
        (lambda x: x[:, :-1], ValueError, r"hidden has shape \[9, 63\]; accepted: \[any, 64\]"),
        (lambda x: x[0], ValueError, r"hidden has shape \[64\]; accepted: \[any, 64\]"),
        (lambda x: np.asfortranarray(x), ValueError, r"hidden has strides \[1, 9\] in elements; accepted: \[64, 1\]"),
        (lambda x: np.concatenate([x, x])[::2], ValueError, r"hidden has strides \[128, 1\]"),
        (lambda x: x.astype(">f4"), TypeError, "hidden has byte order big-endian"),
        (lambda x: x.tolist(), TypeError, "hidden is list; accepted: a tensor"),
        (lambda x: None, TypeError, "hidden is NoneType"),
        (lambda x: np.ndarray, TypeError, "hidden is the type ndarray"),
        (lambda x: np.frombuffer(b"\0" + x.tobytes() + b"\0\0\0", np.float32, T * H, 1).reshape(T, H), ValueError,
         "hidden begins at address 0x[0-9a-f]+; accepted: multiples of 4"),
    ],
    "logits": [
        (lambda l: l[:-1], ValueError, r"logits has shape \[8, 6\]; accepted: \[9, 6\]"),
        (lambda l: l.astype(np.int32), TypeError, "logits is int32; accepted: float32, bfloat16, uint16"),
        (lambda l: None, ValueError, "logits is None"),
    ],
}


@pytest.mark.parametrize("name", REFUSALS)
def test_tensors_are_checked(rng, name):
    layer = Layer(rng)
    moe = sluice_moe.FusedMoE(SPEC, layer.moe_weights())
    for change, kind, sentence in REFUSALS[name]:
        args = {"hidden": layer.x, "logits": layer.logits}
        args[name] = change(args[name])
        with pytest.raises(kind, match=sentence):
            moe(**args)


def test_outputs_are_checked(rng):
    layer = Layer(rng)
    moe = sluice_moe.FusedMoE(SPEC, layer.moe_weights())
    frozen = np.empty((T, H), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        moe(layer.x, layer.logits, out=frozen)
    with pytest.raises(ValueError, match="out is read-only"):
        moe(layer.x, layer.logits, out=memoryview(bytes(4 * T * H)).cast("f", (T, H)))
    with pytest.raises(ValueError, match="out and hidden share memory"):
        moe(layer.x, layer.logits, out=layer.x)
    with pytest.raises(ValueError, match="num_tokens is given on the cpu"):
        moe(layer.x, layer.logits, num_tokens=np.ones(1, np.int32))
    with pytest.raises(ValueError, match="stream is 3 on the cpu"):
        moe(layer.x, layer.logits, stream=3)


def test_weights_are_checked(rng):
    layer = Layer(rng, format="nvfp4")
    spec = SPEC.replace("weights=bf16", "weights=nvfp4 inputs=plain")
    sluice_moe.FusedMoE(spec, layer.moe_weights())
    up = layer.weights["up"]
    for bad, kind, sentence in [
        (up._replace(scales=None), ValueError, "weights.up.scales is None"),
        (up._replace(scales=up.scales[:, :, :-1].copy()), ValueError, r"weights.up.scales has shape \[6, 96, 3\]"),
        (up._replace(global_scales=up.global_scales.astype(np.float64)), TypeError, "weights.up.global_scales is float64"),
        (up._replace(codes=up.codes.astype(np.int16)), TypeError, "weights.up.codes is int16"),
        (up.codes, ValueError, "weights.up.scales is None"),
        ((1, 2, 3, 4), TypeError, "up is a tuple of 4"),
        (None, ValueError, "weights.up is None"),
    ]:
        weights = layer.moe_weights()
        weights.up = bad
        with pytest.raises(kind, match=sentence):
            sluice_moe.FusedMoE(spec, weights)
    with pytest.raises(TypeError, match="weights is dict"):
        sluice_moe.FusedMoE(spec, layer.weights)
    with pytest.raises(ValueError, match="weights.gate is given"):
        sluice_moe.FusedMoE(spec.replace("swiglu", "relu2"), layer.moe_weights())
    with pytest.raises(sluice_moe.InvalidArgument, match="top_k"):
        sluice_moe.FusedMoE(spec.replace("top_k=2", "top_k=9"), layer.moe_weights())
    with pytest.raises(sluice_moe.InvalidArgument, match="abacus"):
        sluice_moe.FusedMoE(spec, layer.moe_weights(), backend="abacus")
    with pytest.raises(ValueError, match="device is 'tpu'"):
        sluice_moe.FusedMoE(spec, layer.moe_weights(), device="tpu")


def test_closed(rng):
    layer = Layer(rng)
    moe = sluice_moe.FusedMoE(SPEC, layer.moe_weights())
    moe.close()
    moe.close()
    with pytest.raises(ValueError, match="this layer was closed"):
        moe(layer.x, layer.logits)


def test_threads_share_a_layer(rng):
    import threading
    layer = Layer(rng)
    moe = sluice_moe.FusedMoE(SPEC, layer.moe_weights())
    expected, wrong = moe(layer.x, layer.logits), []

    def run():
        for _ in range(20):
            if (moe(layer.x, layer.logits) != expected).any():
                wrong.append(1)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
