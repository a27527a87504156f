# SPDX-License-Identifier: Apache-2.0
"""What the tests of sluice_moe.flashinfer share: the devices that they run on, and layers of each format as FlashInfer's
users prepare them. A module takes the fixture `device` by importing it, and calls the functions of its own `fi`."""
import sys

import numpy as np
import pytest

import sluice_moe
import on_gpu
import sluice_moe.flashinfer as fi
from conftest import DEVICES
from reference import bf16, block_values, route_renormalize, to_bf16

E, K, H, I, T = 4, 2, 256, 128, 6
SWIGLU, RELU2 = 3, 6


@pytest.fixture(autouse=True, params=DEVICES)
def device(request, monkeypatch):
    if request.param == "cuda":
        for module in (request.module, sys.modules[__name__]):
            monkeypatch.setattr(module, "fi", on_gpu.flashinfer)
    return request.param


def joined(up, gate):
    return up if gate is None else np.concatenate([up, gate], 1)


def shuffled(w, gated, tile=128, reorder=True):
    """What FlashInfer's users do to a checkpoint's rows."""
    return np.stack([fi.shuffle_matrix_a(fi.reorder_rows_for_gated_act_gemm(m) if gated and reorder else m, tile) for m in w])


def interleaved(scales, gated):
    s = shuffled(scales, gated)
    return fi.block_scale_interleave(s).reshape(s.shape)


class Case:
    """Weights of a format, hidden states and a routing; `common` are arguments that every function has."""

    def __init__(self, rng, format, act, local=(0, E)):
        self.gated, self.local = act == SWIGLU, local
        begin, count = local
        quantised = [sluice_moe.quantize_weights(rng.normal(size=(E, *s)).astype(np.float32) / 8, format)
                     for s in ((I, H), (I, H), (H, I))]
        self.up, self.gate, self.down = quantised if self.gated else (quantised[0], None, quantised[2])
        self.values = [None if w is None else block_values(w, format) for w in (self.up, self.gate, self.down)]
        self.x = rng.normal(size=(T, H)).astype(np.float32)
        self.x[3] = 0
        self.logits = rng.normal(size=(T, E)).astype(np.float32)
        self.ids, self.weights = route_renormalize(self.logits, K)
        self.here = np.where((self.ids >= begin) & (self.ids < begin + count), self.ids, -1)
        half = to_bf16(self.weights)
        packed = (self.ids.astype(np.int32) << 16 | half.astype(np.int32)).astype(np.int32)
        self.routings = [packed, (self.ids.astype(np.int32), half)]
        self.common = (E, K, None, None, I, begin, count, None)

    def cut(self, w):
        return w[self.local[0]:sum(self.local)]

    def matrices(self, names, prepare):
        """codes or scales of both products, prepared, of the local experts."""
        parts = [None if w is None else getattr(w, names) for w in (self.up, self.gate, self.down)]
        first = prepare(self.cut(joined(*parts[:2])), self.gated)
        return first, prepare(self.cut(parts[2]), False)


def check(got, expected, bound):
    assert (np.abs(bf16(got) - expected) <= bound).all(), np.max(np.abs(bf16(got) - expected) / bound)
