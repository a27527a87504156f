# SPDX-License-Identifier: Apache-2.0
"""SGLang's runner backend `sluice`: --moe-runner-backend sluice runs the routed experts of a model with Sluice's kernels.

SGLang calls register() in every process by its entry point sglang.srt.plugins (docs/sglang-vllm.md). Nothing changes unless
the option asks for it. Weights stay as the checkpoint has them, gate first; SGLang routes, cuts and adds up the ranks.
"""
from __future__ import annotations

import functools
import importlib
import inspect
import logging
from dataclasses import dataclass
from typing import Any

from .errors import Unsupported

NAME = "sluice"
_QUANT = "sglang.srt.layers.quantization."
# Methods whose weights the backend reads, by where SGLang has them.
METHODS = (
    "modelopt_quant.ModelOptNvFp4FusedMoEMethod", "modelopt_quant.ModelOptFp8MoEMethod", "fp8.Fp8MoEMethod",
    "mxfp4.Mxfp4MoEMethod", "compressed_tensors.compressed_tensors.CompressedTensorsFusedMoEMethod",
    "unquant.UnquantizedFusedMoEMethod",
)
# Whose instances are of MXFP8 and of other FP8 formats.
MXFP8 = "fp8.Fp8Config"
# Through which every tensor of a layer's experts comes, at the start and in an update.
LAYER = "sglang.srt.layers.moe.fused_moe_triton.layer.FusedMoE"
LOADERS = ("weight_loader", "weight_loader_fused")
# Who multiplies by routed_scaling_factor: the TopK of SGLang, or the runner.
SCALES_IN_TOPK = "sglang.srt.layers.moe.fused_moe_triton.layer._fuses_routed_scaling_factor_in_topk"
# What writes a running model's weights. PREPARING ones prepare them as after a start. So does end_weight_update(), which
# follows the others in 0.5.23; in 0.5.19 nothing does.
UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater"
PREPARING = ("update_weights_from_disk", "update_weights_from_ipc")
UPDATES = (*PREPARING, "update_weights_from_tensor", "update_weights_from_distributed", "load_weights_from_distributed")
_log = logging.getLogger("sglang.sluice_moe")
_done = False


def register() -> None:
    """Adds the backend to the SGLang of this process; once. Prints one line where SGLang is too old."""
    global _done
    if _done:
        return
    try:
        from sglang.srt.layers.moe.moe_runner import base
        from sglang.srt.layers.moe.moe_runner.runner import register_moe_runner_core
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType
        from sglang.srt.server_args import add_moe_runner_backend_choices, add_mxfp8_moe_runner_backend_choices
        base.DispatchMoeRunnerCore
    except (ImportError, AttributeError) as problem:
        _log.warning("sluice_moe: this SGLang has no registry of MoE runners (%s); accepted: 0.5.19 and newer. Its own backends "
                     "run.", problem)
        _done = True
        return
    _done = True
    add_moe_runner_backend_choices([NAME])
    add_mxfp8_moe_runner_backend_choices([NAME])
    register_moe_runner_core(NAME, make_core)
    for method in METHODS:
        HookRegistry.register(f"{_QUANT}{method}.create_weights", take_over, HookType.AROUND)
    for loader in LOADERS:
        HookRegistry.register(f"{LAYER}.{loader}", load_weight, HookType.AROUND)
    for update in updates():
        HookRegistry.register(f"{UPDATER}.WeightUpdater.{update}", update_weights, HookType.AROUND)
    HookRegistry.register(SCALES_IN_TOPK, scales_in_topk, HookType.AROUND)
    HookRegistry.register(f"{_QUANT}{METHODS[0]}.__init__", _make_nvfp4, HookType.AROUND)
    HookRegistry.register(f"{_QUANT}{MXFP8}.get_min_capability", _least_capability, HookType.AROUND)


def is_chosen() -> bool:
    from sglang.srt.layers.moe.utils import get_moe_runner_backend
    return bool(get_moe_runner_backend().value == NAME)


def _make_nvfp4(original: Any, self: Any, quant_config: Any) -> None:
    """SGLang's own constructor accepts NVFP4 on Blackwell, or by Marlin."""
    if not is_chosen():
        original(self, quant_config)
        return
    self.quant_config = quant_config
    self._lora_marlin = self.enable_flashinfer_trtllm_moe = self.use_flashinfer_trtllm_weight_layout = False
    self._cache_permute_indices = {}


def _least_capability(original: Any, self: Any) -> Any:
    """SGLang refuses an MXFP8 checkpoint before Blackwell; its linears, where a checkpoint has any in MXFP8, still need that."""
    return 90 if is_chosen() and getattr(self, "use_mxfp8", False) else original(self)


def scales_in_topk(original: Any, quant_method: Any, *arguments: Any, **named: Any) -> bool:
    """Never: the runner multiplies. Not every model's TopK does when it is asked to: Bailing's is not told, and that of
    DeepSeek-V2 multiplies only weights that it renormalises. Every layer asks, so others than ours are seen here, too."""
    if getattr(quant_method, "by_sluice", False):
        return False
    if is_chosen():
        _left(type(quant_method).__name__)
    return bool(original(quant_method, *arguments, **named))


@functools.cache
def _left(method: str) -> None:
    _log.warning("sluice_moe leaves the experts of %s to SGLang; accepted: %s", method, ", ".join(m.rpartition(".")[2] for m in METHODS))


def take_over(original: Any, self: Any, layer: Any, *arguments: Any, **named: Any) -> Any:
    """create_weights() of SGLang's method; the method is the backend's from then on."""
    if is_chosen():
        check(layer.moe_runner_config, layer.params_dtype if hasattr(layer, "params_dtype") else None)
        from . import _experts
        self.__class__ = _experts.over(type(self), Method)
    return original(self, layer, *arguments, **named)


def check(config: Any, dtype: Any = None) -> None:
    """Raises ValueError with what the backend does not do."""
    import torch

    from . import _experts
    from sglang.srt.layers.moe.utils import get_moe_a2a_backend
    if not _experts.on_hopper():
        raise ValueError("moe_runner_backend is sluice without a Hopper GPU (compute capability 9.0); accepted there")
    if dtype not in (None, torch.bfloat16):
        raise ValueError(f"dtype is {dtype} with moe_runner_backend sluice; accepted: bfloat16")
    for name in ("apply_router_weight_on_input", "no_combine"):
        if getattr(config, name, False):
            raise ValueError(f"{name} is set with moe_runner_backend sluice; accepted: False")
    from sglang.srt.runtime_context import get_exec, get_parallel
    # Both move a layer's own weights between ranks, which are not read after they were prepared.
    if getattr(get_exec().moe, "enable_eplb", False):
        raise ValueError("enable_eplb is set with moe_runner_backend sluice; accepted: experts that stay where they are")
    if getattr(get_parallel(), "dwdp_size", 1) > 1:
        raise ValueError(f"dwdp_size is {get_parallel().dwdp_size} with moe_runner_backend sluice; accepted: 1")
    a2a = get_moe_a2a_backend().value
    if a2a != "none":
        raise ValueError(f"moe_a2a_backend is {a2a} with moe_runner_backend sluice; accepted: none")


def held_of(layer: Any, method: Any) -> Any:
    """What SGLang says of a layer beside its tensors."""
    from . import _experts
    config = layer.moe_runner_config
    alpha, beta, limit = (getattr(config, f"gemm1_{n}", None) for n in ("alpha", "beta", "clamp_limit"))
    if limit is None:
        limit = getattr(config, "swiglu_limit", None)
    quant = getattr(method, "quant_config", None)
    scaled = bool(getattr(layer, "should_fuse_routed_scaling_factor_in_topk", False))
    return _experts.Held(
        top_k=int(config.top_k), activation=str(config.activation), gated=bool(config.is_gated), alpha=alpha, beta=beta,
        limit=limit, per_token=bool(getattr(quant, "use_per_token_activation", False)), interleaved=interleaved(layer, method),
        weight_only=bool(getattr(quant, "is_w4a16", False)) or has_no_input_scales(layer, method),
        scale=1.0 if scaled or config.routed_scaling_factor is None else float(config.routed_scaling_factor))


def has_no_input_scales(layer: Any, method: Any) -> bool:
    """Whether an NVFP4 layer's input scales are still the ones that SGLang's create_weights() fills in, as a checkpoint whose
    activations stay in bfloat16 leaves them. A calibrated one is the largest magnitude divided by 2688."""
    scales = [getattr(layer, f"{w}_input_scale", None) for w in ("w13", "w2")]
    return "NvFp4" in type(method).__name__ and all(s is not None and bool((s == 1).all()) for s in scales)


def interleaved(layer: Any, method: Any) -> bool:
    """Whether a row of w13_weight is the gate's and the next one the other half's, in turn. By the rules of SGLang's own
    backends: in NVFP4 a model sets it (Inkling), in other formats it is how gpt-oss's activation reads its input."""
    config = layer.moe_runner_config
    marked = bool(getattr(layer, "inference_moe_w13_interleaved", False))
    if "NvFp4" in type(method).__name__:
        return marked
    if marked:
        raise Unsupported("inference_moe_w13_interleaved is set on a layer that is not NVFP4; accepted: NVFP4")
    return bool(config.is_gated and getattr(config, "gemm1_alpha", None) is not None
                and getattr(config, "gate_up_interleaved", True))


def freed() -> str:
    """Why an update is refused where SGLang's copy of the experts was freed."""
    from . import _experts
    return ("weights of the experts are loaded again, and the engine's copy was freed when they were prepared; accepted with "
            f"{_experts.KEEP}=1, which keeps it")


def load_weight(original: Any, self: Any, *arguments: Any, **named: Any) -> Any:
    """A loader of SGLang's layer. What it writes after the experts were prepared is prepared at the end of the update."""
    if getattr(self, "sluice_experts", None) is not None:
        from . import _experts
        if not _experts.keeps_weights():
            raise RuntimeError(freed())
        self.sluice_written = True
    return original(self, *arguments, **named)


def updates() -> list[str]:
    """Which of UPDATES this SGLang has."""
    try:
        own = importlib.import_module(UPDATER).WeightUpdater
    except (ImportError, AttributeError) as problem:
        _log.warning("sluice_moe: this SGLang updates weights elsewhere (%s); updates are not seen, and experts stay as they are.",
                     problem)
        return []
    return [name for name in UPDATES if hasattr(own, name)]


def update_weights(original: Any, self: Any, *arguments: Any, **named: Any) -> Any:
    """An update of SGLang's, (success, message): refused before anything is written where its copy of the experts was freed,
    else followed by preparing the layers that it wrote."""
    from . import _experts
    layers = [m for m in self.get_model().modules() if getattr(m, "sluice_experts", None) is not None]
    if layers and not _experts.keeps_weights():
        return False, freed()
    answer = original(self, *arguments, **named)
    if not answer[0] or original.__name__ in PREPARING or hasattr(self, "end_weight_update"):
        return answer
    how = inspect.signature(original).bind(self, *arguments, **named).arguments.get("load_format")
    for layer in layers:
        # The other formats do not write by the layer's loaders, so what they wrote is not known.
        if getattr(layer, "sluice_written", False) or how not in (None, "flattened_bucket"):
            layer.quant_method.process_weights_after_loading(layer)
    return answer


class Method:
    """Over SGLang's own method of a format, whose create_weights() and loaders stay."""

    fuse_routed_scaling_factor_in_topk = False  # see scales_in_topk()

    def create_moe_runner(self, layer: Any, moe_runner_config: Any) -> None:
        from sglang.srt.layers.moe.moe_runner.runner import MoeRunner
        from sglang.srt.layers.moe.utils import resolve_moe_runner_backend
        self.moe_runner_config = moe_runner_config
        self.runner = MoeRunner(resolve_moe_runner_backend(NAME), moe_runner_config)

    def get_moe_runner_backend(self, layer: Any) -> Any:
        return self.runner.runner_backend

    def get_moe_routing_method_type(self, layer: Any, requested_method: Any) -> Any:
        return requested_method

    def process_weights_after_loading(self, layer: Any) -> None:
        from . import _experts
        found = getattr(layer, "sluice_experts", None)
        if found is None:
            layer.sluice_experts = _experts.Experts(layer, held_of(layer, self))
            if layer.layer_id == 0 or not hasattr(Method, "_said"):
                Method._said = True  # type: ignore[attr-defined]
                _log.info("sluice_moe runs the experts: %s", layer.sluice_experts.spec)
        elif not _experts.keeps_weights():
            raise RuntimeError(freed())
        else:
            found.load(layer)
        layer.sluice_written = False
        for name in ("w13_blockscale_swizzled", "w2_blockscale_swizzled"):
            if getattr(layer, name, None) is not None:
                setattr(layer, name, None)
        if not _experts.keeps_weights():
            _experts.drop_weights(layer)

    def restore_weights_before_loading(self, layer: Any) -> None:
        """Nothing was shuffled."""

    def apply(self, layer: Any, dispatch_output: Any) -> Any:
        return self.runner.run(dispatch_output, quant_info(layer))


def quant_info(layer: Any) -> Any:
    return _info_class()(layer.sluice_experts)


@functools.cache
def _info_class() -> type:
    from sglang.srt.layers.moe.moe_runner.base import MoeQuantInfo

    @dataclass
    class SluiceMoeQuantInfo(MoeQuantInfo):  # type: ignore[misc]
        experts: Any

    return SluiceMoeQuantInfo


def run(dispatch_output: Any, info: Any) -> Any:
    """One layer: hidden states and standard top-k in, the combined output of this rank's experts out."""
    from sglang.srt.layers.moe.token_dispatcher.standard import StandardCombineInput
    hidden, topk = dispatch_output.hidden_states, dispatch_output.topk_output
    # Without tokens the top-k may have another width: SGLang's empty one leaves out experts that are fused with a shared one.
    out = (info.experts(hidden, topk.topk_weights, topk.topk_ids, symmetric_output(hidden)) if hidden.shape[0]
           else hidden.new_empty(hidden.shape))
    return StandardCombineInput(hidden_states=out)


def symmetric_output(hidden: Any) -> Any:
    """A tensor for the layer's output in NCCL's symmetric memory, in which SGLang adds up the ranks' outputs with
    --enable-symm-mem; None: without it."""
    from sglang.srt.distributed.device_communicators import pynccl_allocator
    if not pynccl_allocator.is_symmetric_memory_enabled():
        return None
    from sglang.srt.distributed import get_tp_group
    from sglang.srt.layers.dp_attention import is_allocation_symmetric
    with pynccl_allocator.use_symmetric_memory(get_tp_group(), disabled=not is_allocation_symmetric()):
        return hidden.new_empty(hidden.shape)


@functools.cache
def _core_class() -> type:
    from sglang.srt.layers.moe.moe_runner.base import DispatchMoeRunnerCore
    from sglang.srt.layers.moe.utils import resolve_moe_runner_backend

    class SluiceRunnerCore(DispatchMoeRunnerCore):  # type: ignore[misc]
        @property
        def runner_backend(self) -> Any:
            return resolve_moe_runner_backend(NAME)

        def run_from_dispatch(self, dispatch_output: Any, quant_info: Any, runner_config: Any, hooks: Any = None) -> Any:
            if hooks is not None:
                raise ValueError("LoRA is used with moe_runner_backend sluice; accepted: none")
            return run(dispatch_output, quant_info)

    return SluiceRunnerCore


def make_core(config: Any) -> Any:
    return _core_class()(config)
