# SPDX-License-Identifier: Apache-2.0
"""The plug-in of SGLang: against SGLang's own classes where it is installed (it needs no GPU for that), and against
stand-ins with the names and arguments that SGLang 0.5.23 has."""
import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import json
import logging
import re
import subprocess
import sys
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: no layers of SGLang")

import sluice_moe  # noqa: E402
import sluice_moe.sglang as plugin  # noqa: E402
from reference import round_nvfp4, swiglu  # noqa: E402
from sglang_case import Layer, Own, StandIns, apply, config, fresh_classes, hopper, taken  # noqa: E402, F401
from sluice_moe import _experts  # noqa: E402
from test_experts import ROUNDINGS, SCALE1, SCALE2, Case, E, H, I, K, to_static  # noqa: E402
from test_vllm import fill  # noqa: E402

real = pytest.mark.needs("sglang")


def test_registration(monkeypatch):
    s = StandIns(monkeypatch)
    plugin.register()
    plugin.register()
    assert s.choices == s.mxfp8_choices == ["sluice"] and list(s.cores) == ["sluice"]
    assert all(f"sglang.srt.layers.quantization.{m}.create_weights" in s.hooks for m in plugin.METHODS)
    assert f"sglang.srt.layers.quantization.{plugin.MXFP8}.get_min_capability" in s.hooks
    assert all(kind == "around" for _, kind in s.hooks.values())
    assert {name.rpartition(".")[2] for name in s.hooks if name.startswith(plugin.UPDATER)} == {
        "update_weights_from_disk", "update_weights_from_tensor", "update_weights_from_ipc"}  # of those that the stand-in has
    assert all(s.hooks[f"{plugin.LAYER}.{name}"] == (plugin.load_weight, "around") for name in plugin.LOADERS)


def test_a_layer(rng, monkeypatch):
    StandIns(monkeypatch)
    plugin.register()
    case, layer = Case(rng, "mxfp8", True, "cpu"), Layer()
    method = taken(layer, case)
    case.check(apply(method, layer), *ROUNDINGS["mxfp8"])
    assert layer.w13_weight.numel() == 0
    with pytest.raises(RuntimeError, match="SLUICE_KEEP_WEIGHTS=1"):
        method.process_weights_after_loading(layer)


def test_the_output_is_in_symmetric_memory(rng, monkeypatch):
    """Where SGLang adds up the ranks in it (--enable-symm-mem)."""
    s = StandIns(monkeypatch)
    plugin.register()
    case, layer = Case(rng, "bf16", True, "cpu"), Layer()
    method = taken(layer, case)
    call = apply(method, layer)
    case.check(call, *ROUNDINGS["bf16"])
    assert not s.pool
    s.symmetric = True
    outputs = []
    case.check(lambda *arguments: outputs.append(call(*arguments)) or outputs[-1], *ROUNDINGS["bf16"])
    assert len(s.pool) == len(outputs) and all(a is b for a, b in zip(s.pool, outputs))


@pytest.mark.parametrize("format, kind, more, marked, expected", [
    ("bf16", "UnquantizedFusedMoEMethod", {"gemm1_alpha": 1.702}, False, True),  # gpt-oss, of any format but NVFP4
    ("mxfp4", "Mxfp4MoEMethod", {"gemm1_alpha": 1.702}, False, True),
    ("bf16", "UnquantizedFusedMoEMethod", {"gemm1_alpha": 1.702, "gate_up_interleaved": False}, False, False),
    ("bf16", "UnquantizedFusedMoEMethod", {}, False, False),
    ("nvfp4", "ModelOptNvFp4FusedMoEMethod", {"gemm1_alpha": 1.702}, False, False),
    ("nvfp4", "ModelOptNvFp4FusedMoEMethod", {}, True, True),  # Inkling
])
def test_the_order_of_a_gated_matrix(rng, monkeypatch, format, kind, more, marked, expected):
    """By the rules of SGLang's Triton runner, its MXFP4 method and its NVFP4 method."""
    StandIns(monkeypatch)
    plugin.register()
    layer = Layer(gemm1_clamp_limit=7.0, **more) if "gemm1_alpha" in more else Layer(**more)
    if marked:
        layer.inference_moe_w13_interleaved = True
    case = Case(rng, format, True, "cpu", interleaved=expected)
    if format == "nvfp4":
        case.static()
    method = type(kind, (Own,), {})()
    plugin.take_over(Own.create_weights, method, layer, case)
    assert plugin.held_of(layer, method).interleaved == expected
    method.create_moe_runner(layer, layer.moe_runner_config)
    method.process_weights_after_loading(layer)
    act = (lambda up, gate: swiglu(up, gate, 1.702, 1.0, 7.0)) if "gemm1_alpha" in more else None
    case.check(apply(method, layer), *(STATIC if format == "nvfp4" else ROUNDINGS[format]), act)


def test_an_order_that_no_rule_covers_is_refused(monkeypatch):
    StandIns(monkeypatch)
    layer = Layer()
    layer.inference_moe_w13_interleaved = True
    with pytest.raises(sluice_moe.Unsupported, match="inference_moe_w13_interleaved is set .* accepted: NVFP4"):
        plugin.held_of(layer, Own())


@pytest.mark.parametrize("in_topk", [True, False])
def test_the_routed_scaling_factor_acts_once(rng, monkeypatch, caplog, in_topk):
    """By the runner, unless an SGLang whose rule the plug-in does not know has its TopK multiply."""
    StandIns(monkeypatch)
    plugin.register()
    case, layer = Case(rng, "bf16", True, "cpu"), Layer(routed_scaling_factor=2.5)
    layer.should_fuse_routed_scaling_factor_in_topk = in_topk
    method = taken(layer, case)
    plugin._left.cache_clear()
    assert plugin.scales_in_topk(lambda method, backend: True, method, "runner") is False and not caplog.text
    assert plugin.scales_in_topk(lambda method, backend: True, Own(), "runner") is True
    assert "leaves the experts of Own to SGLang" in caplog.text
    call = apply(method, layer)
    factor = 1 if in_topk else 2.5
    case.check(lambda x, weights, ids: (call(x, weights, ids).float() / factor).bfloat16(), *ROUNDINGS["bf16"])


def test_another_backend_is_left_alone(rng, monkeypatch):
    StandIns(monkeypatch, backend="triton")
    method = Own()
    plugin.take_over(Own.create_weights, method, Layer(), Case(rng, "bf16", True, "cpu"))
    assert type(method) is Own
    made = []
    plugin._make_nvfp4(lambda self, config: made.append(config), method, "config")
    assert made == ["config"]


def test_nvfp4_without_the_check_for_blackwell(monkeypatch):
    StandIns(monkeypatch)
    method = Own()
    plugin._make_nvfp4(None, method, "config")
    assert method.quant_config == "config" and method.enable_flashinfer_trtllm_moe is False


@pytest.mark.parametrize("backend, use_mxfp8, least", [("sluice", True, 90), ("sluice", False, 80), ("triton", True, 100)])
def test_mxfp8_without_the_check_for_blackwell(monkeypatch, backend, use_mxfp8, least):
    """SGLang asks a format for the least GPU before it makes a layer."""
    StandIns(monkeypatch, backend=backend)
    assert plugin._least_capability(lambda self: 100 if self.use_mxfp8 else 80, types.SimpleNamespace(use_mxfp8=use_mxfp8)) == least


def test_refusals(monkeypatch):
    StandIns(monkeypatch)
    for more, sentence in (({"apply_router_weight_on_input": True}, "apply_router_weight_on_input is set"),
                           ({"no_combine": True}, "no_combine is set")):
        with pytest.raises(ValueError, match=sentence):
            plugin.check(config(**more))
    with pytest.raises(ValueError, match="dtype is torch.float16"):
        plugin.check(config(), torch.float16)
    for name, value in (("enable_eplb", True), ("dwdp_size", 2)):
        stand_ins = StandIns(monkeypatch)
        setattr(stand_ins.exec if name == "enable_eplb" else stand_ins.parallel, name, value)
        with pytest.raises(ValueError, match=f"{name} is "):
            plugin.check(config())
    StandIns(monkeypatch, a2a="deepep")
    with pytest.raises(ValueError, match="moe_a2a_backend is deepep"):
        plugin.check(config())
    monkeypatch.setattr(_experts, "on_hopper", lambda: False)
    with pytest.raises(ValueError, match="without a Hopper GPU"):
        plugin.check(config())


def test_an_older_sglang_is_left_alone(monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    StandIns(monkeypatch)
    del sys.modules["sglang.srt.layers.moe.moe_runner.runner"].register_moe_runner_core  # as before 0.5.19
    plugin.register()
    assert "accepted: 0.5.19 and newer" in caplog.text


# --- SGLang's own classes

STATIC = (lambda y: round_nvfp4(y, np.float32(SCALE1)), lambda y: round_nvfp4(y, np.float32(SCALE2)))
METHODS = {  # format: where, class, its constructor's attributes, the configuration's, how its layer rounds
    "nvfp4": ("modelopt_quant", "ModelOptNvFp4FusedMoEMethod", {"_cache_permute_indices": {}, "enable_flashinfer_trtllm_moe": False,
                                                               "use_flashinfer_trtllm_weight_layout": False, "_lora_marlin": False},
              {"is_checkpoint_nvfp4_serialized": True, "group_size": 16, "use_per_token_activation": False,
               "get_name": lambda: "modelopt_fp4"}, STATIC),
    "mxfp8": ("fp8", "Fp8MoEMethod", {"use_mxfp8": True, "block_quant": True, "is_fp4_expert": False},
              {"is_checkpoint_fp8_serialized": True, "weight_block_size": [1, 32], "activation_scheme": "dynamic"}, ROUNDINGS["mxfp8"]),
    "fp8_block": ("fp8", "Fp8MoEMethod", {"use_mxfp8": False, "block_quant": True, "is_fp4_expert": False},
                  {"is_checkpoint_fp8_serialized": True, "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
                  ROUNDINGS["fp8_block"]),
    "fp8_tensor": ("fp8", "Fp8MoEMethod", {"use_mxfp8": False, "block_quant": False, "is_fp4_expert": False},
                   {"is_checkpoint_fp8_serialized": True, "weight_block_size": None, "activation_scheme": "static"},
                   (to_static(SCALE1), to_static(SCALE2))),
    "bf16": ("unquant", "UnquantizedFusedMoEMethod", {"use_triton_kernels": False}, {}, ROUNDINGS["bf16"]),
}


@pytest.fixture
def settings():
    """SGLang's default settings, published as its own tests do, where a version keeps them in a context."""
    try:
        from sglang.srt.runtime_context import get_context
        context = get_context().override_server_args()
    except (ImportError, AttributeError):
        context = contextlib.nullcontext()
    with context:
        yield


@real
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("format", METHODS)
def test_sglangs_own_methods(rng, monkeypatch, settings, format, gated):
    """Parameters as SGLang's create_weights() makes them, filled, prepared and run through SGLang's runner."""
    runner = pytest.importorskip("sglang.srt.layers.moe.moe_runner.runner", reason="SGLang does not load here", exc_type=Exception)
    from sglang.srt.layers.moe import utils
    from sglang.srt.layers.moe.moe_runner.base import MoeRunnerConfig
    from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatchOutput
    from sglang.srt.layers.moe.topk import StandardTopKOutput
    where, name, attributes, quant, roundings = METHODS[format]
    module = importlib.import_module(f"sglang.srt.layers.quantization.{where}")
    if "sluice" not in runner._CUSTOM_RUNNER_CORE_FACTORIES:
        runner.register_moe_runner_core("sluice", plugin.make_core)
    chosen = utils.resolve_moe_runner_backend("sluice")
    for at in (utils, runner, module):
        for function, answer in (("get_moe_runner_backend", chosen), ("get_moe_a2a_backend", utils.MoeA2ABackend.NONE)):
            if hasattr(at, function):
                monkeypatch.setattr(at, function, lambda answer=answer: answer)
    if not torch.cuda.is_available():  # SGLang 0.5.19 orders NVFP4's scales on the GPU while it makes them
        monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    own = getattr(module, name)
    method = object.__new__(own)
    vars(method).update({**attributes, "quant_config": types.SimpleNamespace(**quant)})
    layer = Layer(gated)
    layer.moe_runner_config = MoeRunnerConfig(num_experts=E, num_local_experts=E, hidden_size=H, top_k=K, is_gated=gated,
                                              intermediate_size_per_partition=I, activation="silu" if gated else "relu2")
    plugin.take_over(own.create_weights, method, layer, E, H, I, torch.bfloat16, weight_loader=lambda *a, **k: None)
    method.create_moe_runner(layer, layer.moe_runner_config)
    assert isinstance(method.runner, runner.MoeRunner) and method.get_moe_runner_backend(layer) == chosen
    case = Case(rng, format, gated, "cpu")
    if format in ("nvfp4", "fp8_tensor"):
        case.static()
    fill(layer, case)
    method.process_weights_after_loading(layer)

    def call(x, weights, ids):
        return method.apply(layer, StandardDispatchOutput(x, None, StandardTopKOutput(weights, ids.int(), None))).hidden_states

    case.check(call, *roundings)


REGISTRATION = """
import argparse, json
try:
    from sglang.srt.layers.moe.moe_runner import runner
    from sglang.srt.layers.moe.utils import resolve_moe_runner_backend
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.server_args import ServerArgs
    runner.register_moe_runner_core
except Exception as problem:
    print(json.dumps({"skipped": repr(problem)}))
    raise SystemExit
import sluice_moe.sglang as plugin
plugin.register()
HookRegistry.apply_hooks()
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
arguments = parser.parse_args(["--model-path", "m", "--moe-runner-backend", plugin.NAME])
core = runner.MoeRunner(resolve_moe_runner_backend(plugin.NAME), runner.MoeRunnerConfig()).runner_core
print(json.dumps({"asked for": sorted(HookRegistry._hooks), "hooked": sorted(HookRegistry._patched),
                  "backend": arguments.moe_runner_backend, "core": type(core).__name__}))
"""


@real
def test_registration_in_sglangs_own_registries():
    """Its hooks find every method, its command line takes the backend and its runner makes the core. In a process of its own,
    as nothing of it can be undone."""
    run = subprocess.run([sys.executable, "-c", REGISTRATION], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout.splitlines()[-1])
    if "skipped" in seen:
        pytest.skip(f"SGLang does not load here, or has no registry of runners: {seen['skipped']}")
    assert seen["hooked"] == seen["asked for"]
    assert len(seen["hooked"]) == len(plugin.METHODS) + 3 + len(plugin.LOADERS) + 4  # updates from disk, tensors, a group and IPC
    assert (seen["backend"], seen["core"]) == ("sluice", "SluiceRunnerCore")


@real
def test_signatures_are_sglangs():
    """What the plug-in puts over SGLang's methods takes their arguments by their names, and what it reads is there."""
    base = pytest.importorskip("sglang.srt.layers.quantization.base_config", reason="SGLang does not load here", exc_type=Exception)
    from sglang.srt.layers.moe.moe_runner import base as runner
    from sglang.srt.layers.moe.token_dispatcher.standard import StandardCombineInput, StandardDispatchOutput
    from sglang.srt.layers.dp_attention import is_allocation_symmetric
    from sglang.srt.layers.moe.topk import StandardTopKOutput
    from sglang.srt.distributed.device_communicators.pynccl_allocator import is_symmetric_memory_enabled, use_symmetric_memory

    def parameters(function):
        return list(inspect.signature(function).parameters)

    over = {name: member for name, member in vars(plugin.Method).items() if inspect.isfunction(member)}
    theirs = {name: getattr(base.FusedMoEMethodBase, name, None) for name in over}
    assert {"create_moe_runner", "process_weights_after_loading", "apply"} <= {name for name, own in theirs.items() if own}
    for name, own in theirs.items():
        assert own is None or parameters(over[name]) == parameters(own), name
    core = plugin._core_class()
    assert not core.__abstractmethods__
    assert parameters(core.run_from_dispatch) == parameters(runner.DispatchMoeRunnerCore.run_from_dispatch)
    fields = {field.name for field in dataclasses.fields(runner.MoeRunnerConfig)}
    assert {"top_k", "activation", "is_gated", "apply_router_weight_on_input", "no_combine", "routed_scaling_factor", "gemm1_alpha",
            "gemm1_clamp_limit", "swiglu_limit"} <= fields
    for made, names in ((StandardDispatchOutput, {"hidden_states", "topk_output"}), (StandardCombineInput, {"hidden_states"}),
                        (StandardTopKOutput, {"topk_weights", "topk_ids"})):
        assert names <= set(parameters(made))
    assert parameters(use_symmetric_memory) == ["group_coordinator", "disabled"]
    assert not parameters(is_allocation_symmetric) and not parameters(is_symmetric_memory_enabled)


@real
def test_names_that_the_plugin_uses_are_there():
    """By SGLang's text, which needs none of its dependencies."""
    import pathlib
    root = pathlib.Path(importlib.util.find_spec("sglang").submodule_search_locations[0]) / "srt"
    for method in plugin.METHODS:
        module, _, name = method.rpartition(".")
        text = (root / "layers" / "quantization" / (module.replace(".", "/") + ".py")).read_text()
        assert f"class {name}(" in text, method
    runner = (root / "layers" / "moe" / "moe_runner" / "runner.py").read_text()
    if "def register_moe_runner_core(" not in runner:
        pytest.skip("this SGLang has no registry of runners: the plug-in leaves it alone")
    assert "run_from_dispatch(\n                dispatch_output, quant_info, self.config, hooks=hooks" in runner
    layer = (root / "layers" / "moe" / "fused_moe_triton" / "layer.py").read_text()
    assert f"def {plugin.SCALES_IN_TOPK.rpartition('.')[2]}(" in layer
    assert all(f"def {loader}(\n        self," in layer for loader in plugin.LOADERS)
    updater = (root / "model_executor" / "model_runner_components" / "weight_updater.py").read_text()
    assert "class WeightUpdater:" in updater and "self.get_model()" in updater
    known = [name for name in plugin.UPDATES if f"def {name}(" in updater]
    written = set(re.findall(r"def ((?:update|load)_weights_\w+)\(", updater))
    assert written == set(known)  # by no other way
    assert ("def end_weight_update(" in updater) == ("load_weights_from_distributed" in known)
