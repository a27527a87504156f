# SPDX-License-Identifier: Apache-2.0
"""Other libraries' tensors as addresses: torch's own attributes, __array_interface__, __dlpack__, the buffer protocol.

Nothing is copied and nothing is imported: a tensor's type says where it comes from.
"""
from __future__ import annotations

import ctypes
import sys
from typing import Any, Sequence

CPU = ("cpu", 0)

# Names of dtypes are numpy's and ml_dtypes', which torch shares but for "torch." in front.
SIZES = {
    "bfloat16": 2, "float16": 2, "float32": 4, "float64": 8, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1,
    "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1, "float8_e4m3fn": 1, "float8_e8m0fnu": 1, "float8_e5m2": 1,
    "float4_e2m1fn_x2": 1,
}

# The dtypes that are accepted for each type of the library: types that numpy lacks may come as their bits, too.
ACCEPTED = {
    "bfloat16": ("bfloat16", "uint16"),
    "float16": ("float16",),
    "float32": ("float32",),
    "float8_e4m3fn": ("float8_e4m3fn", "uint8"),
    "float8_e8m0fnu": ("float8_e8m0fnu", "uint8"),
    "uint8": ("uint8", "float4_e2m1fn_x2"),
    "int32": ("int32",),
}


class View:
    """The memory of somebody's tensor; `keep` holds it while this lives. strides in elements."""

    __slots__ = ("pointer", "dtype", "shape", "strides", "device", "readonly", "keep")

    def __init__(self, pointer: int, dtype: str, shape: Sequence[int], strides: Sequence[int] | None,
                 device: tuple[str, int], readonly: bool, keep: Any) -> None:
        self.pointer, self.dtype, self.device, self.readonly, self.keep = pointer, dtype, device, readonly, keep
        self.shape = tuple(shape)
        self.strides = tuple(strides) if strides is not None else contiguous(self.shape)

    @property
    def elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def bytes(self) -> int:
        return self.elements * SIZES[self.dtype]


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def device_name(device: tuple[str, int]) -> str:
    return "cpu" if device[0] == "cpu" else f"{device[0]}:{device[1]}"


def is_torch(obj: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, getattr(torch, "Tensor", ()))


def _from_torch(obj: Any, name: str) -> View:
    if obj.layout is not sys.modules["torch"].strided:
        raise ValueError(f"{name} is a torch tensor of layout {obj.layout}; accepted: torch.strided")
    if obj.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name} is on {obj.device}; accepted: cpu, cuda")
    if obj.is_neg():
        raise ValueError(f"{name} is a torch tensor with the negative bit, whose memory has the other signs; accepted: its "
                         "resolve_neg()")
    return View(obj.data_ptr(), str(obj.dtype).removeprefix("torch."), obj.shape, obj.stride(),
                (obj.device.type, obj.device.index or 0), False, obj)


_KINDS = {"f": "float", "i": "int", "u": "uint", "b": "bool"}


def _from_array_interface(obj: Any, name: str) -> View:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(obj, numpy.generic):
        obj = numpy.asarray(obj)  # a scalar's interface describes an array that is gone when it is read
    interface = obj.__array_interface__
    try:
        typestr, shape, data = interface["typestr"], interface["shape"], interface["data"]
        strides = interface.get("strides")
        order, kind, size = typestr[0], typestr[1], int(typestr[2:])
        pointer, readonly = int(data[0]), bool(data[1])
        shape = tuple(int(s) for s in shape)
        strides = None if strides is None else tuple(int(s) for s in strides)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as problem:
        raise TypeError(f"{name} has an __array_interface__ that cannot be read: {problem!r}") from None
    if order == ">" and size > 1:
        raise TypeError(f"{name} has byte order big-endian; accepted: little-endian")
    if kind == "V":  # ml_dtypes' types are void to numpy's interface
        dtype = str(getattr(getattr(obj, "dtype", None), "name", typestr))
    else:
        dtype = "bool" if kind == "b" else f"{_KINDS.get(kind, kind)}{8 * size}"
    if strides is not None:
        if any(s % size for s in strides):
            raise ValueError(f"{name} has strides {strides} in bytes, which are no multiples of its elements' {size}")
        strides = tuple(s // size for s in strides)
    return View(pointer, dtype, shape, strides, CPU, readonly, obj)


# --- DLPack, by the layout of its header (dlpack.h, version 1): the capsule stays the producer's, and is kept.


class _DLDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device", _DLDevice), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor),
    ]


_DL_DEVICES = {1: "cpu", 2: "cuda", 3: "cpu", 13: "cuda"}  # 3: pinned host memory, 13: managed
_DL_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}
_DL_SMALL = {10: "float8_e4m3fn", 12: "float8_e5m2", 14: "float8_e8m0fnu"}
_python = ctypes.pythonapi
_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", _python))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _python))


def _from_dlpack(obj: Any, name: str, stream: int | None) -> View:
    kind, index = (int(x) for x in obj.__dlpack_device__())
    if kind not in _DL_DEVICES:
        raise ValueError(f"{name} is on DLPack's device type {kind}; accepted: 1 (cpu), 2 (cuda), 3 and 13")
    given = {} if _DL_DEVICES[kind] == "cpu" or stream is None else {"stream": stream or 1}
    try:
        try:
            capsule = obj.__dlpack__(max_version=(1, 1), **given)
        except TypeError:  # a producer from before version 1
            capsule = obj.__dlpack__(**given)
    except (BufferError, RuntimeError) as problem:
        raise ValueError(f"{name} cannot be taken by DLPack: {problem}") from problem
    readonly = False
    if _valid(capsule, b"dltensor_versioned"):
        managed = ctypes.cast(_pointer(capsule, b"dltensor_versioned"), ctypes.POINTER(_DLManagedTensorVersioned))[0]
        if managed.major != 1:
            raise ValueError(f"{name} comes as DLPack {managed.major}.{managed.minor}; accepted: 0.x and 1.x")
        tensor, readonly = managed.tensor, bool(managed.flags & 1)
    elif _valid(capsule, b"dltensor"):
        tensor = ctypes.cast(_pointer(capsule, b"dltensor"), ctypes.POINTER(_DLTensor))[0]
    else:
        raise TypeError(f"{name}.__dlpack__() gave {capsule!r}; accepted: a capsule that nobody has used yet")
    if tensor.lanes != 1:
        raise TypeError(f"{name} has elements of {tensor.lanes} lanes; accepted: 1")
    if tensor.code in _DL_SMALL:
        dtype = _DL_SMALL[tensor.code]
    else:
        base = _DL_CODES.get(tensor.code, f"dlpack{tensor.code}_")
        dtype = base if base == "bool" else f"{base}{tensor.bits}"
    shape = tensor.shape[:tensor.ndim] if tensor.ndim else []
    strides = tensor.strides[:tensor.ndim] if tensor.ndim and tensor.strides else None
    return View((tensor.data or 0) + tensor.byte_offset, dtype, shape, strides, (_DL_DEVICES[kind], index),
                readonly, (capsule, obj))


# --- The buffer protocol: bytes, bytearray, array.array, memoryview, ctypes arrays, mmap.

_FORMATS = {
    "f": "float32", "d": "float64", "e": "float16", "b": "int8", "B": "uint8", "c": "uint8", "h": "int16",
    "H": "uint16", "i": "int32", "I": "uint32", "l": "int64", "L": "uint64", "q": "int64", "Q": "uint64", "?": "bool",
}


class _Buffer(ctypes.Structure):  # Py_buffer, part of the stable ABI
    _fields_ = [
        ("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)), ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)), ("internal", ctypes.c_void_p),
    ]


def _from_buffer(obj: Any, name: str) -> View:
    try:
        view = memoryview(obj)
    except TypeError:
        raise TypeError(
            f"{name} is {type(obj).__name__}; accepted: a tensor with __dlpack__ or __array_interface__, or a "
            "buffer") from None
    except (ValueError, BufferError) as problem:
        raise ValueError(f"{name} has no memory any more: {problem}") from None
    dtype = _FORMATS.get(view.format.lstrip("@=<"), view.format)
    if view.itemsize and any(s % view.itemsize for s in view.strides or ()):
        raise ValueError(f"{name} has strides {view.strides} in bytes, no multiples of its elements' {view.itemsize}")
    raw = _Buffer()
    # PyBUF_FULL_RO: whatever the exporter has; the memoryview keeps it exported, so this look may be released at once.
    _python.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(raw), 0x11C)
    pointer = raw.buf or 0
    _python.PyBuffer_Release(ctypes.byref(raw))
    strides = [s // view.itemsize for s in view.strides or ()] if view.itemsize else None
    return View(pointer, dtype, view.shape or (), strides, CPU, view.readonly, view)


def view(obj: Any, name: str, stream: int | None = None) -> View:
    """`obj` as memory. Raises TypeError for what is no tensor, ValueError for one that cannot be read here."""
    if is_torch(obj):
        return _from_torch(obj, name)
    if isinstance(obj, type):
        raise TypeError(f"{name} is the type {obj.__name__}; accepted: a tensor")
    if hasattr(obj, "__array_interface__"):
        return _from_array_interface(obj, name)
    if hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__"):
        return _from_dlpack(obj, name, stream)
    return _from_buffer(obj, name)


def _sizes(shape: Sequence[int | None]) -> str:
    return "[" + ", ".join("any" if s is None else str(s) for s in shape) + "]"


def read(obj: Any, name: str, kinds: str | Sequence[str], shape: Sequence[int | None] | None = None, *,
         device: tuple[str, int] | None = CPU, write: bool = False, align: int = 0, stream: int | None = None) -> View:
    """A contiguous tensor of one of the library's types `kinds`, of `shape` (None: any size), on `device` (None: any).

    write: the library writes it. align: bytes that the address must be a multiple of, beside its element's size.
    Raises TypeError and ValueError with the name, what was given and what is accepted.
    """
    v = obj if isinstance(obj, View) else view(obj, name, stream)
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    accepted = [dtype for kind in kinds for dtype in ACCEPTED[kind]]
    if v.dtype not in accepted:
        raise TypeError(f"{name} is {v.dtype}; accepted: {', '.join(accepted)}")
    if shape is not None and (len(v.shape) != len(shape) or
                              any(s is not None and s != g for s, g in zip(shape, v.shape))):
        raise ValueError(f"{name} has shape {_sizes(v.shape)}; accepted: {_sizes(shape)}")
    if any(s < 0 for s in v.shape):
        raise ValueError(f"{name} has shape {_sizes(v.shape)}; no size may be negative")
    if device is not None and v.device != device:
        raise ValueError(f"{name} is on {device_name(v.device)}; accepted: {device_name(device)}")
    if write and v.readonly:
        raise ValueError(f"{name} is read-only; the result is written to it")
    check_layout(v, name, max(align, SIZES[v.dtype]))
    return v


def check_layout(v: View, name: str, align: int) -> None:
    """Raises ValueError unless the tensor is contiguous and there, at a multiple of `align` bytes."""
    if v.elements == 0:
        return
    for size, given, wanted in zip(v.shape, v.strides, contiguous(v.shape)):
        if size != 1 and given != wanted:
            raise ValueError(f"{name} has strides {list(v.strides)} in elements; accepted: {list(contiguous(v.shape))}, "
                             f"contiguous {_sizes(v.shape)}")
    if v.pointer == 0:
        raise ValueError(f"{name} has shape {_sizes(v.shape)}, but its address is null: its memory was freed")
    if v.pointer % align:
        raise ValueError(f"{name} begins at address {v.pointer:#x}; accepted: multiples of {align} ({align}B-aligned)")


def check_apart(written: Sequence[tuple[str, View | None]], others: Sequence[tuple[str, View | None]]) -> None:
    """Raises ValueError when something that is written shares memory with anything else."""
    taken = [(name, v.pointer, v.pointer + v.bytes) for name, v in others if v is not None and v.elements]
    for name, v in written:
        if v is None or not v.elements:
            continue
        begin, end = v.pointer, v.pointer + v.bytes
        for other, from_, to in taken:
            if begin < to and from_ < end:
                raise ValueError(f"{name} and {other} share memory; accepted: a tensor of its own")
        taken.append((name, begin, end))


def empty(kind: str, shape: Sequence[int], like: Any, stream: int | None = None) -> Any:
    """A new tensor of the library's type `kind`, of the same library and on the same device as `like`.

    stream: the cudaStream_t that will use it; None: torch's current one. torch's allocator gives freed memory to the next
    tensor of the stream that it was asked on, while another stream's kernels may still use it.

    Without a torch tensor it is numpy's; bfloat16 and float8 are then ml_dtypes' if `like` is, else their bits as
    uint16 and uint8.
    """
    if is_torch(like):
        torch = sys.modules["torch"]
        dtype = getattr(torch, kind, torch.uint8)
        if stream is None or like.device.type != "cuda" or stream == torch.cuda.current_stream(like.device).cuda_stream:
            return torch.empty(tuple(shape), dtype=dtype, device=like.device)
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=like.device) if stream != 0 else
                               torch.cuda.default_stream(like.device)):
            return torch.empty(tuple(shape), dtype=dtype, device=like.device)
    import numpy
    own = getattr(like, "dtype", None)
    if kind in ("bfloat16", "float8_e4m3fn", "float8_e8m0fnu"):
        name = str(getattr(own, "name", ""))
        if name == kind and isinstance(own, numpy.dtype):
            return numpy.empty(tuple(shape), own)
        if name in ("bfloat16", "float8_e4m3fn", "float8_e8m0fnu") and "ml_dtypes" in sys.modules:
            return numpy.empty(tuple(shape), getattr(sys.modules["ml_dtypes"], kind))
        return numpy.empty(tuple(shape), ACCEPTED[kind][-1])
    return numpy.empty(tuple(shape), kind)
