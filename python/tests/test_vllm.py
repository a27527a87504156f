# SPDX-License-Identifier: Apache-2.0
"""The plug-in of vLLM: against vLLM's own classes where it is installed (it needs no GPU for that), and against stand-ins."""
import importlib
import logging
import sys
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: no layers of vLLM")

import sluice_moe.vllm as plugin  # noqa: E402
from sluice_moe import _experts  # noqa: E402
from test_experts import ROUNDINGS, SCALE1, SCALE2, Case, E, H, I, K, T  # noqa: E402
from reference import round_nvfp4  # noqa: E402
import numpy as np  # noqa: E402

real = pytest.mark.needs("vllm")


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    """The plug-in's code runs on the CPU, too; only its gate asks for the GPU."""
    monkeypatch.setattr(_experts, "on_hopper", lambda: True)
    plugin._left.cache_clear()
    # Where vLLM is installed its logger keeps messages from the root's, which caplog listens to.
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)


def moe_config(gated=True, **parallel):
    return types.SimpleNamespace(
        in_dtype=torch.bfloat16, experts_per_token=K, is_act_and_mul=gated, w13_num_shards=1 + gated, has_bias=False, num_experts=E,
        num_local_experts=E, hidden_dim=H, intermediate_size_per_partition=I, tp_rank=0, is_lora_enabled=False,
        moe_parallel_config=types.SimpleNamespace(**{"use_all2all_kernels": False, "enable_eplb": False, "tp_size": 1, **parallel}))


class Layer(torch.nn.Module):
    """What the plug-in reads of vLLM's RoutedExperts."""

    def __init__(self, gated, activation="silu", expert_map=None):
        super().__init__()
        self.moe_config = moe_config(gated)
        self.activation = types.SimpleNamespace(value=activation if gated else "relu2_no_mul")
        self.swiglu_alpha = self.swiglu_beta = self.swiglu_limit = None
        self.apply_router_weight_on_input = False
        self.expert_map = expert_map
        self.orig_dtype = self.params_dtype = torch.bfloat16
        self.local_num_experts = self.global_num_experts = E
        self.intermediate_size_per_partition, self.hidden_size = I, H
        self.weight_block_size = None


def fill(layer, case):
    """A checkpoint's tensors into the parameters that vLLM or SGLang made."""
    for name, tensor in vars(case.layer).items():
        for other in (name, name.removesuffix("_inv"), name + "_inv"):
            target = getattr(layer, other, None)
            if target is not None:
                break
        assert target is not None, (name, [n for n, _ in layer.named_parameters()])
        if name.endswith("input_scale") and target.dim() == 2:
            tensor = tensor[:, None].expand(target.shape)
        target.data.view(torch.uint8).reshape(-1).copy_(tensor.data.reshape(target.shape).contiguous().view(torch.uint8).reshape(-1))


def applied(method, layer, case, expert_map=None, ids=None):
    ids = torch.from_numpy(case.ids if ids is None else ids).int()
    return method.apply(layer, torch.from_numpy(case.x.view(np.int16)).view(torch.bfloat16), torch.from_numpy(case.weights), ids, None, None)


def check(method, layer, case, *roundings):
    case.check(lambda x, weights, ids: method.apply(layer, x, weights, ids.int(), None, None), *roundings)


# Where vLLM has each format's method, its class, the attributes its constructor would give it, and how its layer rounds.
STATIC = (lambda y: round_nvfp4(y, np.float32(SCALE1)), lambda y: round_nvfp4(y, np.float32(SCALE2)))
METHODS = {
    "nvfp4": ("modelopt", "ModelOptNvFp4FusedMoE", {"use_a16": False, "use_global_sf": False, "per_token_activation": False},
              {"is_checkpoint_nvfp4_serialized": True, "group_size": 16}, STATIC),
    "mxfp8": ("modelopt", "ModelOptMxFp8FusedMoE", {"mxfp8_backend": None}, {"is_checkpoint_mxfp8_serialized": True}, ROUNDINGS["mxfp8"]),
    "fp8_tensor": ("modelopt", "ModelOptFp8MoEMethod", {}, {"is_checkpoint_fp8_serialized": True}, None),
    "fp8_block": ("fp8", "Fp8MoEMethod", {"weight_block_size": [128, 128], "block_quant": True, "moe_block_shape": [128, 128], "weight_scale_refine": None,
                                          "weight_scale_name": "weight_scale_inv"},
                  {"is_checkpoint_fp8_serialized": True, "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
                  ROUNDINGS["fp8_block"]),
    "mxfp4": ("mxfp4", "Mxfp4MoEMethod", {"weight_dtype": "mxfp4"}, {}, ROUNDINGS["mxfp4"]),
}


def one_rank(monkeypatch):
    """vLLM's layers without a process group."""
    for module in [m for n, m in sys.modules.items() if n.startswith("vllm.")]:
        for function, answer in (("rank", 0), ("world_size", 1)):
            if f"get_tensor_model_parallel_{function}" in vars(module):
                monkeypatch.setattr(module, f"get_tensor_model_parallel_{function}", lambda answer=answer: answer)


@real
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("format", METHODS)
def test_vllms_own_methods(rng, monkeypatch, format, gated):
    """Parameters as vLLM's create_weights() makes them, filled, prepared and run through the method that was taken over."""
    where, name, attributes, config, roundings = METHODS[format]
    module = importlib.import_module(f"vllm.model_executor.layers.quantization.{where}")
    one_rank(monkeypatch)
    own = getattr(module, name)
    method = object.__new__(own)
    method.moe, method.moe_kernel, method.moe_quant_config = moe_config(gated), None, None
    method.quant_config = types.SimpleNamespace(**config)
    for key, value in attributes.items():
        setattr(method, key, value)
    assert plugin.take_over(method) is method and isinstance(method, own) and method.by_sluice
    assert type(method).__name__ == own.__name__ and not method.is_monolithic and method.topk_indices_dtype is torch.int32
    assert getattr(method, "use_global_sf", True) is True
    layer = Layer(gated)
    method.create_weights(layer, E, H, I, torch.bfloat16, weight_loader=lambda *a, **k: None, global_num_experts=E,
                          intermediate_size_full=I)
    if layer.w13_weight.shape[1] != (1 + gated) * I:
        pytest.skip("this vLLM makes the weights of a gate in any case")
    case = Case(rng, format, gated, "cpu")
    if format in ("nvfp4", "fp8_tensor"):
        case.static()
    buffer = layer.sluice_buffer
    fill(layer, case)
    method.process_weights_after_loading(layer)
    assert layer.sluice_buffer is None and layer.sluice_experts.layer._memory.pointer == buffer.data_ptr()
    if format == "fp8_tensor":
        from test_experts import to_static
        roundings = to_static(SCALE1), to_static(SCALE2)
    check(method, layer, case, *roundings)
    assert layer.w13_weight.numel() == 0


@real
def test_configurations_are_registered_again():
    from vllm.model_executor.layers import quantization
    before = {name: quantization.get_quantization_config(name) for name in plugin.CONFIGS}
    plugin.register()
    plugin.register()
    for name, config in before.items():
        now = quantization.get_quantization_config(name)
        assert now is not config and issubclass(now, config) and now.__name__ == config.__name__
        assert now.get_quant_method is not config.get_quant_method
    from vllm.model_executor.custom_op import op_registry_oot
    assert "UnquantizedFusedMoEMethod" in op_registry_oot


@real
def test_a_configuration_gives_the_method_that_was_taken_over():
    from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase

    class Own(FusedMoEMethodBase):
        def create_weights(self, *arguments, **named):
            pass

        def get_fused_moe_quant_config(self, layer):
            return "own"

    class Config:
        def get_quant_method(self, layer, prefix):
            return Own(moe_config()) if prefix == "experts" else prefix

    config = plugin.config_of(Config)()
    assert config.get_quant_method(None, "linear") == "linear"
    method = config.get_quant_method(None, "experts")
    assert method.by_sluice and isinstance(method, Own) and not method.supports_internal_mk


class Own:
    """Stands for a method of vLLM's."""

    is_monolithic = True

    def __init__(self, moe):
        self.moe = moe

    def process_weights_after_loading(self, layer):
        layer.by_vllm = True


def test_what_cannot_run_is_left_to_vllm(rng, caplog):
    caplog.set_level(logging.WARNING, "vllm.sluice_moe")
    for more, sentence in (({"use_all2all_kernels": True}, "all2all kernels"), ({"enable_eplb": True}, "enable_eplb is set")):
        method = plugin.take_over(Own(moe_config(**more)))
        assert type(method) is Own and sentence in caplog.text
    online = Own(moe_config())  # vLLM's --quantization fp8 of a checkpoint in bfloat16
    online.uses_meta_device = True
    assert type(plugin.take_over(online)) is Own and "quantised while they are loaded" in caplog.text
    half = moe_config()
    half.in_dtype = torch.float16
    assert type(plugin.take_over(Own(half))) is Own and "dtype is torch.float16" in caplog.text
    # What is only known of the weights: the method is vLLM's again, and its own preparation runs.
    method = plugin.take_over(Own(moe_config()))
    assert method.by_sluice and not method.is_monolithic
    layer = Layer(True, activation="swiglustep")
    case = Case(rng, "bf16", True, "cpu")
    layer.w13_weight, layer.w2_weight = case.layer.w13_weight, case.layer.w2_weight
    method.process_weights_after_loading(layer)
    assert type(method) is Own and method.is_monolithic and layer.by_vllm and layer.w13_weight.numel()
    assert "activation is 'swiglustep' with a gate" in caplog.text


def test_without_a_hopper_gpu_nothing_changes(monkeypatch, caplog):
    monkeypatch.setattr(_experts, "on_hopper", lambda: False)
    assert type(plugin.take_over(Own(moe_config()))) is Own
    assert "no Hopper GPU" in caplog.text


def test_experts_of_other_ranks(rng):
    """Two ranks with half of the experts each: their outputs add up to the layer's."""
    case = Case(rng, "bf16", True, "cpu")
    case.ids[case.ids < 0] = 0  # global ids, all of them somewhere
    case.ids[4] = -1
    total = 0
    for rank in range(2):
        mine = slice(3 * rank, 3 * rank + 3)
        expert_map = torch.full((E,), -1, dtype=torch.int32)
        expert_map[mine] = torch.arange(3, dtype=torch.int32)
        method = plugin.take_over(Own(moe_config()))
        layer = Layer(True, expert_map=expert_map)
        for name in ("w13_weight", "w2_weight"):
            setattr(layer, name, torch.nn.Parameter(getattr(case.layer, name)[mine].clone(), requires_grad=False))
        method.process_weights_after_loading(layer)
        total = total + applied(method, layer, case).double().numpy()
    from reference import bf16, layer as definition, swiglu, to_bf16
    expected, bound = definition(bf16(case.x), case.ids, case.weights.astype(np.float64), *case.values, swiglu,
                                 lambda y: bf16(to_bf16(y)))
    assert (np.abs(total - expected) <= bound + 2.0**-8 * np.abs(total) + 2.0**-8).all()
    assert applied(method, layer, case, ids=np.full((T, K), -1)).abs().max() == 0


def test_weights_of_an_update(rng):
    first, second = Case(rng, "bf16", True, "cpu"), Case(rng, "bf16", True, "cpu")
    method = plugin.take_over(Own(moe_config()))
    layer = Layer(True)
    for case in (first, second):
        layer.w13_weight, layer.w2_weight = case.layer.w13_weight, case.layer.w2_weight
        address = layer.sluice_experts.layer._memory.pointer if hasattr(layer, "sluice_experts") else None
        method.process_weights_after_loading(layer)
        assert address in (None, layer.sluice_experts.layer._memory.pointer)
        check(method, layer, case, *ROUNDINGS["bf16"])


class OwnWithWeights(Own):
    def create_weights(self, layer, case, weight_loader=None):
        for name in ("w13_weight", "w2_weight"):
            param = torch.nn.Parameter(getattr(case.layer, name).data.clone(), requires_grad=False)
            param.weight_loader = weight_loader
            setattr(layer, name, param)


@pytest.mark.parametrize("keeps", [True, False])
def test_weights_that_a_framework_loads_by_itself(rng, monkeypatch, caplog, keeps):
    """As verl's calls of model.load_weights(): through the parameters' loaders, and nothing follows."""
    def own_loader(param, tensor):
        param.data.copy_(tensor)
        return "loaded"

    own_loader.supports_moe_loading = True
    monkeypatch.setenv("SLUICE_KEEP_WEIGHTS", str(int(keeps)))
    first, second = Case(rng, "bf16", True, "cpu"), Case(rng, "bf16", True, "cpu")
    method = plugin.take_over(OwnWithWeights(moe_config()))
    layer = Layer(True)
    layer.quant_method = method
    model = torch.nn.ModuleList([layer])
    method.create_weights(layer, first, weight_loader=own_loader)
    assert layer.w13_weight.weight_loader.supports_moe_loading
    assert layer.w13_weight.weight_loader(layer.w13_weight, first.layer.w13_weight) == "loaded"
    method.process_weights_after_loading(layer)
    check(method, layer, first, *ROUNDINGS["bf16"])
    assert plugin.prepare_written(model) == 0
    for name in ("w13_weight", "w2_weight"):
        param = getattr(layer, name)
        if keeps:
            param.weight_loader(param, getattr(second.layer, name))
        else:
            with pytest.raises(RuntimeError, match="SLUICE_KEEP_WEIGHTS=1"):
                param.weight_loader(param, getattr(second.layer, name))
    if keeps:
        assert "prepare_written(model)" in caplog.text
        check(method, layer, first, *ROUNDINGS["bf16"])
        assert plugin.prepare_written(model) == 1 and plugin.prepare_written(model) == 0
        check(method, layer, second, *ROUNDINGS["bf16"])


def test_an_older_vllm_is_left_alone(monkeypatch, caplog):
    monkeypatch.setattr(plugin, "_done", False)
    for name in list(sys.modules):
        if name == "vllm" or name.startswith("vllm."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    plugin.register()
    assert "keeps its experts elsewhere" in caplog.text and "accepted: 0.26 to 0.33" in caplog.text


def test_it_can_be_turned_off(monkeypatch):
    monkeypatch.setattr(plugin, "_done", False)
    monkeypatch.setenv("SLUICE_VLLM", "0")
    plugin.register()
    assert not plugin._done
