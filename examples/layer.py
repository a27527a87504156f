# SPDX-License-Identifier: Apache-2.0
"""A layer of experts and a whole model in Python. usage: layer.py [checkpoint folder]"""
import sys

import numpy as np

import sluice_moe

SPEC = "experts=8 top_k=2 hidden=64 inter=96 weights=mxfp8 act=swiglu routing=renormalize dtype=float32"


def weights(rng, *shape):
    return sluice_moe.quantize_weights((rng.normal(size=shape) / 8).astype(np.float32), "mxfp8")


rng = np.random.default_rng(1)
moe = sluice_moe.FusedMoE(SPEC, sluice_moe.MoeWeights(
    up=weights(rng, 8, 96, 64), gate=weights(rng, 8, 96, 64), down=weights(rng, 8, 64, 96)))
hidden, logits = rng.normal(size=(5, 64)).astype(np.float32), rng.normal(size=(5, 8)).astype(np.float32)
print(moe.explain(), moe(hidden, logits)[0, :4], sep="")

if len(sys.argv) > 1:
    with sluice_moe.Engine(sys.argv[1]) as engine:
        for answer in engine.generate(["Once upon a time", "The house"], {"temperature": 0, "max_new_tokens": 16}):
            print(answer["text"])
