// SPDX-License-Identifier: Apache-2.0
#include "model/config.h"

#include <tuple>

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

// The base of the rotary embedding, from every place that states it.
double read_theta(std::initializer_list<std::pair<std::string_view, std::optional<io::Config>>> places) {
  std::optional<double> theta;
  std::string_view first;
  for (const auto& [name, object] : places) {
    if (!object || !object->has("rope_theta")) continue;
    const double value = object->number("rope_theta", kTheta);
    if (theta && value != *theta)
      object->refuse("rope_theta", fmt::format("is {}, but {} is {}", value, first, *theta));
    theta = value;
    first = name;
  }
  return theta.value_or(10000.0);
}

// `rope` with the type of an object and the values that go with it. Nothing when the object names no type:
// configurations may have rope_parameters with nothing but rope_theta beside a rope_scaling.
std::optional<ops::RopeConfig> read_typed(const std::optional<io::Config>& object, ops::RopeConfig rope) {
  const io::ConfigKeys type{"rope_type", "type"};
  if (!object || !object->has(type)) return std::nullopt;
  const io::Config& c = *object;
  rope.type = c.choice(type, kRopeTypes);
  if (rope.type == ops::RopeType::plain) return rope;
  rope.factor = c.number("factor", {1.0, 1e6});
  if (rope.type == ops::RopeType::linear) return rope;
  rope.original_max_positions = static_cast<double>(c.integer("original_max_position_embeddings", kSize));
  rope.beta_fast = c.number("beta_fast", {1e-3, 1e6}, rope.beta_fast);
  rope.beta_slow = c.number("beta_slow", {1e-3, 1e6}, rope.beta_slow);
  rope.mscale = c.number("mscale", {0.0, 100.0}, 0.0);
  rope.mscale_all_dim = c.number("mscale_all_dim", {0.0, 100.0}, 0.0);
  rope.truncate = c.boolean("truncate", true);
  if (c.has("attention_factor")) rope.attention_factor = c.number("attention_factor", {1e-3, 1e3});
  return rope;
}

bool same(const ops::RopeConfig& a, const ops::RopeConfig& b) {
  const auto members = [](const ops::RopeConfig& r) {
    return std::tie(r.type, r.dim, r.theta, r.factor, r.original_max_positions, r.beta_fast, r.beta_slow, r.mscale,
                    r.mscale_all_dim, r.attention_factor, r.truncate);
  };
  return members(a) == members(b);
}
}  // namespace

ops::RopeConfig read_rope(const io::Config& c, int64_t dim) {
  const std::optional<io::Config> parameters = c.find_object("rope_parameters"),
                                  scaling = c.find_object("rope_scaling");
  ops::RopeConfig rope;
  rope.dim = dim;
  rope.theta =
      read_theta({{"rope_theta", c}, {"rope_parameters.rope_theta", parameters}, {"rope_scaling.rope_theta", scaling}});
  const std::optional<ops::RopeConfig> typed = read_typed(parameters, rope), scaled = read_typed(scaling, rope);
  if (typed && scaled && !same(*typed, *scaled))
    c.refuse("rope_scaling",
             fmt::format("says another rotary embedding ({}) than rope_parameters ({}); they must agree",
                         name_of(kRopeTypes, scaled->type), name_of(kRopeTypes, typed->type)));
  if (typed) return *typed;
  return scaled.value_or(rope);
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
