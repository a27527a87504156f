# SPDX-License-Identifier: Apache-2.0
"""vLLM's routed experts by Sluice's kernels on Hopper GPUs.

vLLM calls register() in every process by its entry point vllm.general_plugins (docs/sglang-vllm.md); SLUICE_VLLM=0 turns it
off. Quantisation configurations are registered again under their names, with one change: on a Hopper GPU their experts run
here. A layer that cannot is left to vLLM's own backend, with one line in the log that says why. vLLM loads, routes, cuts and
adds up the ranks.
"""
from __future__ import annotations

import functools
import logging
from typing import Any

from ._arguments import is_set

SWITCH = "SLUICE_VLLM"
# vLLM's names of the configurations whose experts can run here.
CONFIGS = ("modelopt_fp4", "modelopt", "modelopt_mxfp8", "modelopt_mixed", "mxfp8", "fp8", "mxfp4", "gpt_oss_mxfp4",
           "compressed-tensors")
_log = logging.getLogger("vllm.sluice_moe")
_done = False


def register() -> None:
    """Adds Sluice to the vLLM of this process; once. Prints one line where vLLM has other seams."""
    global _done
    if _done or not is_set(SWITCH, "1"):
        return
    _done = True
    try:
        from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
        from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
        from vllm.model_executor.layers.quantization import get_quantization_config, register_quantization_config
        RoutedExperts, UnquantizedFusedMoEMethod
    except ImportError as problem:
        _log.warning("sluice_moe: this vLLM keeps its experts elsewhere (%s); accepted: 0.26 to 0.33. Its own backends run.", problem)
        return
    for name in CONFIGS:
        try:
            config = get_quantization_config(name)
        except (ImportError, ValueError, KeyError) as problem:
            _log.info("sluice_moe: vLLM's %s is left as it is: %s", name, problem)
            continue
        register_quantization_config(name)(config_of(config))
    UnquantizedFusedMoEMethod.register_oot(unquantized_of(UnquantizedFusedMoEMethod))


@functools.cache
def config_of(base: type) -> type:
    """A configuration that gives the layers what `base` gives them, routed experts with their method taken over."""

    def get_quant_method(self: Any, layer: Any, prefix: str) -> Any:
        method = base.get_quant_method(self, layer, prefix)  # type: ignore[attr-defined]
        return take_over(method) if is_experts(method) else method

    return type(base.__name__, (base,), {"__module__": base.__module__, "get_quant_method": get_quant_method})


@functools.cache
def unquantized_of(base: type) -> type:
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        base.__init__(self, *arguments, **named)  # type: ignore[misc]
        take_over(self)

    return type(base.__name__, (base,), {"__module__": base.__module__, "__init__": __init__})


def is_experts(method: Any) -> bool:
    from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
    return isinstance(method, FusedMoEMethodBase)


def take_over(method: Any) -> Any:
    """The method with its experts here, where its parallel layout allows it."""
    from . import _experts
    if getattr(method, "by_sluice", False):
        return method
    problem = refusal(method) if _experts.on_hopper() else "no Hopper GPU (compute capability 9.0)"
    if problem is not None:
        _left(type(method).__name__, problem)
        return method
    if hasattr(method, "use_global_sf"):
        method.use_global_sf = True  # one scale of the activations for all experts, also those of other ranks
    method.__class__ = _experts.over(type(method), Method)
    return method


@functools.cache
def _left(name: str, problem: str) -> None:
    _log.warning("sluice_moe leaves the experts of %s to vLLM: %s", name, problem)


def refusal(method: Any) -> str | None:
    """Why a layer's parallel layout or its way of loading is not run here, or None."""
    import torch
    config = method.moe
    if getattr(method, "uses_meta_device", False):
        return "weights are quantised while they are loaded; accepted: weights that a checkpoint stores quantised, or none that are"
    if getattr(config, "in_dtype", torch.bfloat16) != torch.bfloat16:
        return f"dtype is {config.in_dtype}; accepted: bfloat16"
    parallel = config.moe_parallel_config
    if getattr(parallel, "use_all2all_kernels", False):
        return "data parallel attention sends tokens to experts with all2all kernels; accepted: tensor and expert parallelism"
    if getattr(parallel, "enable_eplb", False):
        return "enable_eplb is set; accepted: experts that stay where they are"
    if getattr(config, "is_lora_enabled", False):
        return "LoRA is enabled; accepted: none"
    return None


def held_of(layer: Any, method: Any) -> Any:
    """What vLLM says of a layer beside its tensors."""
    from . import _experts
    activation = layer.activation
    name = str(getattr(activation, "value", activation))
    return _experts.Held(
        top_k=int(layer.moe_config.experts_per_token), activation=name, gated=bool(layer.moe_config.is_act_and_mul),
        interleaved=name == "swigluoai", per_token=bool(getattr(method, "per_token_activation", False)),
        weight_only=bool(getattr(method, "use_a16", False)), alpha=getattr(layer, "swiglu_alpha", None),
        beta=getattr(layer, "swiglu_beta", None), limit=getattr(layer, "swiglu_limit", None))


class Method:
    """Over vLLM's own method of a format, whose create_weights() and loaders stay."""

    is_monolithic = False  # vLLM's router chooses

    @property
    def topk_indices_dtype(self) -> Any:
        import torch
        return torch.int32

    def create_weights(self, layer: Any, *arguments: Any, **more: Any) -> None:
        """vLLM's own, with a loader that knows what was prepared."""
        if more.get("weight_loader") is not None:
            more["weight_loader"] = loader_of(layer, more["weight_loader"])
        type(self).__bases__[0].create_weights(self, layer, *arguments, **more)  # type: ignore[attr-defined]
        from . import _experts
        layer.sluice_buffer = _experts.share_buffer(layer)

    def maybe_make_prepare_finalize(self, routing_tables: Any = None) -> None:
        """Tokens of other ranks are not sent for."""

    def process_weights_after_loading(self, layer: Any) -> None:
        from . import _experts
        from .errors import Unsupported
        found = getattr(layer, "sluice_experts", None)
        if found is not None:
            found.load(layer)
        else:
            try:
                if layer.apply_router_weight_on_input:
                    raise Unsupported("apply_router_weight_on_input is set; accepted: False")
                buffer, layer.sluice_buffer = getattr(layer, "sluice_buffer", None), None
                layer.sluice_experts = _experts.Experts(layer, held_of(layer, self), buffer)
            except Unsupported as problem:
                own = type(self).__bases__[0]
                _left(own.__name__, str(problem))
                self.__class__ = own
                self.process_weights_after_loading(layer)
                return
            _said(layer.sluice_experts.spec)
        layer.sluice_written = False
        layer.sluice_ids = ids_table(layer.expert_map)
        if not _experts.keeps_weights():
            _experts.drop_weights(layer)

    def get_fused_moe_quant_config(self, layer: Any) -> Any:
        return None

    def apply(self, layer: Any, x: Any, topk_weights: Any, topk_ids: Any, *shared: Any, **named: Any) -> Any:
        return layer.sluice_experts(x, topk_weights, topk_ids if layer.sluice_ids is None else layer.sluice_ids[topk_ids])


def ids_table(expert_map: Any) -> Any:
    """This rank's numbers of all experts, -1 for other ranks', as int32; its last entry is what padding's -1 finds."""
    if expert_map is None:
        return None
    import torch
    return torch.cat([expert_map.to(torch.int32), expert_map.new_full((1,), -1, dtype=torch.int32)])


def loader_of(layer: Any, own: Any) -> Any:
    """vLLM's loader. After the experts were prepared it cannot write where vLLM's copy was freed, and what it writes else is
    not what runs before it is prepared, too."""

    @functools.wraps(own)
    def load(param: Any, *arguments: Any, **more: Any) -> Any:
        if getattr(layer, "sluice_experts", None) is not None:
            if param.numel() == 0:
                raise RuntimeError(freed())
            if not layer.sluice_written:
                layer.sluice_written = True
                _log_written()
        return own(param, *arguments, **more)

    return load


def freed() -> str:
    from . import _experts
    return ("weights of the experts are loaded again, and vLLM's copy was freed when they were prepared; accepted: "
            f"LLM.reload_weights(), or {_experts.KEEP}=1, which keeps it, and sluice_moe.vllm.prepare_written(model) afterwards")


@functools.cache
def _log_written() -> None:
    _log.warning("sluice_moe: a running model's experts are loaded; they run after sluice_moe.vllm.prepare_written(model), which "
                 "LLM.reload_weights() does not need")


def prepare_written(model: Any) -> int:
    """Prepares the layers of a running model (torch.nn.Module) whose experts were loaded since they were prepared, at the same
    addresses, which captured graphs see. Returns how many. For RL frameworks that call model.load_weights(...) themselves."""
    layers = [m for m in model.modules() if getattr(m, "sluice_written", False)]
    for layer in layers:
        layer.quant_method.process_weights_after_loading(layer)
    return len(layers)


@functools.cache
def _said(spec: str) -> None:
    _log.info("sluice_moe runs experts: %s", spec)
