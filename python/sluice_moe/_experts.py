# SPDX-License-Identifier: Apache-2.0
"""The experts that a layer of another engine holds, as a FusedMoE.

SGLang and vLLM name and shape the tensors of a layer alike: w13_weight [L, 2 I, H] with the gate's half first (without a gate
[L, I, H]), w2_weight [L, H, I], and scales beside them. Types and shapes tell the format. The router has chosen already, and
ids are local: what is -1 belongs to another rank and contributes nothing.
"""
from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from . import torch_ops
from ._arguments import is_set
from .errors import Error, Unsupported
from .moe import FusedMoE, prepared_bytes
from .specs import Matrices, MoeWeights

# The engines' names of activations, with and without a gate.
_GATED = {"silu": "swiglu", "swigluoai": "swiglu", "swigluoai_uninterleave": "swiglu", "gelu": "geglu",
          "gelu_tanh": "geglu_tanh", "gelu_pytorch_tanh": "geglu_tanh"}
_PLAIN = {"silu": "silu", "gelu": "gelu", "relu2": "relu2"}
_OAI = {"alpha": 1.702, "beta": 1.0, "limit": 7.0}  # of gpt-oss

KEEP = "SLUICE_KEEP_WEIGHTS"
MORE = "SLUICE_MOE_SPEC"
PER_TOKEN = "SLUICE_NVFP4_PER_TOKEN_ACTIVATION"


@dataclass
class Held:
    """What an engine says of a layer beside its tensors."""

    top_k: int
    activation: str
    gated: bool
    interleaved: bool = False  # row 2 i of w13 is the gate's, row 2 i + 1 the other half's
    per_token: bool = False  # NVFP4 activations have a scale for each token; the checkpoint's are not used
    weight_only: bool = False  # activations are not rounded
    alpha: float | None = None
    beta: float | None = None
    limit: float | None = None
    scale: float = 1.0  # multiplies the router's weights


def _first_of(layer: Any, *names: str) -> torch.Tensor | None:
    for name in names:
        found = getattr(layer, name, None)
        if isinstance(found, torch.Tensor) and found.numel():
            return found.detach()
    return None


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _halves(x: torch.Tensor | None, held: Held) -> tuple[Any, Any]:
    """(the half that is multiplied, the gate's), or (all of it, None)."""
    if x is None or not held.gated:
        return (None if x is None else x.contiguous()), None
    if held.interleaved:
        return x[:, 1::2].contiguous(), x[:, 0::2].contiguous()
    rows = x.shape[1] // 2
    return x[:, rows:].contiguous(), x[:, :rows].contiguous()


def _by_matrix(scale: torch.Tensor | None, held: Held) -> tuple[Any, Any]:
    """Scales of one value for each matrix: [L], [L, 1], or [L, 2] with the gate's first."""
    if scale is None:
        return None, None
    scale = scale.float().reshape(scale.shape[0], -1)
    if not held.gated:
        return scale[:, 0].contiguous(), None
    return scale[:, -1].contiguous(), scale[:, 0].contiguous()


def _largest(scale: torch.Tensor | None) -> float:
    """The decode factor of static activations: one for all experts, also of other ranks where the layer has them."""
    return 1.0 if scale is None else float(scale.float().max())


def _format(w13: torch.Tensor, scale: torch.Tensor | None, name: str | None) -> str:
    kind = _named(w13.dtype)
    if kind == "bfloat16":
        if scale is not None:
            raise Unsupported(f"w13_weight is bfloat16 beside {name}: weights that are quantised while they are loaded; accepted: "
                              "weights that a checkpoint stores quantised, or none that are")
        return "bf16"
    if kind not in ("float8_e4m3fn", "uint8", "int8") or scale is None:
        raise Unsupported(f"w13_weight is {kind} " + ("without scales" if scale is None else f"beside {name}")
                          + "; accepted: bfloat16, float8_e4m3fn and uint8 with scales")
    rows, columns = w13.shape[1:]
    shape = list(scale.shape[1:])
    if kind in ("uint8", "int8"):
        columns *= 2
        for format, group, types in (("nvfp4", 16, ("float8_e4m3fn",)), ("mxfp4", 32, ("uint8", "float8_e8m0fnu"))):
            if shape == [rows, columns // group] and _named(scale.dtype) in types:
                return format
    elif _named(scale.dtype) in ("uint8", "float8_e8m0fnu"):
        if shape == [rows, columns // 32]:
            return "mxfp8"
    elif scale.dtype.is_floating_point:
        if shape == [-(-rows // 128), -(-columns // 128)] and columns > 128:
            return "fp8_block"
        if shape in ([rows], [rows, 1]):
            return "fp8_channel"
        if shape in ([], [1], [2]):
            return "fp8_tensor"
    raise Unsupported(f"{name} is {_named(scale.dtype)} {list(scale.shape)} beside w13_weight {kind} {list(w13.shape)}; accepted: "
                      "scales of NVFP4, MXFP4, MXFP8, or FP8 by matrix, by row or by blocks of 128")


def _static(layer: Any) -> tuple[float, float] | None:
    """Decode factors of both products' inputs, if the checkpoint has them."""
    given = [_first_of(layer, f"{n}_input_scale") for n in ("w13", "w2")]
    if all(g is not None for g in given):
        return _largest(given[0]), _largest(given[1])
    packed = [_first_of(layer, f"{n}_input_global_scale") for n in ("w13", "w2")]  # compressed-tensors' encode factors
    if all(g is not None for g in packed):
        return _largest(1 / packed[0].float()), _largest(1 / packed[1].float())  # type: ignore[union-attr]
    return None


def _activation(held: Held) -> tuple[str, dict[str, float]]:
    name = held.activation.removesuffix("_no_mul")
    known = _GATED if held.gated else _PLAIN
    if name not in known:
        raise Unsupported(f"activation is {held.activation!r} {'with' if held.gated else 'without'} a gate; accepted: "
                          + ", ".join(known))
    given = {n: getattr(held, n) for n in ("alpha", "beta", "limit") if getattr(held, n) is not None}
    if "oai" in name or "alpha" in given:  # alpha alone is gpt-oss's activation, which adds 1 to the multiplied half
        given = {**_OAI, **({} if "oai" in name else {"limit": float("inf")}), **given}
    if given and known[name] != "swiglu":
        raise Unsupported(f"{', '.join(given)} is given with activation {held.activation!r}; accepted with silu")
    return known[name], given


def _bits(x: Any) -> Any:
    return x.view(torch.uint8) if x is not None and _named(x.dtype) in ("int8", "float8_e8m0fnu") else x


def read(layer: Any, held: Held) -> tuple[dict[str, Any], MoeWeights]:
    """A spec and weights of what `layer` holds after loading. Raises Unsupported with what it is and what is accepted."""
    w13, w2 = _first_of(layer, "w13_weight", "w13_weight_packed"), _first_of(layer, "w2_weight", "w2_weight_packed")
    if w13 is None or w2 is None or w13.dim() != 3 or w2.dim() != 3:
        raise Unsupported("the layer has no w13_weight [L, rows, H] and w2_weight [L, H, I]; accepted: canonical weights")
    names = ("weight_scale", "weight_scale_inv")
    name = next((f"w13_{n}" for n in names if _first_of(layer, f"w13_{n}") is not None), None)
    scale13, scale2 = (_first_of(layer, *(f"{w}_{n}" for n in names)) for w in ("w13", "w2"))
    format = _format(w13, scale13, name)
    act, params = _activation(held)
    spec = {**_shape(w13, w2, format, held), "act": act, "routed": 1, "dtype": "bfloat16"}
    inputs, more = _inputs(layer, format, held)
    if inputs is not None:
        spec["inputs"] = inputs
    if held.scale != 1:
        spec["routed_scale"] = held.scale
    if bias := _bias(layer, held):
        spec["bias"] = 1
    if params:
        spec["act_params"] = 1
    factors = {n: torch.full((spec["experts"],), v, dtype=torch.float32) for n, v in params.items()}
    up, gate = _halves(_bits(w13), held)
    up_scale, gate_scale, down_scale = _scales(scale13, scale2, format, held)
    up_wide, gate_wide, down_wide = _wide_scales(layer, held) if format == "nvfp4" else (None, None, None)
    weights = MoeWeights(up=Matrices(up, up_scale, up_wide), down=Matrices(_bits(w2).contiguous(), down_scale, down_wide),
                         gate=Matrices(gate, gate_scale, gate_wide) if gate is not None else None, **more, **bias, **factors)
    return spec, weights


def _shape(w13: torch.Tensor, w2: torch.Tensor, format: str, held: Held) -> dict[str, Any]:
    """The keys of a spec that the weights' shapes give."""
    packed = 2 if format in ("nvfp4", "mxfp4") else 1
    experts, rows, hidden = w13.shape[0], w13.shape[1], w13.shape[2] * packed
    inter = w2.shape[2] * packed
    if rows != inter * (1 + held.gated) or w2.shape[1] != hidden:
        raise Unsupported(f"w13_weight is {list(w13.shape)} and w2_weight {list(w2.shape)}; accepted: rows of w13_weight "
                          f"{'twice' if held.gated else 'as many as'} the columns of w2_weight, and {hidden} rows of w2_weight")
    if format == "fp8_block" and held.gated and inter % 128:
        raise Unsupported(f"the layer has {inter} rows of a half in blocks of 128; accepted: multiples of 128")
    return {"experts": experts, "top_k": held.top_k, "hidden": hidden, "inter": inter, "weights": format}


def _inputs(layer: Any, format: str, held: Held) -> tuple[str | None, dict[str, float]]:
    """What activations are rounded to (None: the format's own), and the scales of static ones."""
    static = _static(layer)
    if format in ("fp8_tensor", "fp8_channel"):
        inputs = "fp8_token" if static is None else "fp8_static"
    elif format == "mxfp4" or format == "nvfp4" and held.weight_only:
        inputs = "plain"
    elif format != "nvfp4":
        return None, {}
    else:
        inputs = "nvfp4_token" if held.per_token or is_set(PER_TOKEN) else "nvfp4"
        if inputs == "nvfp4" and static is None:
            raise Unsupported("NVFP4 weights without w13_input_scale and w2_input_scale; accepted: a calibrated checkpoint, or "
                              "activations with a scale for each token")
    if inputs not in ("nvfp4", "fp8_static") or static is None:
        return inputs, {}
    return inputs, {"input_scale1": static[0], "input_scale2": static[1]}


def _scales(scale13: torch.Tensor | None, scale2: torch.Tensor | None, format: str, held: Held) -> tuple[Any, Any, Any]:
    """The scales of the half that is multiplied, the gate's, and the second matrix's."""
    if format == "fp8_tensor":
        return (*_by_matrix(scale13, held), _by_matrix(scale2, Held(1, "", False))[0])
    up, gate = _halves(_bits(scale13), held)
    all_of_them = (up, gate, None if scale2 is None else _bits(scale2).contiguous())
    if format == "fp8_channel":
        return tuple(None if s is None else s.float().reshape(s.shape[0], -1) for s in all_of_them)  # type: ignore[return-value]
    if format == "fp8_block":
        return tuple(None if s is None else s.float() for s in all_of_them)  # type: ignore[return-value]
    return all_of_them


def _wide_scales(layer: Any, held: Held) -> tuple[Any, Any, Any]:
    """NVFP4's float32 for each matrix, in the same order; compressed-tensors stores encode factors."""
    own = [_first_of(layer, f"{w}_weight_scale_2") for w in ("w13", "w2")]
    for i, w in enumerate(("w13", "w2")):
        encode = _first_of(layer, f"{w}_weight_global_scale")
        if own[i] is None and encode is not None:
            own[i] = 1 / encode.float()
    if own[0] is None or own[1] is None:
        raise Unsupported("NVFP4 weights without w13_weight_scale_2 and w2_weight_scale_2; accepted: a float32 for each matrix")
    return (*_by_matrix(own[0], held), _by_matrix(own[1], Held(1, "", False))[0])


def _bias(layer: Any, held: Held) -> dict[str, Any]:
    """The biases of both products; empty: there are none."""
    bias13, bias2 = _first_of(layer, "w13_bias", "w13_weight_bias"), _first_of(layer, "w2_bias", "w2_weight_bias")
    if (bias13 is None) != (bias2 is None):
        raise Unsupported("the layer has a bias of one product alone; accepted: of both, or none")
    if bias13 is None or bias2 is None:
        return {}
    up, gate = _halves(bias13.float(), held)
    return {"bias_up": up.cpu(), "bias_gate": None if gate is None else gate.cpu(),
            "bias_down": bias2.float().contiguous().cpu()}


def _spec_line(spec: dict[str, Any]) -> str:
    return " ".join([*(f"{key}={value}" for key, value in spec.items()), os.environ.get(MORE, "")]).strip()


def _matrices(layer: Any) -> list[torch.nn.Parameter]:
    """w13 and w2, as far as they are parameters with elements."""
    found = (getattr(layer, f"{w}_{n}", None) for w in ("w13", "w2") for n in ("weight", "weight_packed"))
    return [m for m in found if isinstance(m, torch.nn.Parameter) and m.numel()]


def share_buffer(layer: Any) -> torch.Tensor | None:
    """Moves w13 and w2, which an engine has just made, into one buffer that the prepared weights will take, and returns it.

    The freed matrices of a layer are each too small for them. Where an engine's allocator gives nothing back while it loads
    (vLLM's sleep mode), loading would need twice the memory of all experts. None where it cannot be done, or a copy is kept.
    """
    found = _matrices(layer)
    if keeps_weights() or len(found) != 2 or any(m.dim() != 3 or m.device.type == "meta" for m in found):
        return None
    w13, w2 = found
    name = next((n for n in ("w13_weight_scale", "w13_weight_scale_inv") if _first_of(layer, n) is not None), None)
    try:
        format = _format(w13, None if name is None else _first_of(layer, name), name)
        gated = w13.shape[1] > w2.shape[2] * (2 if format in ("nvfp4", "mxfp4") else 1)
        shape = _shape(w13, w2, format, Held(top_k=1, activation="", gated=gated))
        size = prepared_bytes(_spec_line({**shape, "act": "swiglu" if gated else "relu2", "routed": 1}), w13.device)
    except Error:
        return None
    second = -(-w13.nbytes // 256) * 256
    buffer = torch.empty(max(size, second + w2.nbytes), dtype=torch.uint8, device=w13.device)
    for matrix, begin in ((w13, 0), (w2, second)):
        part = buffer[begin:begin + matrix.nbytes].view(matrix.dtype).view(matrix.shape)
        matrix.data = part.copy_(matrix.data)  # padding that no loader fills
    return buffer


class Experts:
    """A layer's experts, prepared in memory of torch's. load() again writes other weights to the same addresses, which CUDA
    graphs that were captured before see.

    buffer: what share_buffer() gave for the layer; where it is too small the weights get memory of their own.
    """

    def __init__(self, layer: Any, held: Held, buffer: torch.Tensor | None = None) -> None:
        if buffer is not None:  # the weights lie in what is written
            for matrix in _matrices(layer):
                matrix.data = matrix.data.clone()
        spec, weights = read(layer, held)
        self.spec = _spec_line(spec)
        device = weights.up.codes.device
        size = prepared_bytes(self.spec, device)
        if buffer is None or buffer.numel() < size or buffer.device != device:
            buffer = torch.empty(size, dtype=torch.uint8, device=device)
        memory = buffer[:size]
        self._held = held
        self.layer = FusedMoE(self.spec, weights, device=device, memory=memory)
        self._number = torch_ops.register(self.layer)

    def load(self, layer: Any) -> None:
        self.layer.refit(read(layer, self._held)[1])

    def __call__(self, hidden: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor,
                 out: torch.Tensor | None = None) -> torch.Tensor:
        """bfloat16 [T, H], `out` or a new tensor: the weighted sum of the chosen experts that are here."""
        x, ids, weights = hidden.contiguous(), topk_ids.to(torch.int32).contiguous(), topk_weights.float().contiguous()
        if not torch.compiler.is_compiling():  # an operator of Python's takes 40 us of the host's time
            out = self.layer(x, topk_ids=ids, topk_weights=weights, out=out)
        elif out is None:
            out = torch.ops.sluice.moe(self._number, x, None, None, ids, weights)
        else:
            torch.ops.sluice.moe_out(self._number, x, out, None, None, None, ids, weights)
        assert out is not None
        return out


_over: dict[tuple[Any, Any], type] = {}


def over(own: type, members: type) -> type:
    """A class of an engine with `members` over its own: an object of it may become one of this class, and the other way
    round, as nothing is added to its layout."""
    if (own, members) not in _over:
        mine = {name: value for name, value in vars(members).items() if name not in ("__dict__", "__weakref__", "__doc__")}
        _over[own, members] = type(own.__name__, (own,), {**mine, "__module__": own.__module__, "by_sluice": True})
    return _over[own, members]


# What a layer's own copy of its weights is called; freed once they are prepared.
_TENSORS = [f"{w}_{n}" for w in ("w13", "w2") for n in ("weight", "weight_packed", "weight_scale", "weight_scale_inv")]


def keeps_weights() -> bool:
    return is_set(KEEP)


def drop_weights(layer: Any) -> None:
    """Frees what was prepared; the parameters stay, with no elements."""
    for name in _TENSORS:
        found = getattr(layer, name, None)
        if isinstance(found, torch.nn.Parameter):
            found.data = found.data.new_empty((0,))


def on_hopper() -> bool:
    return bool(torch.cuda.is_available()) and torch.cuda.get_device_capability() == (9, 0)
