#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a GGUF file of bench/model_shapes.py with random weights, for programs that read GGUF (bench/model_peer.py).

    pip install gguf==0.19.0
    bench/random_gguf.py qwen3 qwen3-bf16.gguf --experts bf16 --rest bf16
    bench/random_gguf.py qwen3 qwen3-mxfp4-q8.gguf --experts mxfp4 --rest q8_0
    bench/random_gguf.py nemotron nemotron-q8.gguf --experts q8_0 --rest q8_0

Codes are drawn at random, not rounded from numbers: nothing but time is measured with these files. Scales are such that
a row's sum stays near one. There is no tokenizer in them. A file appears when it is whole.
"""
import argparse
import os
import pathlib
import sys

import model_shapes

try:
    import gguf
    import numpy as np
except ImportError as e:
    sys.exit(f"random_gguf.py: {e}; pip install gguf==0.19.0")

KINDS = {"bf16": gguf.GGMLQuantizationType.BF16, "q8_0": gguf.GGMLQuantizationType.Q8_0,
         "q4_0": gguf.GGMLQuantizationType.Q4_0, "mxfp4": gguf.GGMLQuantizationType.MXFP4}
ARCHITECTURES = {"qwen3_moe": "qwen3moe", "deepseek_v3": "deepseek2", "nemotron_h": "nemotron_h_moe"}
SIGMOID = 2  # of expert_gating_func
SLICE = 1 << 27  # bytes drawn at once


def random_bytes(rng, shape, kind):
    """Rows of codes of a matrix, as bytes."""
    block, size = gguf.GGML_QUANT_SIZES[KINDS[kind]]
    rows = int(np.prod(shape[:-1]))
    if shape[-1] % block:
        raise SystemExit(f"rows of {shape[-1]} do not divide into the {block} codes of a {kind} block")
    blocks = rows * shape[-1] // block
    out = rng.integers(0, 1 << 64, (blocks * size + 7) // 8, dtype=np.uint64).view(np.uint8)[:blocks * size]
    if kind == "bf16":  # sign, mantissa and one bit of the exponent vary: 2^-7 to 2^-5
        codes = out.view(np.uint16)
        codes &= 0x80FF
        codes |= 0x3C00
    else:
        out = out.reshape(blocks, size)
        if kind == "mxfp4":
            out[:, 0] = 119 + (out[:, 0] & 1)  # 2^-8 or 2^-7 times up to 6
        else:
            out[:, :2].view(np.float16)[:] = 0.0003 if kind == "q8_0" else 0.004
    return out.reshape(-1)


def write_matrix(file, rng, shape, kind):
    """In slices, so that a stack of experts needs no memory of its size."""
    block, size = gguf.GGML_QUANT_SIZES[KINDS[kind]]
    row = shape[-1] // block * size
    rows = int(np.prod(shape[:-1]))
    step = max(1, SLICE // row)
    for begin in range(0, rows, step):
        file.write(random_bytes(rng, (min(step, rows - begin), shape[-1]), kind).data)


def small_tensor(rng, name, shape):
    """Norms are ones; the router spreads its tokens over the experts; what Mamba-2 needs to stay finite."""
    if name.endswith("ffn_gate_inp.weight"):
        return rng.normal(0, 0.02, shape).astype(np.float32)
    if name.endswith("ssm_a"):
        return -rng.uniform(1, 16, shape).astype(np.float32)
    if name.endswith("ssm_dt.bias"):
        return rng.uniform(-6, -2, shape).astype(np.float32)
    if name.endswith("ssm_conv1d.weight"):
        return rng.normal(0, 0.3, shape).astype(np.float32)
    return (np.zeros if name.endswith(".bias") else np.ones)(shape, np.float32)


def write_keys(w, c):
    w.add_name("random weights")
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_vocab_size(c["vocab_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_expert_count(c.get("num_experts", c.get("n_routed_experts")))
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_layer_norm_rms_eps(c.get("rms_norm_eps", c.get("layer_norm_epsilon")))
    w.add_string("tokenizer.ggml.model", "no_vocab")
    kind = c["model_type"]
    if kind != "nemotron_h":
        w.add_feed_forward_length(c["intermediate_size"])
        w.add_rope_freq_base(c["rope_theta"])
    if kind != "deepseek_v3":
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])
    if kind == "qwen3_moe":
        w.add_head_count_kv(c["num_key_value_heads"])
        return
    w.add_expert_shared_count(c["n_shared_experts"])
    w.add_expert_weights_scale(c["routed_scaling_factor"])
    w.add_expert_weights_norm(c["norm_topk_prob"])
    if c["n_group"] > 1:
        w.add_expert_group_count(c["n_group"])
        w.add_expert_group_used_count(c["topk_group"])
    if kind == "deepseek_v3":
        rope = c["qk_rope_head_dim"]
        w.add_head_count_kv(1)  # as latent rows: one head of keys and values
        w.add_leading_dense_block_count(c["first_k_dense_replace"])
        w.add_q_lora_rank(c["q_lora_rank"])
        w.add_kv_lora_rank(c["kv_lora_rank"])
        w.add_key_length(c["kv_lora_rank"] + rope)
        w.add_value_length(c["kv_lora_rank"])
        w.add_key_length_mla(c["qk_nope_head_dim"] + rope)
        w.add_value_length_mla(c["v_head_dim"])
        w.add_rope_dimension_count(rope)
        w.add_expert_gating_func(gguf.ExpertGatingFuncType(SIGMOID))
        return
    pattern = c["hybrid_override_pattern"]
    w.add_layer_norm_eps(c["layer_norm_epsilon"])  # llama.cpp wants it beside the RMS norms' one, for a draft head
    w.add_head_count_kv([c["num_key_value_heads"] if x == "*" else 0 for x in pattern])
    w.add_feed_forward_length([c["moe_intermediate_size"] if x == "E" else 0 for x in pattern])
    w.add_expert_shared_feed_forward_length(c["moe_shared_expert_intermediate_size"])
    w.add_ssm_conv_kernel(c["conv_kernel"])
    w.add_ssm_inner_size(c["mamba_num_heads"] * c["mamba_head_dim"])
    w.add_ssm_state_size(c["ssm_state_size"])
    w.add_ssm_time_step_rank(c["mamba_num_heads"])
    w.add_ssm_group_count(c["n_groups"])
    w.add_rope_dimension_count(c["head_dim"])


def write(config, path, experts, rest, seed=1):
    rng = np.random.Generator(np.random.SFC64(seed))
    partial = path.with_name(path.name + ".partial")
    writer = gguf.GGUFWriter(partial, ARCHITECTURES[config["model_type"]])
    write_keys(writer, config)
    kinds = {"experts": experts, "rest": rest, "head": rest, "rows": rest}
    all_weights = model_shapes.weights(config)
    for w in all_weights:
        if w.part == "float32":
            writer.add_tensor_info(w.name, w.shape, np.dtype(np.float32), 4 * int(np.prod(w.shape)))
            continue
        block, size = gguf.GGML_QUANT_SIZES[KINDS[kinds[w.part]]]
        stored = (*w.shape[:-1], w.shape[-1] // block * size)
        writer.add_tensor_info(w.name, stored, np.dtype(np.uint8), int(np.prod(stored)), raw_dtype=KINDS[kinds[w.part]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    file = writer.fout[0]
    writer.write_padding(file, file.tell())
    for w in all_weights:
        begin = file.tell()
        if w.part == "float32":
            file.write(small_tensor(rng, w.name, w.shape).data)
        else:
            write_matrix(file, rng, w.shape, kinds[w.part])
        writer.write_padding(file, file.tell() - begin)
    writer.close()
    os.replace(partial, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=model_shapes.SHAPES)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--experts", choices=KINDS, required=True, help="type of the routed experts")
    parser.add_argument("--rest", choices=KINDS, required=True, help="type of the other matrices")
    o = parser.parse_args()
    write(model_shapes.SHAPES[o.shape], o.output, o.experts, o.rest)
    print(f"{o.output}: {o.output.stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
