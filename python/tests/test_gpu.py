# SPDX-License-Identifier: Apache-2.0
"""What only a Hopper GPU shows: models on it, weights out of torch's memory there, graphs, other libraries' tensors."""
import dataclasses

import numpy as np
import pytest

import sluice_moe
from conftest import NO_HOPPER, hopper
from engine_case import BUNDLED
from reference import bf16, route_renormalize, swiglu_moe, to_bf16
from weights_case import EXPERT, NORM, buckets, checksums, halved, make_dummy, shuffled
from weights_case import engine, tensors  # noqa: F401 - fixtures

pytestmark = hopper
if NO_HOPPER is None:
    import torch

PROMPTS = ["Henry meditated awhile all to himself early the next morning as", "He had", "The river was"]
GREEDY = {"temperature": 0, "max_new_tokens": 32, "ignore_eos": True}


def make(device, **options):
    return sluice_moe.Engine(BUNDLED, **{"device": device, "threads": 4, "max_total_tokens": 4096, **options})


@pytest.fixture(scope="module")
def shared():
    """What the fixture `engine` gives."""
    with make("cuda") as engine:
        yield engine


def on_gpu(t):
    if t.dtype == np.uint16:
        return torch.from_numpy(t.view(np.int16).copy()).view(torch.bfloat16).cuda()
    return torch.from_numpy(t.copy()).cuda()


def texts(engine):
    return [a["output_ids"] for a in engine.generate(PROMPTS, GREEDY)]


# --- Models


def test_the_gpus_greedy_text_is_the_cpus(engine):
    with make("cpu") as cpu:
        assert texts(engine) == texts(cpu)
        scores = [e.score(PROMPTS[0], [" the house", " a long"], label_token_ids=[5, 300], apply_softmax=True) for e in (engine, cpu)]
        np.testing.assert_allclose(*scores, atol=0.02)
        logprobs = [e.generate(PROMPTS[0], GREEDY, return_logprob=True)["meta_info"]["output_token_logprobs"] for e in (engine, cpu)]
        np.testing.assert_allclose(*([v for v, *_ in each] for each in logprobs), atol=0.1)
    *_, last = engine.generate(PROMPTS[0], GREEDY, stream=True)
    assert last["output_ids"] == texts(engine)[0]


def test_texts_do_not_depend_on_how_steps_are_launched():
    seen = []
    for options in ({}, {"disable_cuda_graph": True}, {"cuda_graph_max_bs": 1}, {"disable_overlap_schedule": True}):
        with make("cuda", enable_deterministic_inference=True, **options) as engine:
            seen.append(texts(engine))
    assert all(one == seen[0] for one in seen)


def test_weights_from_torch_tensors_of_the_gpu(engine, tensors):
    fresh = texts(engine)
    new = {name: halved(t) for name, t in tensors.items()}
    engine.pause_generation()
    engine.update_weights_from_tensor({name: on_gpu(t) for name, t in new.items()}, weight_version="halved")
    engine.continue_generation()
    assert engine.weights_checker()["ranks"][0]["checksums"] == checksums(new)[0]
    assert texts(engine) != fresh
    # Neither contiguous nor detached, and a bucket of SGLang's.
    t = on_gpu(tensors[EXPERT])
    engine.update_weights_from_tensor([(EXPERT, torch.nn.Parameter(t.T.contiguous()).T)])
    for bucket in buckets({n: t for n, t in tensors.items() if n != EXPERT}, 2**20):
        bucket["flattened_tensor"] = on_gpu(bucket["flattened_tensor"])
        engine.update_weights_from_tensor(bucket, load_format="flattened_bucket")
    assert engine.weights_checker()["ranks"][0]["checksums"] == checksums(tensors)[0]
    assert texts(engine) == fresh
    assert engine.get_weights_by_name(NORM, 3) == bf16(tensors[NORM][:3]).tolist()


@pytest.mark.parametrize("quantization", ["fp8", "mxfp8", "nvfp4_online"])
def test_quantised_on_arrival(tensors, tmp_path, quantization):
    new = {n: halved(t) for n, t in tensors.items() if "experts" in n}
    results = []
    for device in ("cpu", "cuda"):
        with make(device, quantization=quantization) as engine:
            engine.update_weights_from_tensor({n: on_gpu(t) for n, t in new.items()})
            results.append(engine.weights_checker()["ranks"][0]["checksums"])
            assert len(engine.generate(PROMPTS[0], GREEDY)["output_ids"]) == 32
    assert results[0] == results[1]


@pytest.mark.parametrize("quantization", [None, "mxfp8"])
def test_dummies_take_a_trainers_tensors(tensors, tmp_path, rng, quantization):
    with make("cuda", quantization=quantization) as loaded:
        expected = texts(loaded)
    with make_dummy(tmp_path / "dummy", device="cuda", dtype="bfloat16", quantization=quantization) as dummy:
        of_dummies = texts(dummy)
        assert of_dummies != expected
        dummy.release_memory_occupation(["weights"])
        dummy.resume_memory_occupation(["weights"])
        assert texts(dummy) == of_dummies
        for _ in range(2):
            for bucket in buckets(shuffled(tensors, rng), 2**21):
                bucket["flattened_tensor"] = on_gpu(bucket["flattened_tensor"])
                dummy.update_weights_from_tensor(bucket, load_format="flattened_bucket")
            assert texts(dummy) == expected
            assert dummy.weights_checker()["ranks"][0]["checksums"] == checksums(tensors)[0]
            dummy.release_memory_occupation(["weights"])
            dummy.resume_memory_occupation(["weights"])


def test_memory_goes_to_the_trainer_and_comes_back(engine, tensors):
    fresh = texts(engine)
    for _ in range(2):
        engine.pause_generation("abort")
        torch.cuda.synchronize()
        before = torch.cuda.mem_get_info()[0]  # just before, since other programs may use the GPU, too
        try:
            engine.release_memory_occupation()
        except sluice_moe.Unsupported as problem:
            pytest.skip(str(problem))
        assert torch.cuda.mem_get_info()[0] > before
        engine.resume_memory_occupation(["weights"])
        engine.update_weights_from_tensor({n: on_gpu(t) for n, t in tensors.items()})
        engine.resume_memory_occupation(["kv_cache"])
        engine.continue_generation()
        assert texts(engine) == fresh


# --- Layers

E, K, H, I, T = 8, 2, 256, 128, 12
SPEC = f"experts={E} top_k={K} hidden={H} inter={I} weights=bf16 routing=renormalize"
BOUND = 4 * 2.0**-8


class Problem:
    def __init__(self, rng):
        self.bits = {n: to_bf16(0.06 * rng.normal(size=s)) for n, s in (("up", (E, I, H)), ("gate", (E, I, H)), ("down", (E, H, I)))}
        self.x, self.logits = to_bf16(rng.normal(size=(T, H))), rng.normal(size=(T, E)).astype(np.float32)

    def weights(self):
        return sluice_moe.MoeWeights(**{n: on_gpu(b) for n, b in self.bits.items()})

    def check(self, y, rows=T):
        ids, w = route_renormalize(self.logits[:rows], K)
        expected, size = swiglu_moe(bf16(self.x[:rows]), ids, w, **{n: bf16(b) for n, b in self.bits.items()})
        got = y.double().cpu().numpy() if isinstance(y, torch.Tensor) else y
        assert (np.abs(got[:rows] - expected) <= BOUND * size).all()


def test_cupy_and_jax_come_by_dlpack(rng):
    cupy = pytest.importorskip("cupy")
    p = Problem(rng)
    layer = sluice_moe.FusedMoE(SPEC, p.weights())
    x, logits = cupy.from_dlpack(on_gpu(p.x).view(torch.int16)).view("uint16"), cupy.asarray(p.logits)
    out, workspace = cupy.full((T, H), 7, "uint16"), cupy.empty(layer.workspace_size(T) + 256, "uint8")
    workspace = workspace[-workspace.data.ptr % 256:]
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    assert layer(x, logits, out=out, workspace=workspace, stream=stream) is out
    stream.synchronize()
    p.check(bf16(cupy.asnumpy(out)))
    with pytest.raises(ValueError, match="workspace is None; on a GPU without torch tensors"):
        layer(x, logits, out=out)


def test_memory_of_a_call_belongs_to_its_stream(rng, monkeypatch):
    p = Problem(rng)
    layer = sluice_moe.FusedMoE(SPEC, p.weights())
    x, logits, side = on_gpu(p.x), on_gpu(p.logits), torch.cuda.Stream()
    torch.cuda.synchronize()
    asked_on, real = [], torch.empty

    def empty(*args, **options):
        asked_on.append(torch.cuda.current_stream())
        return real(*args, **options)

    monkeypatch.setattr(torch, "empty", empty)
    for stream in (side, torch.cuda.default_stream()):
        asked_on.clear()
        with torch.cuda.stream(torch.cuda.Stream()):
            y = layer(x, logits, stream=stream)
        assert [one.cuda_stream for one in asked_on] == 2 * [stream.cuda_stream]  # of the result and of the workspace
        stream.synchronize()
        p.check(y)


def test_page_locked_tensors_may_change_after_a_refit(rng):
    p = Problem(rng)
    shapes = {"bias_up": (E, I), "bias_gate": (E, I), "bias_down": (E, H)}
    bias = {n: torch.from_numpy(rng.normal(size=s).astype(np.float32)).pin_memory() for n, s in shapes.items()}
    weights = dataclasses.replace(p.weights(), **bias)
    layer = sluice_moe.FusedMoE(SPEC + " bias=1", weights)
    x, logits = on_gpu(p.x), on_gpu(p.logits)
    want = layer(x, logits)
    torch.cuda._sleep(10**8)  # cycles, in which the stream does not come to the refit
    layer.refit(weights)
    for t in bias.values():
        t.fill_(float("nan"))
    assert torch.equal(layer(x, logits), want)


def test_a_captured_call_reads_how_many_rows_are_real(rng):
    p = Problem(rng)
    layer = sluice_moe.FusedMoE(SPEC, p.weights())
    x, logits, out = on_gpu(p.x), on_gpu(p.logits), torch.empty(T, H, dtype=torch.bfloat16, device="cuda")
    rows = torch.tensor([T], dtype=torch.int32, device="cuda")
    layer(x, logits, out=out, num_tokens=rows)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer(x, logits, out=out, num_tokens=rows)
    for count in (T, 5, 0):
        out.fill_(float("nan"))
        rows.fill_(count)
        graph.replay()
        p.check(out, count)
        assert bool(out[count:].isnan().all())


def test_a_layer_cannot_be_made_while_a_graph_is_captured(rng):
    p = Problem(rng)
    weights, x, logits = p.weights(), on_gpu(p.x), on_gpu(p.logits)
    layer = sluice_moe.FusedMoE(SPEC, weights)
    with pytest.raises(RuntimeError):  # torch: what was captured is lost
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            with pytest.raises(sluice_moe.Error, match="while work is recorded"):
                sluice_moe.FusedMoE(SPEC, weights)
    torch.cuda.synchronize()
    p.check(layer(x, logits))  # the process goes on


def test_a_dense_matrix_in_torchs_memory(rng):
    w, x = rng.normal(size=(384, H)).astype(np.float32) / 8, to_bf16(rng.normal(size=(T, H)))
    for format in ("bf16", "mxfp8", "nvfp4", "fp8_block"):
        inputs = {"nvfp4": "nvfp4_token"}.get(format)
        stored = sluice_moe.quantize_weights(w, format)
        moved = sluice_moe.Matrices(*(None if t is None else on_gpu(t) for t in stored))
        memory = torch.empty(sluice_moe.Gemm.prepared_size(format, 384, H, inputs=inputs), dtype=torch.uint8, device="cuda")
        matrix = sluice_moe.Gemm(moved, format, inputs=inputs, memory=memory)
        host = bf16(sluice_moe.Gemm(stored, format, inputs=inputs)(x))
        assert np.linalg.norm(matrix(on_gpu(x)).double().cpu().numpy() - host) < 0.01 * np.linalg.norm(host), format
        if format != "bf16":
            coding = inputs or sluice_moe.format_info(format).inputs
            q = sluice_moe.quantize(on_gpu(x), coding)
            # Without `deterministic` sums may be in another order, which moves some results to a neighbour in bfloat16.
            rounded, plain = matrix(q).double(), matrix(on_gpu(x)).double()
            assert (rounded - plain).norm() < 2**-9 * plain.norm(), format
            exact = sluice_moe.Gemm(moved, format, inputs=inputs, deterministic=True)
            assert torch.equal(exact(q), exact(on_gpu(x))), format


def test_arguments_on_the_gpu(rng):
    p = Problem(rng)
    layer = sluice_moe.FusedMoE(SPEC, p.weights())
    x, logits = on_gpu(p.x), on_gpu(p.logits)
    freed = x.clone()
    freed.untyped_storage().resize_(0)
    shifted = torch.empty(T * H + 1, dtype=torch.bfloat16, device="cuda")[1:].view(T, H)
    for call, problem, sentence in (
            (lambda: layer(freed, logits), ValueError, "its memory was freed"),
            (lambda: layer(shifted, logits), ValueError, "accepted: multiples of 16"),
            (lambda: layer(x, logits, out=x), ValueError, "out and hidden share memory"),
            (lambda: layer(x, logits, workspace=torch.empty(256, dtype=torch.uint8, device="cuda")), ValueError, "workspace"),
            (lambda: layer(x, logits, out=torch.empty(T, H, dtype=torch.bfloat16)), ValueError, "out is on cpu; accepted: cuda:0"),
            (lambda: layer(x, logits, stream="default"), TypeError, "stream is str"),
            (lambda: sluice_moe.FusedMoE(SPEC, p.weights(), device="cuda:7"), (ValueError, sluice_moe.Error), "7|cuda:0"),
            (lambda: sluice_moe.FusedMoE(SPEC, p.weights(), backend="cpu"), ValueError, "accepted: auto, sm90"),
            (lambda: sluice_moe.dequantize(sluice_moe.quantize(x, "mxfp8")), ValueError, "q.codes is on cuda:0; accepted: cpu")):
        with pytest.raises(problem, match=sentence):
            call()
    p.check(layer(x, logits))
    assert layer(x[:0], logits[:0]).shape == (0, H)
    if torch.cuda.device_count() > 1:
        with pytest.raises(ValueError, match="hidden is on cuda:1; accepted: cuda:0"):
            layer(x.to("cuda:1"), logits.to("cuda:1"))


def test_flashinfers_call_in_a_graph(rng):
    import sluice_moe.flashinfer as fi
    p = Problem(rng)
    w1, w2 = on_gpu(np.concatenate([p.bits["up"], p.bits["gate"]], 1)), on_gpu(p.bits["down"])
    x, logits, out = on_gpu(p.x), on_gpu(p.logits), torch.empty(T, H, dtype=torch.bfloat16, device="cuda")

    def call(weights=w1):
        return fi.trtllm_bf16_moe(logits, None, x, weights, w2, E, K, None, None, I, 0, E, None, 1, use_shuffled_weight=False,
                                  weight_layout=0, output=out)

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    out.fill_(float("nan"))
    graph.replay()
    p.check(out)
    call()
    other = w1.clone()
    call(other)
    with pytest.raises(sluice_moe.Unsupported, match="have not been prepared"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            call(w1.clone())
    torch.cuda.synchronize()
    out.fill_(float("nan"))
    graph.replay()
    p.check(out)
