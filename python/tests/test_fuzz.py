# SPDX-License-Identifier: Apache-2.0
"""Arguments of every kind to every function: an exception or a result, never a crash. The seed repeats a run."""
import os
import subprocess
import sys

import pytest

from conftest import SEED, SOURCE

CODE = r'''
import array, ctypes, decimal, fractions, inspect, math, random, sys
import numpy as np
import sluice_moe
import sluice_moe.flashinfer as fi

seed, calls = int(sys.argv[1]), int(sys.argv[2])
random.seed(seed)
np_rng = np.random.default_rng(seed)

SPEC = "experts=4 top_k=2 hidden=32 inter=32 dtype=float32"
def bits(*shape): return np_rng.integers(0, 0x4000, size=shape).astype(np.uint16)
def weights(): return sluice_moe.MoeWeights(up=bits(4, 32, 32), gate=bits(4, 32, 32), down=bits(4, 32, 32))
class Liar:
    """Every protocol, none of them kept."""
    def __init__(self): self.__array_interface__ = random.choice([None, {}, {"typestr": "<f4", "shape": (2,), "data": (0, 0)}, 7])
class Dlpack:
    def __dlpack_device__(self): return random.choice([(1, 0), (2, 0), (1,), None, "cpu", (99, 0)])
    def __dlpack__(self, **kw): return random.choice([None, 5, object(), b"x"])
class Raises:
    def __getattr__(self, name): raise random.choice([AttributeError, ValueError, RuntimeError])(name)
    def __index__(self): raise ZeroDivisionError("index")
    def __len__(self): return -1

def value(depth=0):
    """Something, often nearly right."""
    makers = [
        lambda: None, lambda: True, lambda: random.choice([-1, 0, 1, 2, 3, 32, 2**31, 2**63, -2**70]),
        lambda: random.choice([0.0, -1.5, 1e308, math.nan, math.inf]), lambda: 3j, lambda: "", lambda: "nvfp4", lambda: "a\0b",
        lambda: "\ud800", lambda: b"bytes", lambda: bytearray(random.randrange(200)), lambda: memoryview(b"abcd"),
        lambda: object(), lambda: int, lambda: len, lambda: Liar(), lambda: Dlpack(), lambda: Raises(), lambda: range(3),
        lambda: decimal.Decimal(1), lambda: fractions.Fraction(1, 3), lambda: np.float32(1), lambda: np.array(3.0),
        lambda: array.array("f", range(4)), lambda: (ctypes.c_float * 4)(), lambda: SPEC, lambda: {"experts": 4},
        lambda: "cpu", lambda: "cuda:0", lambda: "linear", lambda: "mxfp8", lambda: "float32", lambda: weights(),
        lambda: np_rng.normal(size=[random.choice([0, 1, 3, 4, 31, 32]) for _ in range(random.randrange(4))]).astype(
            random.choice(["f4", "f8", "f2", "i4", "u2", "u1", "?", ">f4", "c8"])),
        lambda: np.empty((3, 64), np.float32)[:, ::2], lambda: np.empty((32, 3), np.float32).T,
        lambda: np.broadcast_to(np.float32(0), (3, 32)), lambda: np.array([object()]), lambda: np.array(["text"]),
        lambda: sluice_moe.Quantized(*(value(2) for _ in range(7))), lambda: sluice_moe.Matrices(*(value(2) for _ in range(3))),
        lambda: sluice_moe.FourOverSix(*(random.choice([448, "mae", False, value(2)]) for _ in range(3))),
    ]
    if depth < 2:
        makers += [lambda: [value(depth + 1) for _ in range(random.randrange(4))],
                   lambda: tuple(value(depth + 1) for _ in range(random.randrange(4))),
                   lambda: {random.choice(["role", "content", "n", "stop", "temperature", 5]): value(depth + 1) for _ in range(2)},
                   lambda: sluice_moe.MoeWeights(*(value(depth + 1) for _ in range(3)))]
    return random.choice(makers)()

moe = sluice_moe.FusedMoE(SPEC, weights(), threads=1)
routed = sluice_moe.FusedMoE(SPEC + " routed=1", weights(), threads=1)
gemm = sluice_moe.Gemm(bits(8, 32), "bf16", dtype="float32", threads=1)
engine = sluice_moe.Engine(sys.argv[3], threads=1, max_total_tokens=2048, context_length=64)
x, logits = np.ones((3, 32), np.float32), np.ones((3, 4), np.float32)
ids, topk = np.zeros((3, 2), np.int32), np.ones((3, 2), np.float32)
q = sluice_moe.quantize(x, "mxfp8")
space = np.empty(1 << 17, np.uint8)
space = space[-space.ctypes.data % 64:]
short = {"max_new_tokens": 2}
NORM, norm = "backbone.layers.0.norm.weight", np.full(256, 0x3F80, np.uint16)
BUCKET = {"flattened_tensor": norm.view(np.uint8), "metadata": [
    {"name": NORM, "dtype": "bfloat16", "shape": [256], "start_idx": 0, "end_idx": 512, "numel": 256}]}
ALL = list(engine.weights_checker()["ranks"][0]["checksums"])[1:]  # one is left to hash
def names(function, *values): return dict(zip(inspect.signature(function).parameters, values))
h, s, one = *fi.nvfp4_quantize(np.ones((2, 256), np.float32), np.float32([2688]), fi.SfLayout.layout_linear), np.ones(2, np.float32)
w1, s1 = np.zeros((2, 256, 128), np.uint8), np.zeros((2, 256, 16), np.uint8)
FP4 = names(fi.trtllm_fp4_block_scale_moe, np.ones((2, 2), np.float32), None, h, s, w1, s1, None, None, None, None, w1[:, :, :64].copy(),
            s1[:, :, :8].copy(), None, one, one, one, 2, 1, None, None, 128, 0, 2, None, 1)
h, s = fi.mxfp8_quantize(np.ones((2, 256), np.float32), False)
w1, s1 = np.zeros((2, 256, 256), np.uint8), np.zeros((2, 256, 8), np.uint8)
FP8 = {**names(fi.trtllm_fp8_block_scale_moe, np.ones((2, 2), np.float32), None, h, s, w1, s1, w1[:, :, :128].copy(), s1[:, :, :4].copy(),
               2, 1, None, None, 128, 0, 2, None, 1, True), "fp8_quantization_type": 2}
TARGETS = [  # function, arguments that work
    (moe, dict(hidden=x, logits=logits)),
    (moe, dict(hidden=x, logits=logits, out=np.empty((3, 32), np.float32), chosen_ids=ids.copy(), chosen_weights=topk.copy(), workspace=space)),
    (routed, dict(hidden=x, topk_ids=ids, topk_weights=topk)),
    (moe.workspace_size, dict(tokens=3)), (moe.refit, dict(weights=weights())),
    (sluice_moe.FusedMoE, dict(spec=SPEC, weights=weights(), backend="cpu", device="cpu", threads=1)),
    (sluice_moe.read_spec, dict(spec=SPEC)), (sluice_moe.explain, dict(spec=SPEC)), (sluice_moe.format_info, dict(name="nvfp4")),
    (sluice_moe.prepared_bytes, dict(spec=SPEC)), (sluice_moe.prepared_bytes, dict(spec=SPEC, device="cpu")),
    (sluice_moe.FusedMoE, dict(spec=SPEC, weights=weights(), memory=space[:sluice_moe.prepared_bytes(SPEC, "cpu")], threads=1)),
    (sluice_moe.shard, dict(spec=SPEC, weights=weights(), tp_rank=0, tp_size=2, ep_rank=1, ep_size=2)),
    (sluice_moe.quantize, dict(x=x, coding="nvfp4", input_scale=0.1, layout="linear", threads=1)),
    (sluice_moe.quantize, dict(x=x, coding="nvfp4_token", four_over_six=sluice_moe.FourOverSix(256, "mse", True), threads=1)),
    (sluice_moe.dequantize, dict(q=q, threads=1)),
    (sluice_moe.quantize_weights, dict(values=x, format="mxfp4", threads=1)),
    (sluice_moe.dequantize_weights, dict(weights=sluice_moe.quantize_weights(x, "mxfp4"), format="mxfp4", threads=1)),
    (gemm, dict(x=x)), (sluice_moe.gemm, dict(x=x, weights=bits(8, 32), format="bf16", dtype="float32", threads=1)),
    (sluice_moe.Gemm, dict(weights=bits(8, 32), format="bf16", inputs="plain", dtype="float32", input_scale=1.0, bias=None, device="cpu", threads=1)),
    (sluice_moe.Gemm.prepared_size, dict(format="bf16", rows=8, cols=32, inputs="plain", dtype="float32", device="cpu")),
    (sluice_moe.Gemm, dict(weights=bits(8, 32), format="bf16", memory=space, threads=1)), (gemm.refit, dict(weights=bits(8, 32), input_scale=1.0)),
    (sluice_moe.route, dict(spec=SPEC, logits=logits)),
    (engine.generate, dict(prompt="a", sampling_params=short, return_logprob=True, logprob_start_len=0, top_logprobs_num=2, token_ids_logprob=[1], rid="r")),
    (engine.generate, dict(input_ids=[[1, 2], [3]], sampling_params=[short, short])),
    (engine.chat, dict(messages=[{"role": "user", "content": "a"}], sampling_params=short)),
    (engine.score, dict(query="a", items=["b"], label_token_ids=[1, 2])),
    (engine.encode, dict(text="a")), (engine.decode, dict(ids=[1, 2])), (engine.abort_request, dict(rid="r")),
    (engine.update_weights_from_tensor, dict(named_tensors=[(NORM, norm)], load_format=None, flush_cache=True, weight_version="1")),
    (engine.update_weights_from_tensor, dict(named_tensors=dict(BUCKET), load_format="flattened_bucket")),
    (engine.end_weight_update, dict(weight_version="1")), (engine.update_weight_version, dict(new_version="2")),
    (engine.get_weights_by_name, dict(name=NORM, truncate_size=3)), (engine.weights_checker, dict(action="checksum", skip_tensor_list=ALL)),
    (engine.resume_memory_occupation, dict(tags=["weights"])), (engine.pause_generation, dict(mode="nothing")),
    (engine.update_weights_from_distributed, dict(names=[NORM], dtypes=["bfloat16"], shapes=[[256]], group_name="g")),
    (fi.trtllm_fp4_block_scale_moe, FP4), (fi.trtllm_fp8_block_scale_moe, FP8),
]
SAMPLING = ["max_new_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "logit_bias", "sampling_seed", "n",
            "repetition_penalty", "ignore_eos"]
for function, arguments in TARGETS:
    try: function(**arguments)
    except sluice_moe.Unsupported: pass  # prepared_bytes without CUDA
    except sluice_moe.InvalidArgument:  # no update has begun, no group was joined
        assert function in (engine.end_weight_update, engine.update_weights_from_distributed), function
    except ValueError: assert function == engine.pause_generation  # which would hold all that comes after it
outcomes = {"results": 0, "exceptions": 0}
odd = set()
for call in range(calls):
    function, arguments = random.choice(TARGETS)
    arguments = dict(arguments)
    for name in random.sample(list(arguments), min(len(arguments), random.choice([1, 1, 1, 2, 3]))):
        arguments[name] = value()
    if "sampling_params" in arguments and random.random() < 0.5:
        arguments["sampling_params"] = {**short, random.choice(SAMPLING): value(), "max_new_tokens": 2}
    try:
        result = function(**arguments)
        outcomes["results"] += 1
        for answer in ([result] if isinstance(result, dict) and "text" in result else []): answer["meta_info"]
    except Exception as problem:
        outcomes["exceptions"] += 1
        if not isinstance(problem, (TypeError, ValueError, sluice_moe.Error, ZeroDivisionError, RuntimeError, ImportError, MemoryError)):
            odd.add((getattr(function, "__name__", type(function).__name__), repr(problem)[:100]))
print(outcomes, odd)
assert not odd, odd
y = moe(x, logits)  # nothing was damaged
assert y.shape == (3, 32)
'''


@pytest.mark.parametrize("part", range(3))
def test_no_argument_crashes(part):
    seed = (SEED + part) % 2**32
    result = subprocess.run([sys.executable, "-X", "faulthandler", "-c", CODE, str(seed), "3000",
                             str(SOURCE / "models" / "tiny-nemotron-h")], text=True, capture_output=True, timeout=250,
                            env={**os.environ, "MALLOC_PERTURB_": "165"})
    assert result.returncode == 0, f"seed {seed}: exit {result.returncode}\n{result.stdout[-2000:]}{result.stderr[-4000:]}"
    print(result.stdout)
