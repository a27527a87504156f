#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/fixtures/{qwen3-moe,nemotron-h,deepseek-v3}: small random checkpoints with odd sizes and options that the
trained ones do not have, and what transformers computes from them in float32 (golden.safetensors).

    pip install torch transformers==5.17.0 safetensors numpy
    tools/make_fixtures.py [NAME ...] [--out tests/fixtures]

Tensor names of the goldens are those of the trained checkpoints' cards. The DeepSeek prediction layer, which transformers
does not run in a plain forward, is computed here from scratch in float64; the same code first has to reproduce
transformers' last layer.
"""
import argparse
import json
import math
import pathlib

import torch
from safetensors.torch import save_file
from transformers import DeepseekV3Config, NemotronHConfig, Qwen3MoeConfig
from transformers import DeepseekV3ForCausalLM, NemotronHForCausalLM, Qwen3MoeForCausalLM

LENGTH, PROMPT, NEW = 48, 8, 24


def randomize(model, generator):
    """Weights that keep every layer's output near unit size and routers decided, rounded to bfloat16."""
    for name, p in list(model.named_parameters()) + [b for b in model.named_buffers() if "correction" in b[0]]:
        r = torch.randn(p.shape, generator=generator, device=generator.device)
        if "norm" in name and name.endswith("weight"):
            r = 1 + 0.2 * r
        elif name.endswith(("A_log", "dt_bias")):
            r = r - 0.5
        elif name.endswith(".D"):
            r = 1 + 0.3 * r
        elif "correction" in name:
            r = 0.1 * r
        elif name.endswith("bias"):
            r = 0.2 * r
        elif "embed" in name:
            pass
        elif "conv1d" in name:
            r = 0.6 * r
        elif name.endswith("gate.weight"):
            r = 2.0 * r / math.sqrt(p.shape[-1])
        else:
            r = 1.3 * r / math.sqrt(p.shape[-1])
        with torch.no_grad():
            p.copy_(r if "correction" in name else r.bfloat16().float())


def capture(model, ids):
    """Logits and the inside of one forward without a cache."""
    seen, hooks = {}, []
    keep = lambda name, pick: lambda m, i, o: seen.__setitem__(name, pick(i, o).detach())
    first = lambda o: o[0] if isinstance(o, tuple) else o
    base = model.model
    layers = list(base.layers)
    for n, layer in enumerate(layers):
        if n == 0:
            hooks.append(layer.register_forward_hook(keep("layer0", lambda i, o: i[0])))
        hooks.append(layer.register_forward_hook(keep(f"layer{n + 1}", lambda i, o: first(o))))
    block = lambda layer: getattr(layer, "mixer", None) or layer.mlp
    at = max(n for n, layer in enumerate(layers) if hasattr(block(layer), "experts"))
    moe = block(layers[at])
    hooks.append(moe.register_forward_hook(keep("input", lambda i, o: i[0])))
    hooks.append(moe.register_forward_hook(keep("output", lambda i, o: first(o))))
    hooks.append(moe.gate.register_forward_hook(keep("router_logits", lambda i, o: o[0])))
    hooks.append(moe.gate.register_forward_hook(keep("topk_weights", lambda i, o: o[1])))
    hooks.append(moe.gate.register_forward_hook(keep("topk_ids", lambda i, o: o[2])))
    last = moe.fc2_latent_proj if hasattr(moe, "fc2_latent_proj") else moe.experts
    hooks.append(last.register_forward_hook(keep("routed", lambda i, o: o)))
    norm = base.norm if hasattr(base, "norm") else base.norm_f
    hooks.append(norm.register_forward_hook(keep("final", lambda i, o: o)))
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits
    for h in hooks:
        h.remove()
    shape = ids.shape
    order = seen["topk_ids"].argsort(-1)
    golden = {
        "input_ids": ids.int(),
        "logits": logits,
        "final_hidden": seen["final"],
        "layer_hidden": torch.stack([seen[f"layer{n}"][0, :32] for n in range(len(layers) + 1)]),
        "moe.layer": torch.tensor([at], dtype=torch.int32),
        "moe.input": seen["input"],
        "moe.router_logits": seen["router_logits"].view(*shape, -1).float(),
        "moe.topk_ids": seen["topk_ids"].gather(-1, order).view(*shape, -1).int(),
        "moe.topk_weights": seen["topk_weights"].gather(-1, order).view(*shape, -1).float(),
        "moe.routed_output": seen["routed"].view(*shape, -1),
        "moe.output": seen["output"].view(*shape, -1),
    }
    return {k: v.contiguous().clone() for k, v in golden.items()}


def greedy(model, prompt):
    ids, margins = prompt.clone(), []
    for _ in range(NEW):
        with torch.no_grad():
            top = model(ids, use_cache=False).logits[0, -1].topk(2)
        margins.append(float(top.values[0] - top.values[1]))
        ids = torch.cat([ids, top.indices[:1].view(1, 1)], 1)
    return ids[0, prompt.shape[1]:], margins


# --- DeepSeek's prediction layer, from its definition ---


def rms(x, w, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * w


def deepseek_layer(w, p, c, rope, x):
    """One decoder layer with experts; w: name -> float64, p: "model.layers.4.", x [T, hidden]."""
    g = lambda name: w[p + name]
    n, (nope, rot, val) = x.shape[0], (c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim)
    bias = (lambda name: g(name)) if c.attention_bias else (lambda name: 0)
    h = rms(x, g("input_layernorm.weight"), c.rms_norm_eps)
    q = (h @ g("self_attn.q_proj.weight").T).view(n, c.num_attention_heads, nope + rot)
    a = h @ g("self_attn.kv_a_proj_with_mqa.weight").T + bias("self_attn.kv_a_proj_with_mqa.bias")
    latent = rms(a[:, : c.kv_lora_rank], g("self_attn.kv_a_layernorm.weight"), 1e-6)
    inv_freq, factor, scale = rope
    angle = torch.arange(n).double()[:, None] * inv_freq

    def turn(v):  # [T, ..., rot], pairs (2i, 2i + 1)
        cos, sin = angle.cos() * factor, angle.sin() * factor
        while cos.dim() < v.dim():
            cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        even, odd = v[..., 0::2], v[..., 1::2]
        return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)

    kv = (latent @ g("self_attn.kv_b_proj.weight").T).view(n, c.num_attention_heads, nope + val)
    k_rot = turn(a[:, c.kv_lora_rank:])
    scores = torch.einsum("thd,shd->hts", q[..., :nope], kv[..., :nope])
    scores = (scores + torch.einsum("thd,sd->hts", turn(q[..., nope:]), k_rot)) * scale
    scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf).softmax(-1)
    mixed = torch.einsum("hts,shd->thd", scores, kv[..., nope:]).reshape(n, -1)
    x = x + mixed @ g("self_attn.o_proj.weight").T + bias("self_attn.o_proj.bias")

    h = rms(x, g("post_attention_layernorm.weight"), c.rms_norm_eps)
    mlp = lambda m, v: (torch.nn.functional.silu(v @ g(m + "gate_proj.weight").T) * (v @ g(m + "up_proj.weight").T)) @ g(
        m + "down_proj.weight").T
    s = torch.sigmoid(h @ g("mlp.gate.weight").T)
    choice = (s + g("mlp.gate.e_score_correction_bias")).topk(c.num_experts_per_tok, -1).indices  # one group
    out = mlp("mlp.shared_experts.", h)
    for t in range(n):
        weights = s[t, choice[t]]
        weights = weights / (weights.sum() + 1e-20) * c.routed_scaling_factor
        for e, weight in zip(choice[t].tolist(), weights):
            out[t] += weight * mlp(f"mlp.experts.{e}.", h[t])
    return x + out


def deepseek_rope(c):
    y = c.rope_parameters
    dim, base, f = c.qk_rope_head_dim, y["rope_theta"], y["factor"]
    mscale = lambda m: 0.1 * m * math.log(f) + 1.0
    at = lambda turns: dim * math.log(y["original_max_position_embeddings"] / (turns * 2 * math.pi)) / (2 * math.log(base))
    low, high = max(math.floor(at(y["beta_fast"])), 0), min(math.ceil(at(y["beta_slow"])), dim - 1)
    inv = base ** (-torch.arange(0, dim, 2).double() / dim)
    ramp = ((torch.arange(dim // 2).double() - low) / (high - low)).clamp(0, 1)
    inv = inv / f * ramp + inv * (1 - ramp)
    scale = (c.qk_nope_head_dim + dim) ** -0.5 * mscale(y["mscale_all_dim"]) ** 2
    return inv, mscale(y["mscale"]) / mscale(y["mscale_all_dim"]), scale


def add_prediction_layer(tensors, golden, c, generator):
    """Random weights for layer L in the form of the last layer's, its goldens from float64."""
    last, new = f"model.layers.{c.num_hidden_layers - 1}.", f"model.layers.{c.num_hidden_layers}."
    for name in [n for n in tensors if n.startswith(last)]:
        old = tensors[name]
        shuffled = old.flatten()[torch.randperm(old.numel(), generator=generator)].view(old.shape)
        tensors[new + name[len(last):]] = shuffled.contiguous()
    rand = lambda *shape: torch.randn(*shape, generator=generator)
    h = c.hidden_size
    tensors[new + "enorm.weight"] = (1 + 0.2 * rand(h)).bfloat16()
    tensors[new + "hnorm.weight"] = (1 + 0.2 * rand(h)).bfloat16()
    tensors[new + "eh_proj.weight"] = (rand(h, 2 * h) / math.sqrt(2 * h)).bfloat16()
    tensors[new + "shared_head.norm.weight"] = (1 + 0.2 * rand(h)).bfloat16()
    # embed_tokens and shared_head.head are left out: the main model's serve.
    w = {k: v.double() for k, v in tensors.items()}
    rope = deepseek_rope(c)
    check = deepseek_layer(w, last, c, rope, golden["layer_hidden"][-2].double())
    worst = float((check - golden["layer_hidden"][-1].double()).abs().max())
    assert worst < 1e-4, f"the layer written here is {worst} away from transformers'"
    hidden = []
    for s in range(2):
        e = rms(w["model.embed_tokens.weight"][golden["input_ids"][s, 1:].long()], w[new + "enorm.weight"], c.rms_norm_eps)
        m = rms(golden["final_hidden"][s, :-1].double(), w[new + "hnorm.weight"], c.rms_norm_eps)
        x = torch.cat([e, m], -1) @ w[new + "eh_proj.weight"].T
        x = deepseek_layer(w, new, c, rope, x)
        hidden.append(rms(x, w[new + "shared_head.norm.weight"], c.rms_norm_eps))
    hidden = torch.stack(hidden)
    logits = hidden @ w["lm_head.weight"].T
    golden["mtp.hidden"] = hidden.float()
    golden["mtp.logits"] = logits[:1].float()
    golden["mtp.draft_ids"] = logits.argmax(-1).int()


# --- the three checkpoints ---


def qwen3_moe():
    # Not renormalised, odd sizes, more query heads per key head than key heads, dense layers by both rules, an untied head, biases;
    # transformers 5 names: fused experts.
    c = Qwen3MoeConfig(
        vocab_size=331, hidden_size=56, intermediate_size=104, moe_intermediate_size=40, num_hidden_layers=5,
        num_attention_heads=6, num_key_value_heads=2, head_dim=18, num_experts=6, num_experts_per_tok=3,
        norm_topk_prob=False, decoder_sparse_step=2, mlp_only_layers=[3], max_position_embeddings=1024,
        tie_word_embeddings=False, attention_bias=True, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}, eos_token_id=[7, 9],
        pad_token_id=None, bos_token_id=None)
    return c, Qwen3MoeForCausalLM, lambda name: name, lambda d: d


def nemotron_h():
    # Latent experts, expert groups, one Mamba group, three taps, no convolution bias, biases elsewhere.
    c = NemotronHConfig(
        vocab_size=331, hidden_size=72, intermediate_size=88, hybrid_override_pattern="M*EM-EM*", num_attention_heads=6,
        num_key_value_heads=3, head_dim=20, ssm_state_size=24, mamba_num_heads=6, mamba_head_dim=20, n_groups=1,
        conv_kernel=3, use_conv_bias=False, use_bias=True, mlp_bias=True, chunk_size=16, time_step_min=1e-9,
        n_routed_experts=10, num_experts_per_tok=3, moe_intermediate_size=56, moe_latent_size=40,
        moe_shared_expert_intermediate_size=50, n_group=2, topk_group=1, routed_scaling_factor=1.7,
        max_position_embeddings=1024, layer_norm_epsilon=1e-5, eos_token_id=7, pad_token_id=None, bos_token_id=None)
    return c, NemotronHForCausalLM, lambda name: name, lambda d: d


def deepseek_v3():
    # YaRN, no query rank, one group, two shared experts, two dense layers, attention biases, a prediction layer;
    # published names and the published form of the configuration.
    rope = dict(rope_theta=1000.0, factor=4.0, original_max_position_embeddings=64, beta_fast=8, beta_slow=1, mscale=0.9,
                mscale_all_dim=0.7)
    c = DeepseekV3Config(
        vocab_size=331, hidden_size=60, intermediate_size=92, moe_intermediate_size=36, num_hidden_layers=4,
        num_attention_heads=3, num_key_value_heads=3, n_shared_experts=2, n_routed_experts=7, num_experts_per_tok=3,
        routed_scaling_factor=1.5, kv_lora_rank=36, q_lora_rank=None, qk_rope_head_dim=12, qk_nope_head_dim=20, v_head_dim=28,
        n_group=1, topk_group=1, first_k_dense_replace=2, norm_topk_prob=True, max_position_embeddings=256,
        attention_bias=True, rms_norm_eps=1e-5, rope_parameters={"rope_type": "yarn", **rope}, eos_token_id=7, pad_token_id=None,
        bos_token_id=None, num_nextn_predict_layers=1)

    def published(d):
        d = {k: v for k, v in d.items() if k not in ("rope_parameters", "num_mtp_layers", "head_dim", "qk_head_dim")}
        r = dict(rope)
        d["rope_theta"] = r.pop("rope_theta")
        d["rope_scaling"] = {"type": "yarn", **r}
        d["num_nextn_predict_layers"] = 1
        d["torch_dtype"] = d.pop("dtype", "bfloat16")
        d.update(topk_method="noaux_tc", scoring_func="sigmoid", moe_layer_freq=1)
        return d

    return c, DeepseekV3ForCausalLM, None, published


def split_experts(tensors):
    """Fused experts -> the published names, one tensor per expert and projection."""
    out = {}
    for name, t in tensors.items():
        head, dot, tail = name.partition(".experts.")
        if tail == "gate_up_proj":
            for e in range(t.shape[0]):
                gate, up = t[e].chunk(2)
                out[f"{head}.experts.{e}.gate_proj.weight"] = gate.contiguous()
                out[f"{head}.experts.{e}.up_proj.weight"] = up.contiguous()
        elif tail == "down_proj":
            for e in range(t.shape[0]):
                out[f"{head}.experts.{e}.down_proj.weight"] = t[e].contiguous()
        else:
            out[name] = t
    return out


MODELS = {"qwen3-moe": qwen3_moe, "nemotron-h": nemotron_h, "deepseek-v3": deepseek_v3}


def gaps(golden):
    """Smallest distance between the last chosen and the first unchosen expert's logit, over the golden layer's tokens."""
    logits, ids = golden["moe.router_logits"], golden["moe.topk_ids"].long()
    chosen = torch.zeros_like(logits).scatter(-1, ids, 1.0).bool()
    return float((logits.masked_fill(~chosen, math.inf).amin(-1) - logits.masked_fill(chosen, -math.inf).amax(-1)).abs().min())


def make(name, out):
    config, cls, rename, shape_config = MODELS[name]()
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    for seed in range(1, 100):
        generator = torch.Generator().manual_seed(seed)
        model = cls(config).float().eval()
        randomize(model, generator)
        ids = torch.randint(0, config.vocab_size, (2, LENGTH), generator=generator)
        golden = capture(model, ids)
        prompt = ids[:1, :PROMPT]
        output, margins = greedy(model, prompt)
        if min(margins) > 0.02 and gaps(golden) > 1e-4:  # no near ties: every correct implementation gives the same ids
            break
    golden["greedy.prompt_ids"] = prompt[0].int()
    golden["greedy.output_ids"] = output.int()
    golden["greedy.margins"] = torch.tensor(margins)
    tensors = {k: v if "correction" in k else v.bfloat16() for k, v in model.state_dict().items()}
    tensors = {k: v.contiguous().clone() for k, v in tensors.items()}
    if rename is None:
        tensors = split_experts(tensors)
    if name == "deepseek-v3":
        add_prediction_layer(tensors, golden, config, generator)
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    d = shape_config({**config.to_dict(), "architectures": [cls.__name__], "dtype": "bfloat16"})
    d = {k: v for k, v in d.items() if not k.startswith("_")}
    if "time_step_limit" in d:
        d["time_step_limit"] = [0.0, {"__float__": "Infinity"}]  # as transformers 5 writes it: JSON has no infinity
    (folder / "config.json").write_text(json.dumps(d, indent=1, sort_keys=True) + "\n")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    save_file({k: v.contiguous() for k, v in golden.items()}, folder / "golden.safetensors",
              metadata={"made_by": "tools/make_fixtures.py", "seed": str(seed)})
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name}: seed {seed}, least margin {min(margins):.4f}, least router gap {gaps(golden):.1e}, {size / 1e6:.2f} MB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(MODELS), metavar="NAME")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "tests" / "fixtures")
    args = parser.parse_args()
    torch.set_num_threads(2)
    for name in args.names:
        make(name, args.out)


if __name__ == "__main__":
    main()
