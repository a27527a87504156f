// SPDX-License-Identifier: Apache-2.0
// NemotronH: x += mixer(norm(x)) with one mixer per layer: Mamba-2, attention without positions, MLP, or experts, which
// may work in a smaller latent space. No gates: down(relu(up x)^2).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "model/config.h"
#include "model/families.h"
#include "model/moe_config.h"

namespace sluice::model {

namespace {
enum class Kind : uint8_t { mamba, attention, mlp, moe };

constexpr std::array<Named<Kind>, 6> kKinds{{{Kind::mamba, "linear_attention"},
                                             {Kind::attention, "full_attention"},
                                             {Kind::mlp, "mlp"},
                                             {Kind::moe, "moe"},
                                             {Kind::mamba, "mamba"},
                                             {Kind::attention, "attention"}}};
constexpr std::array<Named<Kind>, 4> kLetters{
    {{Kind::mamba, "M"}, {Kind::attention, "*"}, {Kind::mlp, "-"}, {Kind::moe, "E"}}};

struct Config : CommonConfig {
  std::vector<Kind> kinds;
  int64_t head_dim, inter, shared_inter, shared;
  int64_t latent = 0;  // 0: the experts work on the hidden state itself
  MoeConfig moe;       // where there are expert layers
  ops::MambaShape mamba;
  float eps;
  bool conv_bias, bias, mlp_bias;
};

std::vector<Kind> read_kinds(const io::Config& c) {
  std::vector<Kind> kinds;
  const io::ConfigKeys list_keys{"layers_block_type", "layer_types"};
  if (c.has(list_keys))
    for (const std::string& name : c.strings(list_keys))
      kinds.push_back(parse_supported(kKinds, c.source() + ": a member of layers_block_type", name));
  if (c.has("hybrid_override_pattern")) {
    std::vector<Kind> letters;
    for (const char letter : c.string("hybrid_override_pattern"))
      letters.push_back(
          parse_supported(kLetters, c.source() + ": a letter of hybrid_override_pattern", std::string(1, letter)));
    if (!kinds.empty() && kinds != letters)
      c.refuse("hybrid_override_pattern", "and layers_block_type name different layers");
    kinds = std::move(letters);
  }
  if (kinds.empty()) c.refuse("layers_block_type", "and hybrid_override_pattern are both absent or empty");
  const auto count = static_cast<int64_t>(kinds.size());
  if (c.integer("num_hidden_layers", {1, 4096}, count) != count)
    c.refuse("num_hidden_layers",
             fmt::format("is {}, but the pattern names {} layers", c.integer("num_hidden_layers", {1, 4096}), count));
  return kinds;
}

// The scan does not clamp its time steps. time_step_min, time_step_max and time_step_floor are of new weights alone.
void require_free_time_steps(const io::Config& c) {
  const io::ConfigKeys keys{"time_step_limit", "mamba_dt_limit"};  // the second name is that of early configurations
  if (!c.has(keys)) return;
  const std::vector<double> limit = c.numbers(keys, {});
  if (limit.size() != 2) c.refuse(keys, fmt::format("has the length {}; it must be 2: least and most", limit.size()));
  if (limit != std::vector<double>{0, std::numeric_limits<double>::infinity()})
    fail(ErrorCode::unsupported, "{}: time_step_limit is [{}, {}]; accepted: [0, Infinity]", c.source(), limit[0],
         limit[1]);
}

Config read(const io::Config& c) {
  Config out;
  static_cast<CommonConfig&>(out) = read_common(c);
  out.kinds = read_kinds(c);
  out.head_dim = read_head_dim(c, {"head_dim", "attention_head_dim"}, out);
  out.inter = c.integer("intermediate_size", kSize, out.hidden);
  out.eps = static_cast<float>(c.number({"layer_norm_epsilon", "norm_eps"}, kEpsilon, 1e-5));
  out.bias = c.boolean("use_bias", false);
  out.mlp_bias = c.boolean("mlp_bias", false);
  out.mamba = {c.integer("mamba_num_heads", kCount), c.integer("mamba_head_dim", {1, 4096}),
               c.integer({"n_groups", "mamba_n_groups"}, kCount), c.integer("ssm_state_size", {1, 4096}),
               c.integer({"conv_kernel", "mamba_d_conv"}, {1, ops::kMaxTaps}, 4)};
  if (out.mamba.heads % out.mamba.groups != 0)
    c.refuse("n_groups", fmt::format("is {}; it must divide mamba_num_heads = {}", out.mamba.groups, out.mamba.heads));
  require_free_time_steps(c);
  out.conv_bias = c.boolean({"use_conv_bias", "mamba_conv_bias"}, true);
  if (std::find(out.kinds.begin(), out.kinds.end(), Kind::moe) != out.kinds.end()) out.moe = read_sigmoid_moe(c, {});
  if (c.has("moe_latent_size")) out.latent = c.integer("moe_latent_size", kSize);
  out.shared = c.integer("n_shared_experts", {0, 64}, 1);
  out.shared_inter = out.moe.inter;  // 0 without expert layers
  if (c.has("moe_shared_expert_intermediate_size"))
    out.shared_inter = c.integer("moe_shared_expert_intermediate_size", kSize);
  require_string(c, "mlp_hidden_act", "relu2");
  require_string(c, "mamba_hidden_act", "silu");
  return out;
}

MambaLayer mamba(const WeightReader& s, const Config& c, const std::string& p) {
  const Dim hidden{c.hidden, "hidden_size"}, heads{c.mamba.heads, "mamba_num_heads"};
  const Dim inner{c.mamba.inner(), "mamba_num_heads * mamba_head_dim"};
  const Dim channels{c.mamba.channels(), "mamba_num_heads * mamba_head_dim + 2 * n_groups * ssm_state_size"};
  const Bias bias = c.bias ? Bias::present : Bias::none;
  MambaLayer m;
  m.shape = c.mamba;
  m.in = s.dense(p + "in_proj", {inner.n + channels.n + heads.n, "Mamba's z, x, B, C and dt"}, hidden, bias);
  m.out = s.dense(p + "out_proj", hidden, inner, bias);
  // [channels, 1, taps] -> [taps, channels]
  const Tensor conv = s.floats(p + "conv1d.weight", {channels, {1, "1"}, {c.mamba.taps, "conv_kernel"}});
  Tensor taps(DType::f32, {c.mamba.taps, channels.n});
  for (int64_t i = 0; i < channels.n; ++i)
    for (int64_t t = 0; t < c.mamba.taps; ++t)
      taps.as<float>()[t * channels.n + i] = conv.as<float>()[i * c.mamba.taps + t];
  m.conv = s.to_device(taps);
  if (c.conv_bias) m.conv_bias = s.to_device(s.floats(p + "conv1d.bias", {channels}));
  m.dt_bias = s.to_device(s.floats(p + "dt_bias", {heads}));
  m.skip = s.to_device(s.floats(p + "D", {heads}));
  Tensor a = s.floats(p + "A_log", {heads});
  for (int64_t h = 0; h < heads.n; ++h) a.as<float>()[h] = -std::exp(a.as<float>()[h]);
  m.a = s.to_device(a);
  m.norm = s.norm(p + "norm.weight", inner, c.eps);
  return m;
}

Mlp mlp(const WeightReader& s, const Config& c, const std::string& p, Dim inter) {
  const Dim hidden{c.hidden, "hidden_size"};
  const Bias bias = c.mlp_bias ? Bias::present : Bias::none;
  return {false, s.dense(p + "up_proj", inter, hidden, bias), s.dense(p + "down_proj", hidden, inter, bias)};
}

MoeBlock moe_block(const WeightReader& s, const Config& c, const std::string& p, int64_t layer) {
  const Dim hidden{c.hidden, "hidden_size"}, latent{c.latent, "moe_latent_size"};
  const Bias bias = c.mlp_bias ? Bias::present : Bias::none;
  MoeBlock m =
      load_moe_block(s, c.moe, activation::Activation::relu2, p, layer, hidden, c.latent > 0 ? latent : hidden);
  if (c.latent > 0) {
    m.latent_in = s.dense(p + "fc1_latent_proj", latent, hidden, bias);
    m.latent_out = s.dense(p + "fc2_latent_proj", hidden, latent, bias);
  }
  if (c.shared > 0)
    m.shared = mlp(s, c, p + "shared_experts.",
                   {c.shared_inter * c.shared, "moe_shared_expert_intermediate_size * n_shared_experts"});
  else
    check_no_shared_experts(s, p);
  return m;
}

Mixer mixer(const WeightReader& s, const Config& c, const std::string& p, int64_t layer) {
  switch (c.kinds[static_cast<size_t>(layer)]) {
    case Kind::mamba:
      return mamba(s, c, p);
    case Kind::attention:
      return load_attention(s, c, c.head_dim, p);
    case Kind::mlp:
      return mlp(s, c, p, {c.inter, "intermediate_size"});
    case Kind::moe:
      return moe_block(s, c, p, layer);
  }
  fail(ErrorCode::internal, "layer {} has no kind", layer);
}
}  // namespace

CacheShape cache_of_nemotron_h(const WeightReader& s) {
  const Config c = read(s.config());
  CacheShape shape;
  for (const Kind kind : c.kinds) {
    if (kind == Kind::attention) shape.attention.push_back({c.kv_heads, c.head_dim, c.head_dim});
    if (kind == Kind::mamba) shape.mamba.push_back(c.mamba);
  }
  return shape;
}

Decoder::Parts load_nemotron_h(const WeightReader& s) {
  const Config c = read(s.config());
  const Dim hidden{c.hidden, "hidden_size"}, vocab{c.vocab, "vocab_size"};
  // The prefix is "backbone." in published checkpoints and "model." in those of transformers 5.
  const std::string embedding = s.first_of({"backbone.embeddings.weight", "model.embeddings.weight",
                                            "backbone.embed_tokens.weight", "model.embed_tokens.weight"});
  const std::string root = embedding.substr(0, embedding.find('.') + 1);
  s.warn_of_more_layers(root + "layers.", {static_cast<int64_t>(c.kinds.size()), "num_hidden_layers"});
  Decoder::Parts parts;
  parts.info.layers = static_cast<int64_t>(c.kinds.size());
  parts.info.max_positions = c.max_positions;
  parts.embedding = s.embedding(embedding, {vocab, hidden});
  for (int64_t i = 0; i < parts.info.layers; ++i) {
    const std::string p = fmt::format("{}layers.{}.", root, i);
    parts.sublayers.push_back({s.norm(p + "norm.weight", hidden, c.eps), mixer(s, c, p + "mixer.", i), true});
  }
  parts.final_norm = s.norm(s.first_of({root + "norm_f.weight", root + "norm.weight"}), hidden, c.eps);
  parts.head = c.tied ? s.tied_head("lm_head", parts.embedding) : s.dense("lm_head", vocab, hidden);
  return parts;
}

}  // namespace sluice::model
