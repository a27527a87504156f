# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's fused layers with torch's tensors on the CPU: bit for bit what they give for numpy's arrays."""
import importlib.util

import numpy as np
import pytest

import on_gpu
import sluice_moe
import sluice_moe.flashinfer as fi
from flashinfer_case import SWIGLU, Case, E, H, T, interleaved, shuffled
from flashinfer_case import device  # noqa: F401 - a fixture of every test
from reference import to_bf16


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
