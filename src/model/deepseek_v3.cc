// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V3: latent attention, grouped sigmoid routing with a correction bias, shared experts, dense first layers,
// and the multi-token-prediction layer stored after the last one.
#include <cmath>

#include "model/config.h"
#include "model/families.h"
#include "model/moe_config.h"

namespace sluice::model {

namespace {
struct Config : CommonConfig {
  int64_t layers, inter, shared, dense_layers, draft_layers;
  int64_t q_rank = 0;  // 0: queries without a low rank between
  MoeConfig moe;
  ops::MlaShape mla;
  ops::RopeConfig rope;
  ops::RopeLayout layout;
  float eps, attention_scale;
};

Config read(const io::Config& c) {
  Config out;
  static_cast<CommonConfig&>(out) = read_common(c);
  if (out.kv_heads != out.heads)
    c.refuse("num_key_value_heads", fmt::format("is {}; latent attention has one per head: num_attention_heads = {}",
                                                out.kv_heads, out.heads));
  out.layers = c.integer("num_hidden_layers", {1, 4096});
  out.inter = c.integer("intermediate_size", kSize);
  out.moe = read_sigmoid_moe(c, {8, 4, 2.5});
  out.shared = c.integer("n_shared_experts", {0, 64}, 0);
  out.dense_layers = c.integer("first_k_dense_replace", {0, 4096}, 0);
  out.draft_layers = c.integer({"num_nextn_predict_layers", "num_mtp_layers"}, {0, 64}, 0);
  if (c.has("q_lora_rank")) out.q_rank = c.integer("q_lora_rank", kSize);
  out.mla = {out.heads, c.integer("qk_nope_head_dim", {1, 4096}), c.integer("qk_rope_head_dim", {2, 4096}),
             c.integer("v_head_dim", {1, 4096}), c.integer("kv_lora_rank", {1, 1 << 16})};
  if (out.mla.rope % 2 != 0)
    c.refuse("qk_rope_head_dim", fmt::format("is {}; rotary pairs need an even one", out.mla.rope));
  out.eps = static_cast<float>(c.number("rms_norm_eps", kEpsilon, 1e-6));
  out.rope = read_rope(c, out.mla.rope);
  out.layout = c.boolean("rope_interleave", true) ? ops::RopeLayout::interleaved : ops::RopeLayout::halves;
  double scale = 1.0 / std::sqrt(static_cast<double>(out.mla.query()));
  if (out.rope.mscale_all_dim != 0) {
    const double mscale = ops::yarn_mscale(out.rope.factor, out.rope.mscale_all_dim);
    scale *= mscale * mscale;
  }
  out.attention_scale = static_cast<float>(scale);
  require_string(c, "hidden_act", "silu");
  require_string(c, "scoring_func", "sigmoid");
  require_string(c, "topk_method", "noaux_tc");
  if (c.integer("moe_layer_freq", {1, 4096}, 1) != 1)
    fail(ErrorCode::unsupported, "{}: moe_layer_freq is {}; accepted: 1", c.source(),
         c.integer("moe_layer_freq", {1, 4096}));
  return out;
}

MlaLayer attention(const WeightReader& s, const Config& c, const std::string& p) {
  const Dim hidden{c.hidden, "hidden_size"}, rank{c.q_rank, "q_lora_rank"}, latent{c.mla.latent, "kv_lora_rank"};
  const Dim queries{c.heads * c.mla.query(), "num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim)"};
  const Bias bias = c.attention_bias ? Bias::present : Bias::none;
  // transformers gives the norms inside the attention its default eps, whatever rms_norm_eps says.
  constexpr float kInnerEps = 1e-6f;
  MlaLayer a;
  a.shape = c.mla;
  a.q_rank = c.q_rank;
  const DenseModule kv_a{p + "kv_a_proj_with_mqa", {c.mla.cached(), "kv_lora_rank + qk_rope_head_dim"}};
  if (c.q_rank > 0) {
    a.down = s.dense({{p + "q_a_proj", rank}, kv_a}, hidden, bias);
    a.q_norm = s.norm(p + "q_a_layernorm.weight", rank, kInnerEps);
    a.q = s.dense(p + "q_b_proj", queries, rank);
  } else {
    a.down = s.dense({kv_a}, hidden, bias);
    a.q = s.dense(p + "q_proj", queries, hidden);
  }
  a.kv_norm = s.norm(p + "kv_a_layernorm.weight", latent, kInnerEps);
  a.kv_b = s.to_device(s.dequantized(
      p + "kv_b_proj", {c.heads * (c.mla.nope + c.mla.value), "num_attention_heads * (qk_nope_head_dim + v_head_dim)"},
      latent));
  a.o = s.dense(p + "o_proj", hidden, {c.heads * c.mla.value, "num_attention_heads * v_head_dim"}, bias);
  a.layout = c.layout;
  a.scale = c.attention_scale;
  return a;
}

Mlp dense_mlp(const WeightReader& s, const Config& c, const std::string& p, Dim inter) {
  const Dim hidden{c.hidden, "hidden_size"};
  return {true, s.dense({{p + "gate_proj", inter}, {p + "up_proj", inter}}, hidden),
          s.dense(p + "down_proj", hidden, inter)};
}

MoeBlock moe_block(const WeightReader& s, const Config& c, const std::string& p, int64_t layer) {
  const Dim hidden{c.hidden, "hidden_size"};
  MoeBlock m = load_moe_block(s, c.moe, activation::Activation::swiglu, p, layer, hidden, hidden);
  if (c.shared > 0)
    m.shared =
        dense_mlp(s, c, p + "shared_experts.", {c.moe.inter * c.shared, "moe_intermediate_size * n_shared_experts"});
  else
    check_no_shared_experts(s, p);
  return m;
}

// Appends layer `i`: attention, then MLP or experts.
void add_layer(const WeightReader& s, const Config& c, int64_t i, std::vector<Sublayer>& sublayers) {
  const std::string p = fmt::format("model.layers.{}.", i);
  const Dim hidden{c.hidden, "hidden_size"};
  sublayers.push_back({s.norm(p + "input_layernorm.weight", hidden, c.eps), attention(s, c, p + "self_attn."), false});
  ops::RmsNorm norm = s.norm(p + "post_attention_layernorm.weight", hidden, c.eps);
  if (i >= c.dense_layers)
    sublayers.push_back({std::move(norm), moe_block(s, c, p + "mlp.", i), true});
  else
    sublayers.push_back({std::move(norm), dense_mlp(s, c, p + "mlp.", {c.inter, "intermediate_size"}), true});
}

DraftHead draft_head(const WeightReader& s, const Config& c, const Decoder::Parts& main) {
  const std::string p = fmt::format("model.layers.{}.", c.layers);
  const Dim hidden{c.hidden, "hidden_size"}, vocab{c.vocab, "vocab_size"};
  DraftHead d;
  // The embedding and the head are copies of the main model's; files may leave them out.
  d.embedding =
      s.contains(p + "embed_tokens.weight") ? s.embedding(p + "embed_tokens.weight", {vocab, hidden}) : main.embedding;
  d.embedding_norm = s.norm(p + "enorm.weight", hidden, c.eps);
  d.hidden_norm = s.norm(p + "hnorm.weight", hidden, c.eps);
  d.projection = s.dense(p + "eh_proj", hidden, {2 * c.hidden, "2 * hidden_size"});
  Config layer = c;
  layer.moe.draft = true;
  add_layer(s, layer, c.layers, d.sublayers);
  d.final_norm = s.norm(p + "shared_head.norm.weight", hidden, c.eps);
  d.head = s.contains_module(p + "shared_head.head") ? s.dense(p + "shared_head.head", vocab, hidden) : main.head;
  return d;
}
}  // namespace

namespace {
// Files without the prediction layer's tensors are whole models too: num_nextn_predict_layers is often left at 1.
bool has_draft(const WeightReader& s, const Config& c) {
  return c.draft_layers > 0 && s.has_required(fmt::format("model.layers.{}.eh_proj.weight", c.layers));
}
}  // namespace

CacheShape cache_of_deepseek_v3(const WeightReader& s) {
  const Config c = read(s.config());
  CacheShape shape;
  shape.attention.assign(static_cast<size_t>(c.layers + (has_draft(s, c) ? 1 : 0)), {1, c.mla.cached(), 0});
  return shape;
}

Decoder::Parts load_deepseek_v3(const WeightReader& s) {
  const Config c = read(s.config());
  if (s.options().kv_dtype == DType::e4m3)
    fail(ErrorCode::unsupported,
         "the cache's dtype is float8_e4m3fn; latent attention ({}) keeps its rows in the dtype of the run; accepted: "
         "{}",
         s.config().source(), to_string(s.options().dtype));
  const bool drafts = has_draft(s, c);
  // Of several prediction layers the first runs. The others are nobody's mistake.
  s.warn_of_more_layers("model.layers.",
                        drafts ? Dim{c.layers + c.draft_layers, "num_hidden_layers + num_nextn_predict_layers"}
                               : Dim{c.layers, "num_hidden_layers"});
  const Dim hidden{c.hidden, "hidden_size"}, vocab{c.vocab, "vocab_size"};
  Decoder::Parts parts;
  parts.info.layers = c.layers;
  parts.info.max_positions = c.max_positions;
  parts.rope = ops::rope_frequencies(c.rope);
  parts.embedding = s.embedding("model.embed_tokens.weight", {vocab, hidden});
  for (int64_t i = 0; i < c.layers; ++i) add_layer(s, c, i, parts.sublayers);
  parts.final_norm = s.norm("model.norm.weight", hidden, c.eps);
  parts.head = c.tied ? s.tied_head("lm_head", parts.embedding) : s.dense("lm_head", vocab, hidden);
  if (drafts) parts.draft = draft_head(s, c, parts);
  return parts;
}

}  // namespace sluice::model
