# SPDX-License-Identifier: Apache-2.0
"""Published models with few layers, for whole-model benchmarks with random weights: the configuration that Sluice reads
(`--load-format dummy`) and the list of the same model's tensors, under the names that GGUF has for them.

Widths are those of the publication. Layers are few, so that a model fits a laptop and a round a minute; where the vocabulary
or the number of experts is smaller, the comment says so.
"""
import collections
import math

QWEN3 = {  # Qwen3-30B-A3B but for its 48 layers
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "num_hidden_layers": 4, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    "rope_scaling": None, "max_position_embeddings": 40960, "attention_bias": False, "attention_dropout": 0.0,
    "tie_word_embeddings": False, "use_sliding_window": False, "sliding_window": None, "vocab_size": 151936,
    "eos_token_id": 0, "torch_dtype": "bfloat16"}

# Half the layers, and a head that weighs little.
QWEN3_SMALL = {**QWEN3, "num_hidden_layers": 2, "max_position_embeddings": 4096, "vocab_size": 4096}

# DeepSeek-V3 but for its 61 layers: one dense, one with experts. 64 of 256 experts, so that BF16 is no 22 GB (a decoded
# token reads the same eight), and an eighth of the vocabulary, or the head would outweigh both layers.
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "n_routed_experts": 64, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8,
    "topk_group": 4, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
    "topk_method": "noaux_tc", "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_hidden_layers": 2,
    "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "rope_scaling": None, "max_position_embeddings": 40960, "attention_bias": False,
    "tie_word_embeddings": False, "num_nextn_predict_layers": 0, "vocab_size": 16160, "eos_token_id": 1,
    "torch_dtype": "bfloat16"}

# Nemotron-3-Nano but for its 52 layers (23 Mamba-2, 6 attention, 23 with experts); an eighth of the vocabulary.
NEMOTRON = {
    "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "hidden_size": 2688, "intermediate_size": 1856,
    "hybrid_override_pattern": "MEM*E", "num_hidden_layers": 5, "num_attention_heads": 32, "num_key_value_heads": 2,
    "head_dim": 128, "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4,
    "chunk_size": 128, "expand": 2, "mamba_hidden_act": "silu", "mamba_proj_bias": False, "use_conv_bias": True,
    "use_bias": False, "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "moe_latent_size": None, "n_group": 1,
    "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "mlp_hidden_act": "relu2", "mlp_bias": False,
    "attention_bias": False, "layer_norm_epsilon": 1e-5, "residual_in_fp32": False,
    "max_position_embeddings": 40960, "tie_word_embeddings": False, "num_nextn_predict_layers": 0, "vocab_size": 16384,
    "eos_token_id": 2, "torch_dtype": "bfloat16"}

SHAPES = {"qwen3": QWEN3, "deepseek": DEEPSEEK, "nemotron": NEMOTRON}

# part: "experts", "rest" and "head" are in the formats of a measurement; of "rows", the embedding, a step reads one row;
# "float32" is what GGUF files keep so.
Weight = collections.namedtuple("Weight", "name shape part")


def weights(config):
    """The model's tensors; shapes as numpy has them, rows first."""
    c, h = config, config["hidden_size"]
    out = [Weight("token_embd.weight", (c["vocab_size"], h), "rows"), Weight("output_norm.weight", (h,), "float32"),
           Weight("output.weight", (c["vocab_size"], h), "head")]
    layer = {"qwen3_moe": qwen3_layer, "deepseek_v3": deepseek_layer, "nemotron_h": nemotron_layer}[c["model_type"]]
    for i in range(c["num_hidden_layers"]):
        out += [Weight(f"blk.{i}.{name}", shape, part) for name, shape, part in layer(c, i)]
    return out


def qwen3_layer(c, _):
    h, d, e, inter = c["hidden_size"], c["head_dim"], c["num_experts"], c["moe_intermediate_size"]
    return [*attention(c), ("attn_q_norm.weight", (d,), "float32"), ("attn_k_norm.weight", (d,), "float32"),
            ("attn_norm.weight", (h,), "float32"), ("ffn_norm.weight", (h,), "float32"),
            ("ffn_gate_inp.weight", (e, h), "float32"), *experts(e, h, inter, gated=True)]


def deepseek_layer(c, i):
    h, heads, kv, q = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"], c["q_lora_rank"]
    nope, rope, v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    e, inter = c["n_routed_experts"], c["moe_intermediate_size"]
    out = [("attn_norm.weight", (h,), "float32"), ("attn_q_a_norm.weight", (q,), "float32"),
           ("attn_kv_a_norm.weight", (kv,), "float32"), ("ffn_norm.weight", (h,), "float32"),
           ("attn_q_a.weight", (q, h), "rest"), ("attn_q_b.weight", (heads * (nope + rope), q), "rest"),
           ("attn_kv_a_mqa.weight", (kv + rope, h), "rest"), ("attn_k_b.weight", (heads, kv, nope), "rest"),
           ("attn_v_b.weight", (heads, v, kv), "rest"), ("attn_output.weight", (h, heads * v), "rest")]
    if i < c["first_k_dense_replace"]:
        dense = c["intermediate_size"]
        return out + [(f"ffn_{name}.weight", (dense, h), "rest") for name in ("gate", "up")] + [
            ("ffn_down.weight", (h, dense), "rest")]
    return out + [("ffn_gate_inp.weight", (e, h), "float32"), ("exp_probs_b.bias", (e,), "float32"),
                  *experts(e, h, inter, gated=True), *shared(h, inter * c["n_shared_experts"], gated=True)]


def nemotron_layer(c, i):
    h = c["hidden_size"]
    norm = ("attn_norm.weight", (h,), "float32")
    kind = c["hybrid_override_pattern"][i]
    if kind == "*":
        return [norm, *attention(c)]
    if kind == "E":
        e = c["n_routed_experts"]
        return [norm, ("ffn_gate_inp.weight", (e, h), "float32"), ("exp_probs_b.bias", (e,), "float32"),
                *experts(e, h, c["moe_intermediate_size"], gated=False),
                *shared(h, c["moe_shared_expert_intermediate_size"], gated=False)]
    heads, groups, state = c["mamba_num_heads"], c["n_groups"], c["ssm_state_size"]
    inner = heads * c["mamba_head_dim"]
    conv = inner + 2 * groups * state
    return [norm, ("ssm_in.weight", (inner + conv + heads, h), "rest"), ("ssm_out.weight", (h, inner), "rest"),
            ("ssm_conv1d.weight", (conv, c["conv_kernel"]), "float32"), ("ssm_conv1d.bias", (conv,), "float32"),
            ("ssm_dt.bias", (heads,), "float32"), ("ssm_a", (heads, 1), "float32"), ("ssm_d", (heads, 1), "float32"),
            ("ssm_norm.weight", (groups, inner // groups), "float32")]


def attention(c):
    h, d = c["hidden_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    return [("attn_q.weight", (q, h), "rest"), ("attn_k.weight", (kv, h), "rest"), ("attn_v.weight", (kv, h), "rest"),
            ("attn_output.weight", (h, q), "rest")]


def experts(count, hidden, inter, gated):
    names = ("gate", "up") if gated else ("up",)
    return [(f"ffn_{name}_exps.weight", (count, inter, hidden), "experts") for name in names] + [
        ("ffn_down_exps.weight", (count, hidden, inter), "experts")]


def shared(hidden, inter, gated):
    names = ("gate", "up") if gated else ("up",)
    return [(f"ffn_{name}_shexp.weight", (inter, hidden), "rest") for name in names] + [
        ("ffn_down_shexp.weight", (hidden, inter), "rest")]


def step_bytes(config, bits, context):
    """What one decoded token reads with `bits` a weight of "experts", "rest" and "head": the chosen experts, everything else
    once, keys and values of the context (16 bits), and the Mamba-2 states (float32, read and written)."""
    c = config
    chosen = c["num_experts_per_tok"] / c.get("num_experts", c.get("n_routed_experts"))
    of_part = {**bits, "experts": bits["experts"] * chosen, "rows": 0, "float32": 32}
    total = sum(math.prod(w.shape) * of_part[w.part] / 8 for w in weights(c))
    layers, kind = c["num_hidden_layers"], c["model_type"]
    if kind == "deepseek_v3":  # the latent row serves as keys and as values
        return total + 2 * context * layers * (c["kv_lora_rank"] + c["qk_rope_head_dim"])
    pattern = c["hybrid_override_pattern"] if kind == "nemotron_h" else "*" * layers
    state = c["mamba_num_heads"] * c["mamba_head_dim"] * c["ssm_state_size"] if "M" in pattern else 0
    return total + 2 * context * pattern.count("*") * 2 * c["num_key_value_heads"] * c["head_dim"] + (
        2 * 4 * pattern.count("M") * state)
