// SPDX-License-Identifier: Apache-2.0
#include "model/config.h"

namespace sluice::model {

CommonConfig read_common(const io::Config& c) {
  CommonConfig out;
  out.vocab = c.integer("vocab_size", kSize);
  out.hidden = c.integer("hidden_size", kSize);
  out.max_positions = c.integer("max_position_embeddings", {1, int64_t{1} << 30});
  out.heads = c.integer("num_attention_heads", kCount);
  if (out.heads > out.hidden)
    c.refuse("num_attention_heads", fmt::format("is {}, more than hidden_size = {}", out.heads, out.hidden));
  out.kv_heads = c.integer("num_key_value_heads", kCount, out.heads);
  if (out.heads % out.kv_heads != 0)
    c.refuse("num_key_value_heads",
             fmt::format("is {}; it must divide num_attention_heads = {}", out.kv_heads, out.heads));
  out.tied = c.boolean("tie_word_embeddings", false);
  out.attention_bias = c.boolean("attention_bias", false);
  return out;
}

int64_t read_head_dim(const io::Config& c, const io::ConfigKeys& keys, const CommonConfig& common) {
  if (!c.has(keys) && common.hidden % common.heads != 0)
    c.refuse("num_attention_heads",
             fmt::format("is {}; without head_dim it must divide hidden_size = {}", common.heads, common.hidden));
  return c.integer(keys, {1, 4096}, common.hidden / common.heads);
}

namespace {
constexpr io::NumberRange kTheta{1.0, 1e12};
constexpr std::array<Named<ops::RopeType>, 3> kRopeTypes{
    {{ops::RopeType::plain, "default"}, {ops::RopeType::linear, "linear"}, {ops::RopeType::yarn, "yarn"}}};
}  // namespace

ops::RopeConfig read_rope(const io::Config& c, int64_t dim) {
  ops::RopeConfig rope;
  rope.dim = dim;
  const std::optional<io::Config> parameters = c.find_object("rope_parameters"),
                                  scaling = c.find_object("rope_scaling");
  if (parameters && parameters->has("rope_theta")) {
    rope.theta = parameters->number("rope_theta", kTheta);
    if (c.has("rope_theta") && c.number("rope_theta", kTheta) != rope.theta)
      c.refuse("rope_theta",
               fmt::format("is {}, but rope_parameters.rope_theta is {}", c.number("rope_theta", kTheta), rope.theta));
  } else {
    rope.theta = c.number("rope_theta", kTheta, 10000.0);
  }
  const std::optional<io::Config>& more = parameters ? parameters : scaling;
  if (!more || !more->has({"rope_type", "type"})) return rope;
  rope.type = more->choice({"rope_type", "type"}, kRopeTypes);
  if (rope.type == ops::RopeType::plain) return rope;
  rope.factor = more->number("factor", {1.0, 1e6});
  if (rope.type == ops::RopeType::linear) return rope;
  rope.original_max_positions = static_cast<double>(more->integer("original_max_position_embeddings", kSize));
  rope.beta_fast = more->number("beta_fast", {1e-3, 1e6}, rope.beta_fast);
  rope.beta_slow = more->number("beta_slow", {1e-3, 1e6}, rope.beta_slow);
  rope.mscale = more->number("mscale", {0.0, 100.0}, 0.0);
  rope.mscale_all_dim = more->number("mscale_all_dim", {0.0, 100.0}, 0.0);
  rope.truncate = more->boolean("truncate", true);
  if (more->has("attention_factor")) rope.attention_factor = more->number("attention_factor", {1e-3, 1e3});
  return rope;
}

void require_string(const io::Config& c, const char* key, std::string_view value) {
  const std::string given = c.string(key, value);
  if (given != value) fail(ErrorCode::unsupported, "{}: {} is \"{}\"; accepted: \"{}\"", c.source(), key, given, value);
}

void require_bool(const io::Config& c, const char* key, bool value, std::string_view why) {
  if (c.boolean(key, value) != value)
    fail(ErrorCode::unsupported, "{}: {} is {}; accepted: {} ({})", c.source(), key, !value, value, why);
}

}  // namespace sluice::model
