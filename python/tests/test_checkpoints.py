# SPDX-License-Identifier: Apache-2.0
"""What `sluice quantize --format mxfp8 --modelopt` writes, as the classes of vLLM and SGLang that load it take it; on the CPU.

Needs vLLM or SGLang, and `sluice` (SLUICE_PROGRAM, or on the path).
"""
import json
import os
import shutil
import subprocess
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: no layers of vLLM and SGLang")

from conftest import SOURCE  # noqa: E402
from test_vllm import one_rank  # noqa: E402

PROGRAM = os.environ.get("SLUICE_PROGRAM") or shutil.which("sluice")
BUNDLED = SOURCE / "models" / "tiny-nemotron-h"

pytestmark = pytest.mark.skipif(not PROGRAM, reason="no sluice on the path, and SLUICE_PROGRAM does not name it")
vllm = pytest.mark.needs("vllm")
sglang = pytest.mark.needs("sglang")
TYPES = {"F8_E4M3": torch.float8_e4m3fn, "U8": torch.uint8, "BF16": torch.bfloat16, "F32": torch.float32}


def written(folder, *words):
    """The quantization_config and {name: (type, shape)} of a checkpoint."""
    subprocess.run([PROGRAM, "quantize", BUNDLED, folder, *words], check=True, capture_output=True)
    with open(folder / "model.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    tensors = {name: (TYPES[t["dtype"]], tuple(t["shape"])) for name, t in header.items()}
    return json.loads((folder / "config.json").read_text())["quantization_config"], tensors


@pytest.fixture(scope="module")
def mxfp8(tmp_path_factory):
    return written(tmp_path_factory.mktemp("checkpoint") / "mxfp8", "--format", "mxfp8", "--modelopt")


def linears(tensors):
    """{module: its tensors by their last names} of every matrix in FP8 whose columns are whole groups, which both engines
    ask for."""
    modules = [name.removesuffix(".weight") for name, (kind, shape) in tensors.items()
               if kind == torch.float8_e4m3fn and shape[1] % 32 == 0]
    found = {m: {name.removeprefix(m + "."): t for name, t in tensors.items() if name.rpartition(".")[0] == m} for m in modules}
    assert any(".experts." in m for m in found) and any(".experts." not in m for m in found)
    return found


def parameters(method, tensors, **more):
    """What the engine's method makes for a matrix of that shape."""
    rows, columns = tensors["weight"][1]
    layer = torch.nn.Module()
    method.create_weights(layer, columns, [rows], columns, rows, torch.bfloat16, weight_loader=lambda *a, **k: None, **more)
    return {name: (p.dtype, tuple(p.shape)) for name, p in layer.named_parameters()}


@vllm
def test_vllm_takes_the_configuration_and_the_names(mxfp8, monkeypatch):
    from vllm.model_executor.layers.quantization import get_quantization_config
    from vllm.model_executor.layers.quantization import modelopt
    one_rank(monkeypatch)
    description, tensors = mxfp8
    methods = ("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed")
    chosen = {name: get_quantization_config(name).override_quantization_method(description, None) for name in methods}
    assert {name for name, override in chosen.items() if override} == {"modelopt_mxfp8"}
    config = get_quantization_config(chosen["modelopt_mxfp8"]).from_config(description)
    # Without the GPU's kernel that the methods choose.
    if hasattr(modelopt, "build_linear_method"):  # vLLM 0.33
        kernel = types.SimpleNamespace(input_quant_key=lambda: None)
        monkeypatch.setattr(modelopt, "select_linear_kernel", lambda *a, **k: kernel)
        method = modelopt.build_linear_method(config, config.quant_method, "linear")
    else:
        method = object.__new__(modelopt.ModelOptMxFp8LinearMethod)
        method.quant_config = config
    for module, found in linears(tensors).items():
        assert not config.is_layer_excluded(module)
        assert parameters(method, found) == found, module
    assert all(config.is_layer_excluded(name.removesuffix(".weight")) for name, (kind, _) in tensors.items()
               if kind == torch.bfloat16 and name.endswith(".gate.weight"))


@vllm
def test_vllm_takes_the_groups_of_a_mixed_checkpoint(tmp_path):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    from vllm.model_executor.layers.quantization import get_quantization_config
    own = get_quantization_config("compressed-tensors")
    description, _ = written(tmp_path / "mixed", "--format", "mxfp4", "--format-rest", "mxfp8")
    groups = own.from_config(description).target_scheme_map
    seen = {group["format"]: (own._is_mxfp4(group["weights"]), own._is_mxfp8(group["weights"])) for group in groups.values()}
    assert seen == {"mxfp4-pack-quantized": (True, False), "mxfp8-quantized": (False, True)}


@sglang
def test_sglang_takes_the_configuration_and_the_names(mxfp8):
    pytest.importorskip("sglang.srt.model_loader.loader", reason="SGLang does not load here", exc_type=Exception)
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.layers.quantization.fp8 import Fp8Config, Fp8LinearMethod
    from sglang.srt.model_loader.loader import DefaultModelLoader
    description, tensors = mxfp8
    parsed = ModelConfig._parse_modelopt_quant_config(None, {"quantization": description})
    config = Fp8Config.from_config({**description, **parsed})
    assert config.get_name() == "mxfp8" and config.weight_block_size == [1, 32]
    assert set(description["ignore"]) <= set(config.ignored_layers)
    method = object.__new__(Fp8LinearMethod)  # without the choice of a GPU's kernel
    vars(method).update(quant_config=config, block_quant=True, use_mxfp8=True, is_checkpoint_fp8_serialized=True)
    loaded = {}
    model = types.SimpleNamespace(quant_config=config, load_weights=loaded.update, named_modules=list)
    # In 0.5.19 loading and preparing are one function.
    load = getattr(DefaultModelLoader, "load_weights_only", None) or DefaultModelLoader.load_weights_and_postprocess
    load(model, iter(tensors.items()), torch.device("cpu"))
    for module, found in linears(loaded).items():
        assert parameters(method, found, skip_block_quant_check=True) == found, module  # which asks for the ranks
