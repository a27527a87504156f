#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that `sluice quantize` wrote, loaded by transformers: every weight must be what Sluice reads from them.

usage: check_quantized.py PROGRAM MODEL

Needs torch, transformers 5, accelerate and compressed-tensors. MODEL is a BF16 checkpoint of a few MB. ModelOpt's formats are not
among them: transformers has no loader for those.
"""
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file

# Formats with the largest relative difference. transformers rounds the float scales of compressed-tensors to the type of
# the model: that rounding, and the products' here and there, are 2^-8 each in BF16. Everything else is equal.
FORMATS = {"fp8": 3 * 2**-8, "fp8_channel": 3 * 2**-8, "fp8_block": 0, "mxfp8": 0, "mxfp4": 0}


def loaded(folder):
    """{name in the checkpoint: weight}; stacks of experts split into experts again."""
    config = transformers.AutoConfig.from_pretrained(folder).quantization_config
    extra = {}
    if config["quant_method"] == "compressed-tensors":
        extra["quantization_config"] = transformers.CompressedTensorsConfig(dequantize=True)
    state = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **extra).state_dict()
    weights = {}
    for name, value in state.items():
        base, _, projection = name.partition(".experts.")
        if projection not in ("gate_up_proj", "up_proj", "down_proj"):
            weights[name] = value
            continue
        for expert, matrix in enumerate(value):
            halves = zip(("gate_proj", "up_proj"), matrix.chunk(2)) if projection == "gate_up_proj" else [(projection, matrix)]
            for part, rows in halves:
                weights[f"{base}.experts.{expert}.{part}.weight"] = rows
    return weights


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    program, model = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    failed = False
    for name, allowed in FORMATS.items():
        with tempfile.TemporaryDirectory() as scratch:
            quantised, back = f"{scratch}/quantised", f"{scratch}/bf16"
            for arguments in ((model, quantised, "--format", name), (quantised, back, "--format", "bf16")):
                subprocess.run([program, "quantize", *arguments], check=True, capture_output=True)
            theirs, count, worst = loaded(quantised), 0, 0.0
            for path in pathlib.Path(back).glob("*.safetensors"):
                for key, ours in load_file(path).items():
                    ours, other = ours.float(), theirs[key].float()
                    worst = max(worst, ((ours - other).abs() / ours.abs().clamp(min=1e-30)).max().item())
                    count += 1
            print(f"{name}: {count} tensors, largest relative difference {worst:.2e} (allowed {allowed:.2e})")
            failed |= not worst <= allowed or count == 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
