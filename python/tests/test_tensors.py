# SPDX-License-Identifier: Apache-2.0
"""Tensors of other libraries: numpy, ml_dtypes, buffers and DLPack producers, and what is wrong with some of them."""
import array
import ctypes
import gc
import mmap
import weakref

import numpy as np
import pytest

import sluice_moe
from sluice_moe import _tensor

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


class Dlpack:
    """A producer of either version over a numpy array, with every field to be spoilt."""

    def __init__(self, values=VALUES, versioned=True, device=(1, 0), code=2, bits=32, lanes=1, strides=True, major=1,
                 flags=0, offset=0, used=False):
        self.values, self.device, self.versioned = values, device, versioned
        shape = (ctypes.c_int64 * values.ndim)(*values.shape)
        steps = (ctypes.c_int64 * values.ndim)(*(s // values.itemsize for s in values.strides))
        tensor = _tensor._DLTensor(values.ctypes.data - offset, _tensor._DLDevice(*device), values.ndim, code, bits, lanes,
                                   shape, steps if strides else None, offset)
        if versioned:
            self.managed = _tensor._DLManagedTensorVersioned(major, 0, None, None, flags, tensor)
        else:
            self.managed = tensor  # DLManagedTensor begins with its tensor
        self.name = (b"used_" if used else b"") + (b"dltensor_versioned" if versioned else b"dltensor")
        self.keep = shape, steps

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **arguments):
        if not self.versioned and arguments:
            raise TypeError("max_version is unknown to me")
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self.managed), self.name, None)


def same(tensor):
    view = _tensor.read(tensor, "x", "float32", (3, 4))
    return bytes(ctypes.string_at(view.pointer, view.bytes)) == VALUES.tobytes()


@pytest.mark.parametrize("tensor", [
    VALUES, Dlpack(), Dlpack(versioned=False), Dlpack(strides=False), Dlpack(offset=64), Dlpack(device=(3, 0)),
    memoryview(VALUES), memoryview(VALUES.tobytes()).cast("B").cast("f", (3, 4)),
    memoryview(array.array("f", VALUES.reshape(-1))).cast("B").cast("f", (3, 4)),
    (ctypes.c_float * 4 * 3)(*(tuple(row) for row in VALUES.tolist())),
], ids=lambda t: type(t).__name__)
def test_the_same_numbers_from_everywhere(tensor):
    assert same(tensor)


def test_a_view_keeps_its_memory():
    values = VALUES.copy()
    watch = weakref.ref(values)
    view = _tensor.view(Dlpack(values), "x")
    del values
    gc.collect()
    assert watch() is not None and view.pointer
    del view
    gc.collect()
    assert watch() is None
    # An exporter cannot change its size while it is looked at.
    data = bytearray(48)
    view = _tensor.view(data, "x")
    with pytest.raises(BufferError):
        data.append(1)
    del view
    data.append(1)


@pytest.mark.parametrize("tensor, kind, sentence", [
    (Dlpack(device=(2, 3)), ValueError, "x is on cuda:3; accepted: cpu"),
    (Dlpack(device=(7, 0)), ValueError, "x is on DLPack's device type 7"),
    (Dlpack(major=2), ValueError, "x comes as DLPack 2.0"),
    (Dlpack(lanes=4), TypeError, "x has elements of 4 lanes"),
    (Dlpack(code=5, bits=64), TypeError, "x is dlpack5_64; accepted: float32"),
    (Dlpack(code=4, bits=16), TypeError, "x is bfloat16; accepted: float32"),
    (Dlpack(used=True), TypeError, "accepted: a capsule that nobody has used yet"),
    (Dlpack(values=VALUES.T), ValueError, r"x has shape \[4, 3\]"),
    (VALUES.tobytes(), TypeError, "x is uint8; accepted: float32"),
    (3.5, TypeError, "x is float; accepted: a tensor"),
    ("text", TypeError, "x is str; accepted: a tensor"),
    ([[1.0]], TypeError, "x is list; accepted: a tensor"),
    (object(), TypeError, "x is object; accepted: a tensor"),
    (np.float32, TypeError, "x is the type float32"),
    (VALUES.astype(np.complex64), TypeError, "x is c64; accepted: float32"),
    (VALUES[:, ::-1], ValueError, r"x has strides \[4, -1\] in elements"),
    (np.broadcast_to(np.float32(1), (3, 4)), ValueError, r"x has strides \[0, 0\] in elements"),
    (np.zeros((3, 4), [("a", "f4")]), TypeError, "x is void32; accepted: float32"),
])
def test_refused(tensor, kind, sentence):
    with pytest.raises(kind, match=sentence):
        _tensor.read(tensor, "x", "float32", (3, 4))


def test_freed_memory():
    view = memoryview(bytearray(48)).cast("f", (3, 4))
    view.release()
    with pytest.raises(ValueError, match="x has no memory any more"):
        _tensor.read(view, "x", "float32", (3, 4))
    closed = mmap.mmap(-1, 48)
    closed.close()
    with pytest.raises(ValueError, match="x has no memory any more"):
        _tensor.read(closed, "x", "uint8", (48,))
    freed = Dlpack()  # as torch's storage after resize_(0)
    freed.managed.tensor.data = None
    with pytest.raises(ValueError, match="its address is null: its memory was freed"):
        _tensor.read(freed, "x", "float32", (3, 4))


def test_a_lying_interface():
    class Liar:
        __array_interface__ = {"shape": (3, 4), "data": None, "typestr": "<f4", "version": 3}
    with pytest.raises(TypeError, match="x has an __array_interface__ that cannot be read"):
        _tensor.view(Liar(), "x")


def test_scalars_have_memory_of_their_own():
    # A numpy scalar's interface names memory that is gone once it is read.
    views = [_tensor.view(np.float32(i), "x") for i in range(100)]
    assert [ctypes.c_float.from_address(v.pointer).value for v in views] == list(range(100))


def test_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    x = VALUES.astype(ml_dtypes.bfloat16)
    q = sluice_moe.quantize(x, "mxfp8")
    assert q.codes.dtype == ml_dtypes.float8_e4m3fn and q.scales.dtype == ml_dtypes.float8_e8m0fnu
    bits = sluice_moe.quantize(x.view(np.uint16), "mxfp8")
    assert bits.codes.dtype == np.uint8
    assert (q.codes.view(np.uint8) == bits.codes).all() and (q.scales.view(np.uint8) == bits.scales).all()
    assert (sluice_moe.dequantize(q) == sluice_moe.dequantize(bits)).all()
    # ml_dtypes' own rounding to e4m3 under that scale is the oracle here.
    assert (q.codes == (VALUES / q.scales.astype(np.float32)).astype(ml_dtypes.float8_e4m3fn)).all()


def test_overlaps_are_refused():
    memory = np.zeros(32, np.float32)
    a, b = memory[:16].reshape(2, 8), memory[8:24].reshape(2, 8)
    with pytest.raises(ValueError, match="out and x share memory"):
        sluice_moe.gemm(a, np.zeros((8, 8), np.uint16), "bf16", dtype="float32", out=b)
