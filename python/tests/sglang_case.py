# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for what the plug-in of SGLang uses of it, with the names and arguments that SGLang 0.5.23 has."""
import contextlib
import sys
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: no layers of SGLang")

import sluice_moe.sglang as plugin  # noqa: E402
from sluice_moe import _experts  # noqa: E402
from test_experts import E, I, K  # noqa: E402
from test_vllm import fill  # noqa: E402


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    """The plug-in's code runs on the CPU, too; only its gate asks for the GPU."""
    monkeypatch.setattr(_experts, "on_hopper", lambda: True)


def config(gated=True, **more):
    return types.SimpleNamespace(**{
        "top_k": K, "activation": "silu" if gated else "relu2", "is_gated": gated, "apply_router_weight_on_input": False,
        "no_combine": False, "routed_scaling_factor": None, "gemm1_alpha": None, "gemm1_beta": None, "gemm1_clamp_limit": None,
        "swiglu_limit": None, "gate_up_interleaved": True, "silu_mul_keep_fp32": False, "num_fused_shared_experts": 0,
        "intermediate_size_per_partition": I, **more})


class Layer(torch.nn.Module):
    """What the plug-in reads of SGLang's FusedMoE."""

    def __init__(self, gated=True, **more):
        super().__init__()
        self.moe_runner_config = config(gated, **more)
        self.params_dtype, self.layer_id, self.should_fuse_routed_scaling_factor_in_topk = torch.bfloat16, 0, False
        self.num_experts = self.num_local_experts = E
        self.moe_tp_size = self.moe_ep_size = 1
        self.moe_ep_rank = 0


class StandIns:
    """The modules of SGLang that the plug-in imports, as far as it uses them."""

    def __init__(self, monkeypatch, backend="sluice", a2a="none"):
        self.choices, self.mxfp8_choices, self.cores, self.hooks = [], [], {}, {}
        self.symmetric, self.pool = False, []  # what was allocated in symmetric memory

        def module(name, **members):
            made = types.ModuleType(name)
            vars(made).update(members)
            monkeypatch.setitem(sys.modules, name, made)
            return made

        for name in ("sglang", "sglang.srt", "sglang.srt.layers", "sglang.srt.layers.moe", "sglang.srt.plugins",
                     "sglang.srt.layers.moe.token_dispatcher", "sglang.srt.distributed"):
            module(name, __path__=[])

        class MoeQuantInfo:
            pass

        class DispatchMoeRunnerCore:
            def __init__(self, config):
                self.config = config

        class MoeRunner:
            def __init__(runner, runner_backend, config):
                runner.runner_backend, runner.config = runner_backend, config
                runner.core = self.cores[runner_backend.value](config)

            def run(runner, dispatch_output, quant_info):
                return runner.core.run_from_dispatch(dispatch_output, quant_info, runner.config, hooks=None)

        def value(name):
            return types.SimpleNamespace(value=name)

        base = module("sglang.srt.layers.moe.moe_runner.base", MoeQuantInfo=MoeQuantInfo,
                      DispatchMoeRunnerCore=DispatchMoeRunnerCore)
        module("sglang.srt.layers.moe.moe_runner", __path__=[], base=base)
        module("sglang.srt.layers.moe.moe_runner.runner", MoeRunner=MoeRunner,
               register_moe_runner_core=lambda name, factory: self.cores.update({name: factory}))
        module("sglang.srt.layers.moe.utils", get_moe_runner_backend=lambda: value(backend), resolve_moe_runner_backend=value,
               get_moe_a2a_backend=lambda: value(a2a))
        self.exec, self.parallel = types.SimpleNamespace(enable_eplb=False), types.SimpleNamespace(dwdp_size=1)
        module("sglang.srt.runtime_context", get_exec=lambda: types.SimpleNamespace(moe=self.exec),
               get_parallel=lambda: self.parallel)
        module("sglang.srt.layers.moe.token_dispatcher.standard",
               StandardCombineInput=lambda hidden_states: types.SimpleNamespace(hidden_states=hidden_states))
        group = object()
        sys.modules["sglang.srt.distributed"].get_tp_group = lambda: group

        @contextlib.contextmanager
        def use_symmetric_memory(group_coordinator, disabled=False):
            assert group_coordinator is group and not disabled
            make = torch.Tensor.new_empty
            with monkeypatch.context() as patch:
                patch.setattr(torch.Tensor, "new_empty", lambda *shape, **more: self.pool.append(make(*shape, **more)) or self.pool[-1])
                yield

        allocator = module("sglang.srt.distributed.device_communicators.pynccl_allocator", use_symmetric_memory=use_symmetric_memory,
                           is_symmetric_memory_enabled=lambda: self.symmetric)
        module("sglang.srt.distributed.device_communicators", __path__=[], pynccl_allocator=allocator)
        module("sglang.srt.layers.dp_attention", is_allocation_symmetric=lambda: True)
        kinds = types.SimpleNamespace(AROUND="around")
        module("sglang.srt.plugins.hook_registry", HookType=kinds, HookRegistry=types.SimpleNamespace(
            register=lambda target, hook, kind: self.hooks.update({target: (hook, kind)})))
        module(plugin.UPDATER, WeightUpdater=Updater)
        module("sglang.srt.server_args", add_moe_runner_backend_choices=self.choices.extend,
               add_mxfp8_moe_runner_backend_choices=self.mxfp8_choices.extend)
        monkeypatch.setattr(plugin, "_done", False)
        plugin._core_class.cache_clear()
        plugin._info_class.cache_clear()


class Updater:
    """Stands for SGLang 0.5.19's WeightUpdater: tensors go through the loaders of the layers, and nothing follows."""

    def __init__(self, model):
        self.get_model = lambda: model
        self.begun = 0

    def update_weights_from_disk(self, model_path, load_format):
        raise AssertionError("begun")

    def update_weights_from_tensor(self, named_tensors, load_format=None):
        self.begun += 1
        for layer, case in named_tensors:
            (fill if load_format == "direct" else load)(layer, case)
        return True, "Success"

    def update_weights_from_ipc(self, recv_req):
        raise AssertionError("begun")


def load(layer, case):
    """As SGLang's load_weights(): by the layer's loader, over which the plug-in stands."""
    plugin.load_weight(fill, layer, case)


@pytest.fixture(autouse=True)
def fresh_classes():
    yield
    plugin._core_class.cache_clear()
    plugin._info_class.cache_clear()


class Own:
    """Stands for a method of SGLang's; Case's tensors stand for what its create_weights() and the loader leave."""

    quant_config = None
    runner = None

    def create_weights(self, layer, case):
        for name, tensor in vars(case.layer).items():
            setattr(layer, name, torch.nn.Parameter(tensor.data.clone(), requires_grad=False))
        return "made"

    def process_weights_after_loading(self, layer):
        raise AssertionError("SGLang's own preparation")


def taken(layer, case):
    method = Own()
    assert plugin.take_over(Own.create_weights, method, layer, case) == "made"
    assert method.by_sluice and type(method).__name__ == "Own" and not method.fuse_routed_scaling_factor_in_topk
    method.create_moe_runner(layer, layer.moe_runner_config)
    assert method.get_moe_runner_backend(layer).value == "sluice"
    method.process_weights_after_loading(layer)
    return method


def apply(method, layer):
    def call(x, weights, ids):
        topk = types.SimpleNamespace(topk_weights=weights, topk_ids=ids.int(), router_logits=None)
        return method.apply(layer, types.SimpleNamespace(hidden_states=x, hidden_states_scale=None, topk_output=topk)).hidden_states
    return call
