#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Qwen3-MoE checkpoint of random BF16 weights as published ones are stored, expert by expert in several files: for timing how
fast it loads.

    bench/random_checkpoint.py DIR [LAYERS]      # Qwen3-30B-A3B's widths; 12 layers are 16.2 GB
"""
import json
import os
import pathlib
import random
import struct
import sys

import model_table

SHARD = 4 << 30


def tensors(c):
    """(name, shape) in the order of the layers."""
    h, d, inter = c["hidden_size"], c["head_dim"], c["moe_intermediate_size"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    yield "model.embed_tokens.weight", (c["vocab_size"], h)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name, shape in (("q_proj", (q, h)), ("k_proj", (kv, h)), ("v_proj", (kv, h)), ("o_proj", (h, q))):
            yield f"{p}self_attn.{name}.weight", shape
        for name, n in (("self_attn.q_norm", d), ("self_attn.k_norm", d), ("input_layernorm", h),
                        ("post_attention_layernorm", h)):
            yield f"{p}{name}.weight", (n,)
        yield f"{p}mlp.gate.weight", (c["num_experts"], h)
        for e in range(c["num_experts"]):
            yield f"{p}mlp.experts.{e}.gate_proj.weight", (inter, h)
            yield f"{p}mlp.experts.{e}.up_proj.weight", (inter, h)
            yield f"{p}mlp.experts.{e}.down_proj.weight", (h, inter)
    yield "model.norm.weight", (h,)
    yield "lm_head.weight", (c["vocab_size"], h)


def size_of(shape):
    size = 2
    for n in shape:
        size *= n
    return size


def shards(c):
    """Lists of tensors of at most SHARD bytes."""
    part, size = [], 0
    for name, shape in tensors(c):
        if part and size + size_of(shape) > SHARD:
            yield part
            part, size = [], 0
        part.append((name, shape))
        size += size_of(shape)
    yield part


def noise(size):
    """BF16 values from -0.03 to 0.03, the same every time."""
    block = bytearray(random.Random(1).randbytes(size))
    block[1::2] = bytes(0x3c | b & 0x80 for b in block[1::2])
    return bytes(block)


def write(path, part, block):
    header, at = {}, 0
    for name, shape in part:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size_of(shape)]}
        at += size_of(shape)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        while at > 0:
            at -= file.write(block[:at])


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    config = {**model_table.QWEN3, "num_hidden_layers": int(sys.argv[2]) if len(sys.argv) == 3 else 12}
    (folder / "config.json").write_text(json.dumps(config))
    parts, block = list(shards(config)), noise(16 << 20)
    index = {}
    for i, part in enumerate(parts):
        name = f"model-{i + 1:05}-of-{len(parts):05}.safetensors"
        write(folder / name, part, block)
        index.update({tensor: name for tensor, _ in part})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    os.sync()


if __name__ == "__main__":
    main()
