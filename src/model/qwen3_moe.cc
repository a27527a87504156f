// SPDX-License-Identifier: Apache-2.0
// Qwen3-MoE: x += attention(norm(x)), x += experts(norm(x)); norms on the heads of q and k, rotary halves.
#include <algorithm>

#include "model/config.h"
#include "model/families.h"
#include "model/moe_config.h"

namespace sluice::model {

namespace {
struct Config : CommonConfig {
  int64_t layers, head_dim, inter, sparse_step;
  float eps;
  MoeConfig moe;
  std::vector<int64_t> mlp_only;

  // transformers' rule: every sparse_step-th layer but those in mlp_only_layers.
  bool is_moe(int64_t layer) const {
    return (layer + 1) % sparse_step == 0 && std::find(mlp_only.begin(), mlp_only.end(), layer) == mlp_only.end();
  }
};

Config read(const io::Config& c) {
  Config out;
  static_cast<CommonConfig&>(out) = read_common(c);
  out.layers = c.integer("num_hidden_layers", {1, 4096});
  out.head_dim = read_head_dim(c, "head_dim", out);
  if (out.head_dim % 2 != 0) c.refuse("head_dim", fmt::format("is {}; rotary pairs need an even one", out.head_dim));
  out.inter = c.integer("intermediate_size", kSize);
  out.moe = read_softmax_moe(c);
  out.eps = static_cast<float>(c.number("rms_norm_eps", kEpsilon, 1e-6));
  out.sparse_step = c.integer("decoder_sparse_step", {1, 4096}, 1);
  if (c.has("mlp_only_layers")) out.mlp_only = c.integers("mlp_only_layers", {0, out.layers - 1});
  require_string(c, "hidden_act", "silu");
  require_bool(c, "use_sliding_window", false, "attention here sees the whole context");
  return out;
}

AttentionLayer attention(const WeightReader& s, const Config& c, const std::string& p) {
  const Dim head{c.head_dim, "head_dim"};
  AttentionLayer a = load_attention(s, c, c.head_dim, p);
  a.layout.q_norm = s.norm(p + "q_norm.weight", head, c.eps);
  a.layout.k_norm = s.norm(p + "k_norm.weight", head, c.eps);
  a.layout.rotary = true;
  return a;
}

Mlp dense_mlp(const WeightReader& s, const Config& c, const std::string& p) {
  const Dim hidden{c.hidden, "hidden_size"}, inter{c.inter, "intermediate_size"};
  return {true, s.dense({{p + "gate_proj", inter}, {p + "up_proj", inter}}, hidden),
          s.dense(p + "down_proj", hidden, inter)};
}

MoeBlock moe_block(const WeightReader& s, const Config& c, const std::string& p, int64_t layer) {
  const Dim hidden{c.hidden, "hidden_size"};
  MoeBlock m = load_moe_block(s, c.moe, activation::Activation::swiglu, p, layer, hidden, hidden);
  m.router_floats = false;  // a BF16 run's logits are BF16
  return m;
}
}  // namespace

CacheShape cache_of_qwen3_moe(const WeightReader& s) {
  const Config c = read(s.config());
  CacheShape shape;
  shape.attention.assign(static_cast<size_t>(c.layers), {c.kv_heads, c.head_dim, c.head_dim});
  return shape;
}

Decoder::Parts load_qwen3_moe(const WeightReader& s) {
  const Config c = read(s.config());
  const Dim hidden{c.hidden, "hidden_size"}, vocab{c.vocab, "vocab_size"};
  s.warn_of_more_layers("model.layers.", {c.layers, "num_hidden_layers"});
  Decoder::Parts parts;
  parts.info.layers = c.layers;
  parts.info.max_positions = c.max_positions;
  parts.rope = ops::rope_frequencies(read_rope(s.config(), c.head_dim));
  parts.embedding = s.embedding("model.embed_tokens.weight", {vocab, hidden});
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string p = fmt::format("model.layers.{}.", i);
    parts.sublayers.push_back(
        {s.norm(p + "input_layernorm.weight", hidden, c.eps), attention(s, c, p + "self_attn."), false});
    ops::RmsNorm norm = s.norm(p + "post_attention_layernorm.weight", hidden, c.eps);
    if (c.is_moe(i))
      parts.sublayers.push_back({std::move(norm), moe_block(s, c, p + "mlp.", i), true});
    else
      parts.sublayers.push_back({std::move(norm), dense_mlp(s, c, p + "mlp."), true});
  }
  parts.final_norm = s.norm("model.norm.weight", hidden, c.eps);
  parts.head = c.tied ? s.tied_head("lm_head", parts.embedding) : s.dense("lm_head", vocab, hidden);
  return parts;
}

}  // namespace sluice::model
