# SPDX-License-Identifier: Apache-2.0
"""One fused mixture-of-experts layer.

Letters: T tokens, H hidden, I intermediate of this rank, E experts, L experts of this rank, K experts per token.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from . import _c_api, _device, _library, _tensor
from ._prepared import check_weights, prepare
from ._tensor import CPU
from .specs import Matrices, MoeWeights, Spec, SpecLike, as_matrices, count, dtype_number, format_info, read_spec, view_weights

_FLOATS = ("float32", "bfloat16")


def explain(spec: SpecLike) -> str:
    """Each backend's answer to a spec, one line each, and which one is chosen."""
    return _library.read_text("sluice_moe_explain", _library.text("spec", read_spec(spec).line))


def prepared_bytes(spec: SpecLike, device: Any = "cuda") -> int:
    """Bytes of a layer's prepared weights, for FusedMoE(memory=...): on a GPU ("cuda"; needs none), or on the "cpu".

    Raises Unsupported when no backend of that device runs the spec, or the library was built without CUDA.
    """
    out = ctypes.c_int64()
    name = "sluice_moe_prepared_bytes" if _device.read_device(device) == CPU else "sluice_cuda_moe_prepared_bytes"
    _library.call(name, _library.text("spec", read_spec(spec).line), out)
    return out.value


class FusedMoE:
    """A layer of experts, ready to run.

    spec: a spec line, or a mapping of its keys: "experts=8 top_k=2 hidden=64 inter=48 weights=nvfp4 act=swiglu".
    weights: in the spec's format; copied, so the tensors may be freed or changed afterwards: on a GPU in the stream's order,
        which torch's allocator keeps by itself on its current stream.
    backend: "auto", or a name that explain() prints. On the cpu only: it may run on a GPU and copy each call's tensors.
    device: "cpu", "cuda", "cuda:N": where a call's tensors lie. Default: where weights.up lies.
    memory: uint8 of prepared_bytes(spec, device) at least on that device, aligned to 256 bytes (on the cpu 64): the
        weights live there, at addresses that a refit keeps. It is this layer's alone: another one that is made in it, and
        whatever else writes it, changes these weights. Default: the library allocates.
    threads: of the host's thread pool; 0: every usable core.
    stream: on a GPU, in whose order the weights are written; see __call__.

    Raises InvalidArgument, Unsupported with each backend's reason, OutOfMemory, ValueError and TypeError with the name of
    the tensor, what it is and what is accepted.
    """

    def __init__(self, spec: SpecLike, weights: MoeWeights, *, backend: str = "auto", device: Any = None,
                 memory: Any = None, threads: int = 0, stream: Any = None) -> None:
        self.spec: Spec = read_spec(spec)
        self.device = _device.read_device(device) if device is not None else _device_of(weights)
        accepted = ("auto", "cpu" if self.device == CPU else "sm90")
        if (memory is not None or self.device != CPU) and backend not in accepted:
            where = "with memory on the cpu" if self.device == CPU else f"on {_tensor.device_name(self.device)}"
            raise ValueError(f"backend is {backend!r} {where}; accepted: {', '.join(accepted)}")
        w, keep = view_weights(self.spec, weights, self.device)
        self._handle, self._memory = prepare("layer", "moe", self.device, memory, threads, stream,
                                             _library.text("spec", self.spec.line), w, read=keep,
                                             backend=_library.text("backend", backend))
        del keep  # the structs' pointers were used

    def refit(self, weights: MoeWeights, *, stream: Any = None) -> None:
        """Other weights of the same spec into the same memory; on a GPU in the stream's order, which CUDA graphs that
        were captured before see. Not while a call is under way on the cpu."""
        on = _device.read_stream(stream, self.device)
        w, keep = view_weights(self.spec, weights, self.device)
        check_weights(self._memory, keep)
        if self.device == CPU:
            _library.call("sluice_moe_refit", self._handle.get(), w)
        else:
            _library.call("sluice_cuda_moe_refit", self._handle.get(), w, on)
        del keep  # the structs' pointers were used

    def explain(self) -> str:
        """Each backend's answer to the layer's spec."""
        return explain(self.spec)

    def workspace_size(self, tokens: int) -> int:
        """Bytes of workspace that a call of up to `tokens` tokens needs."""
        tokens = count("tokens", tokens)
        out = ctypes.c_int64()
        name = "sluice_moe_workspace_bytes" if self.device == CPU else "sluice_cuda_moe_workspace_bytes"
        _library.call(name, self._handle.get(), tokens, out)
        return out.value

    def close(self) -> None:
        """Frees the layer now. Calls on a GPU must have passed."""
        self._handle.close()
        self._memory = None

    def __call__(self, hidden: Any, logits: Any = None, *, bias: Any = None, topk_ids: Any = None,
                 topk_weights: Any = None, out: Any = None, workspace: Any = None, chosen_ids: Any = None,
                 chosen_weights: Any = None, num_tokens: Any = None, stream: Any = None) -> Any:
        """The layer's output [T, H] in the spec's dtype ([T, K, H] with finalize=0): `out`, or a new tensor.

        hidden: [T, H] in the spec's dtype. Every tensor is contiguous and on the layer's device; bfloat16 may come as its
            bits, in uint16.
        logits: [T, E] float32 or bfloat16: the call routes. bias: [E] float32 or bfloat16, for routings that take one.
        topk_ids, topk_weights: instead, with routed=1 in the spec: int32 [T, K] global ids (-1 and other ranks' ids
            contribute nothing) and float32 or bfloat16 [T, K]; without weights, packed ids (id << 16 | bfloat16 weight).
        out: where the output is written. workspace: uint8 of workspace_size(T) bytes, aligned to 64 bytes (on a GPU 256);
            default: the call allocates, on a GPU through torch, where a CUDA graph's pool keeps it.
        chosen_ids, chosen_weights: int32 and float32 [T, K] that receive what the routing decided.
        num_tokens: on a GPU, int32 [1]: how many of the T rows are real, read when the call runs.
        stream: on a GPU, a torch or CuPy stream or a cudaStream_t; default: torch's current stream, else the default
            stream. The call is enqueued and nothing is waited for.
        """
        spec, device = self.spec, self.device
        on = _device.read_stream(stream, device)
        align = 0 if device == CPU else 16

        def read(tensor: Any, name: str, kinds: Any, shape: Any, write: bool = False, align: int = align) -> Any:
            return _tensor.read(tensor, name, kinds, shape, device=device, write=write, align=align, stream=on)

        x = read(hidden, "hidden", spec.dtype, (None, spec.hidden))
        tokens = x.shape[0]
        args = _c_api.MoeArgs(tokens=tokens, hidden=x.pointer)
        inputs = [("hidden", x), ("the prepared weights", self._memory),
                  *_read_routing(spec, args, read, logits, bias, topk_ids, topk_weights)]
        shape = (tokens, spec.hidden) if spec.finalize else (tokens, spec.top_k, spec.hidden)
        if out is None:
            out = _tensor.empty(spec.dtype, shape, hidden, None if stream is None else on)
        written: list[tuple[str, Any]] = [("out", read(out, "out", spec.dtype, shape, True))]
        args.output = written[0][1].pointer
        if chosen_ids is not None:
            written.append(("chosen_ids", read(chosen_ids, "chosen_ids", "int32", (tokens, spec.top_k), True, 0)))
            args.chosen_ids = written[-1][1].pointer
        if chosen_weights is not None:
            written.append(("chosen_weights",
                            read(chosen_weights, "chosen_weights", "float32", (tokens, spec.top_k), True, 0)))
            args.chosen_weights = written[-1][1].pointer
        if workspace is None and device != CPU:
            workspace = _device_workspace(self.workspace_size(tokens), hidden, None if stream is None else on)
        if workspace is not None:
            space = read(workspace, "workspace", "uint8", (None,), True, 64 if device == CPU else 256)
            args.workspace, args.workspace_size = space.pointer, space.bytes
            written.append(("workspace", space))
        _tensor.check_apart(written, inputs)
        if device == CPU:
            if num_tokens is not None:
                raise ValueError("num_tokens is given on the cpu; accepted: tensors of as many rows as there are tokens")
            _library.call("sluice_moe_run", self._handle.get(), args)
            return out
        queue = _c_api.CudaQueue(stream=on)
        if num_tokens is not None:
            queue.num_tokens = read(num_tokens, "num_tokens", "int32", (1,), align=0).pointer
        _library.call("sluice_cuda_moe_run", self._handle.get(), args, queue)
        return out


def _read_routing(spec: Spec, args: _c_api.MoeArgs, read: Callable[..., Any], logits: Any, bias: Any, topk_ids: Any,
                  topk_weights: Any) -> list[tuple[str, Any]]:
    """What decides on the experts: with routed=1 in the spec the caller's choice, else logits. Fills in args."""
    inputs: list[tuple[str, Any]] = []

    def take(name: str, tensor: Any, kinds: Any, shape: Any) -> None:
        view = read(tensor, name, kinds, shape, align=0)
        setattr(args, name, view.pointer)
        if kinds == _FLOATS:
            setattr(args, f"{name}_dtype", _number(view))
        inputs.append((name, view))

    chosen = (args.tokens, spec.top_k)
    if spec.routed:
        if logits is not None or bias is not None:
            raise ValueError("logits or bias are given; the spec says routed=1, so give topk_ids and topk_weights")
        if topk_ids is None:
            raise ValueError(f"topk_ids is None; the spec says routed=1 and needs int32 {list(chosen)}")
        take("topk_ids", topk_ids, "int32", chosen)
        if topk_weights is not None:
            take("topk_weights", topk_weights, _FLOATS, chosen)
        return inputs
    if topk_ids is not None or topk_weights is not None:
        raise ValueError("topk_ids or topk_weights are given; the spec does not say routed=1, so give logits")
    if logits is None:
        raise ValueError(f"logits is None; accepted: float32 or bfloat16 {[args.tokens, spec.experts]}")
    take("logits", logits, _FLOATS, (args.tokens, spec.experts))
    if bias is not None:
        take("bias", bias, _FLOATS, (spec.experts,))
    return inputs


def _number(v: _tensor.View) -> int:
    return dtype_number("float32" if v.dtype == "float32" else "bfloat16")


def _device_of(weights: Any) -> tuple[str, int]:
    if not isinstance(weights, MoeWeights):
        raise TypeError(f"weights is {type(weights).__name__}; accepted: sluice_moe.MoeWeights")
    codes = as_matrices("weights.up", weights.up).codes
    if codes is None:
        raise ValueError("weights.up is None; accepted: Matrices")
    return _tensor.view(codes, "weights.up").device


def _device_workspace(size: int, like: Any, stream: int | None) -> Any:
    if not _tensor.is_torch(like):
        raise ValueError(f"workspace is None; on a GPU without torch tensors give uint8 of {size} bytes")
    return _tensor.empty("uint8", (size,), like, stream)


def shard(spec: SpecLike, weights: MoeWeights, *, tp_rank: int = 0, tp_size: int = 1, ep_rank: int = 0,
          ep_size: int = 1) -> tuple[str, MoeWeights]:
    """One rank's spec line and weights (host memory, numpy arrays over a copy; bfloat16 and float8 as their bits).

    Tensor parallelism cuts I at whole scale groups, expert parallelism the list of experts; the sum of all ranks' outputs
    is the layer's. Input scales stay those of all experts, and bias_down is the first tensor-parallel rank's.
    Raises InvalidArgument for a rank that would get nothing.
    """
    import numpy
    whole = read_spec(spec)
    w, keep = view_weights(whole, weights, CPU)
    parts = {name: count(name, value, 0 if name.endswith("rank") else 1, 2**31 - 1)
             for name, value in (("tp_rank", tp_rank), ("tp_size", tp_size), ("ep_rank", ep_rank), ("ep_size", ep_size))}
    handle = _library.Handle(
        "shard", lambda out: _library.call("sluice_moe_shard_create", _library.text("spec", whole.line), w,
                                           _c_api.Shard(**parts), out), "sluice_moe_shard_destroy")
    del keep
    line = _library.read_text("sluice_moe_shard_spec", handle.get())
    own = read_spec(line)
    out = _c_api.MoeWeights()
    _library.call("sluice_moe_shard_weights", handle.get(), out)
    format = format_info(own.weights)

    def array(pointer: int | None, kind: str, shape: tuple[int, ...]) -> Any:
        if not pointer:
            return None
        bits = "uint8" if kind == "uint8" else _tensor.ACCEPTED[kind][-1]
        return numpy.asarray(_Memory(handle, pointer, numpy.dtype(bits), shape))

    def matrices(m: _c_api.Matrices, rows: int, cols: int) -> Any:
        if not m.codes:
            return None
        shapes = format.shapes(own.local_experts, rows, cols)
        return Matrices(array(m.codes, format.code_type, shapes["codes"]),
                        array(m.scales, format.scale_type or "uint8", shapes.get("scales", ())),
                        array(m.global_scales, "float32", shapes.get("global_scales", ())))

    experts, hidden, inter = own.local_experts, own.hidden, own.inter
    small = {"bias_up": (inter,), "bias_gate": (inter,), "bias_down": (hidden,), "alpha": (), "beta": (), "limit": ()}
    return line, MoeWeights(
        up=matrices(out.up, inter, hidden), gate=matrices(out.gate, inter, hidden), down=matrices(out.down, hidden, inter),
        input_scale1=out.input_scale1, input_scale2=out.input_scale2,
        **{name: array(getattr(out, name), "float32", (experts, *shape)) for name, shape in small.items()})


class _Memory:
    """A piece of an object's memory as numpy takes it; the array keeps this, and this the object."""

    def __init__(self, handle: _library.Handle, pointer: int, dtype: Any, shape: tuple[int, ...]) -> None:
        self._handle = handle
        self.__array_interface__ = {"version": 3, "typestr": dtype.str, "shape": shape, "data": (pointer, False)}
