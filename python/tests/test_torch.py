# SPDX-License-Identifier: Apache-2.0
"""torch tensors and operators, on the CPU and on a Hopper GPU; skips where they are not."""
import copy
import gc

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import sluice_moe  # noqa: E402
from reference import route_renormalize, swiglu_moe  # noqa: E402
from sluice_moe import torch_ops  # noqa: E402

E, K, H, I, T = 8, 2, 256, 256, 24
SPEC = f"experts={E} top_k={K} hidden={H} inter={I} weights=bf16 act=swiglu routing=renormalize"
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
hopper = pytest.mark.skipif(not HOPPER, reason="no Hopper GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=hopper)]
# Roundings to bfloat16: GEMM1's result, GEMM2's, the router weight, the output.
BOUND = 4 * 2.0**-8


def problem(rng, device="cpu"):
    def tensor(*shape, scale=1.0, dtype=torch.bfloat16):
        return torch.from_numpy((scale * rng.normal(size=shape)).astype(np.float32)).to(device=device, dtype=dtype)
    weights = sluice_moe.MoeWeights(up=tensor(E, I, H, scale=0.06), gate=tensor(E, I, H, scale=0.06),
                                    down=tensor(E, H, I, scale=0.06))
    return weights, tensor(T, H), tensor(T, E, dtype=torch.float32)


def check(y, weights, x, logits):
    def double(t):
        return t.detach().cpu().double().numpy()
    ids, w = route_renormalize(double(logits).astype(np.float32), K)
    expected, size = swiglu_moe(double(x), ids, w, double(weights.up), double(weights.gate), double(weights.down))
    assert y.dtype == torch.bfloat16 and tuple(y.shape) == (T, H)
    assert (np.abs(double(y) - expected) <= BOUND * size).all()


@pytest.mark.parametrize("device", DEVICES)
def test_layer(rng, device):
    weights, x, logits = problem(rng, device)
    moe = sluice_moe.FusedMoE(SPEC, weights)
    y = moe(x, logits)
    assert y.device.type == device
    check(y, weights, x, logits)
    out, ids = torch.full_like(x, float("nan")), torch.full((T, K), -7, dtype=torch.int32, device=device)
    assert moe(x, logits, out=out, chosen_ids=ids) is out
    assert torch.equal(out, y) and int(ids.min()) >= 0
    check(moe(x, logits.bfloat16()), weights, x, logits.bfloat16().float())
    other, x, logits = problem(rng, device)
    moe.refit(other)
    check(moe(x, logits), other, x, logits)


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_are_checked(rng, device):
    weights, x, logits = problem(rng, device)
    moe = sluice_moe.FusedMoE(SPEC, weights)
    freed = x.clone()
    freed.untyped_storage().resize_(0)
    for bad, kind, sentence in [
        (x.t().contiguous().t(), ValueError, r"hidden has strides \[1, 24\]"),
        (x.half(), TypeError, "hidden is float16"),
        (x[:, :7], ValueError, r"hidden has shape \[24, 7\]"),
        (freed, ValueError, "its memory was freed"),
        (x.to_sparse(), ValueError, "layout"),
        (x.to("meta"), ValueError, "hidden is on meta"),
    ]:
        with pytest.raises(kind, match=sentence):
            moe(bad, logits)
    if device == "cuda":
        with pytest.raises(ValueError, match="hidden is on cpu; accepted: cuda:0"):
            moe(x.cpu(), logits)
    elif HOPPER:
        with pytest.raises(ValueError, match="hidden is on cuda:0; accepted: cpu"):
            moe(x.cuda(), logits)


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_with_the_negative_bit(rng, device):
    """Their memory has the other signs: what reads or writes it there would be wrong."""
    weights, x, logits = problem(rng, device)
    moe = sluice_moe.FusedMoE(SPEC, weights)
    negative = torch._neg_view
    imaginary = torch.complex(x.float(), x.float()).conj().imag  # where the bit comes from without being asked for
    sentence = "is a torch tensor with the negative bit, whose memory has the other signs; accepted: its resolve_neg"
    out = torch.zeros_like(x)
    for call, name in [(lambda: moe(negative(x), logits), "hidden"), (lambda: moe(x, negative(logits)), "logits"),
                       (lambda: moe(x, logits, out=negative(out)), "out"), (lambda: sluice_moe.quantize(imaginary, "mxfp8"), "x"),
                       (lambda: sluice_moe.FusedMoE(SPEC, sluice_moe.MoeWeights(negative(weights.up), weights.gate, weights.down)), "up")]:
        with pytest.raises(ValueError, match=f"{name} {sentence}"):
            call()
    assert not out.any()
    assert torch.equal(moe(negative(x).resolve_neg(), logits), moe(-x, logits))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("coding", ["fp8_static", "fp8_token", "fp8_group", "mxfp8", "nvfp4", "nvfp4_token", "mxfp4"])
@pytest.mark.parametrize("layout", ["linear", "128x4"])
def test_quantisers_give_the_hosts_bits(rng, device, coding, layout):
    if layout != "linear" and coding.startswith("fp8"):
        pytest.skip("these scales are linear or transposed")
    x = torch.from_numpy(rng.normal(size=(33, 320)).astype(np.float32)).bfloat16()
    scale = None
    if coding in ("fp8_static", "nvfp4"):
        scale = torch.full((1,), float(x.abs().max()) / (448 if coding == "fp8_static" else 2688))
    want = sluice_moe.quantize(x.float().numpy(), coding, layout=layout, input_scale=None if scale is None else scale.numpy())
    given = None if scale is None else scale.to(device)
    got = sluice_moe.quantize(x.to(device), coding, layout=layout, input_scale=given)
    codes, scales, row_scales = torch.ops.sluice.quantize(x.to(device), coding, given, layout)
    for a, b, c in zip(want[:3], got[:3], (codes, scales, row_scales)):
        if a is not None:
            for t in (b, c):
                host = t.cpu()
                bits = host.view(torch.uint8).numpy() if host.element_size() == 1 else host.numpy()
                assert (bits == a).all()
    torch.library.opcheck(torch.ops.sluice.quantize.default, (x.to(device), coding, given, layout))


@pytest.mark.parametrize("device", DEVICES)
def test_operators(rng, device):
    weights, x, logits = problem(rng, device)
    layer = sluice_moe.FusedMoE(SPEC, weights)
    number = torch_ops.register(layer)
    assert torch_ops.register(layer) == number
    expected = layer(x, logits)
    assert torch.equal(torch.ops.sluice.moe(number, x, logits), expected)
    out = torch.full_like(x, float("nan"))
    torch.ops.sluice.moe_out(number, x, out, None, logits)
    assert torch.equal(out, expected)
    torch.library.opcheck(torch.ops.sluice.moe.default, (number, x, logits))
    torch.library.opcheck(torch.ops.sluice.moe_out.default, (number, x, out, None, logits))

    matrix = sluice_moe.Gemm(weights.up[0], "bf16")
    y = torch.ops.sluice.gemm(torch_ops.register(matrix), x)
    reference = x.double() @ weights.up[0].double().t()
    assert (y.double() - reference).abs().max() <= 2.0**-8 * (x.double().abs() @ weights.up[0].double().abs().t()).max()
    torch.library.opcheck(torch.ops.sluice.gemm.default, (torch_ops.register(matrix), x))

    # No graph break, also when the number of tokens changes.
    module = torch_ops.Moe(layer)
    compiled = torch.compile(lambda h, l: module(h * 1, l) + 1, fullgraph=True, backend="aot_eager", dynamic=True)
    for tokens in (T, 5, 1):
        assert torch.equal(compiled(x[:tokens], logits[:tokens]), layer(x[:tokens], logits[:tokens]) + 1)
    del layer, module, compiled
    torch._dynamo.reset()
    with pytest.raises(ValueError, match="99999 names no living FusedMoE"):
        torch.ops.sluice.moe(99999, x, logits)


def test_a_copy_has_a_number_of_its_own(rng):
    weights, x, logits = problem(rng)
    layer = sluice_moe.FusedMoE(SPEC, weights)
    first = torch_ops.register(layer)
    other = copy.copy(layer)
    second = torch_ops.register(other)
    assert second != first and torch_ops.register(other) == second and torch_ops.register(layer) == first
    del layer
    gc.collect()
    check(torch.ops.sluice.moe(torch_ops.register(other), x, logits), weights, x, logits)
    with pytest.raises(ValueError, match=f"{first} names no living FusedMoE"):
        torch.ops.sluice.moe(first, x, logits)


def test_an_input_scale_that_is_a_number(rng):
    q = sluice_moe.quantize(torch.from_numpy(rng.normal(size=(3, 64)).astype(np.float32)), "nvfp4", input_scale=0.25)
    assert torch.equal(q.input_scale, torch.tensor([0.25]))


@hopper
def test_the_gpu_gives_what_the_cpu_gives(rng):
    for format in ("mxfp8", "nvfp4", "fp8_block"):
        spec = SPEC.replace("weights=bf16", f"weights={format}").replace("swiglu", "swiglu")
        if format == "nvfp4":
            spec += " inputs=nvfp4_token"
        weights, x, logits = problem(rng)
        stored = {n: sluice_moe.quantize_weights(getattr(weights, n), format) for n in ("up", "gate", "down")}
        on_cpu = sluice_moe.FusedMoE(spec, sluice_moe.MoeWeights(**stored))(x, logits).float()
        moved = {n: sluice_moe.Matrices(*(None if t is None else t.cuda() for t in m)) for n, m in stored.items()}
        on_gpu = sluice_moe.FusedMoE(spec, sluice_moe.MoeWeights(**moved))(x.cuda(), logits.cuda()).float().cpu()
        assert (on_gpu - on_cpu).norm() / on_cpu.norm() < 1e-2, format


@hopper
def test_a_cuda_graph_with_weights_in_torchs_memory(rng):
    weights, x, logits = problem(rng, "cuda")
    size = sluice_moe.prepared_bytes(SPEC)
    memory = torch.empty(size, dtype=torch.uint8, device="cuda")
    moe = sluice_moe.FusedMoE(SPEC, weights, memory=memory)
    out = torch.full_like(x, float("nan"))
    moe(x, logits)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        moe(x, logits, out=out)
    for _ in range(2):
        out.fill_(float("nan"))
        graph.replay()
        check(out, weights, x, logits)
        weights, *_ = problem(rng, "cuda")
        moe.refit(weights)  # the captured calls see it
    with pytest.raises(ValueError, match="memory_size"):
        sluice_moe.FusedMoE(SPEC, weights, memory=memory[:-256])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = moe(x, logits)
    stream.synchronize()
    check(y, weights, x, logits)
