// SPDX-License-Identifier: Apache-2.0
// The keys of config.json that all families share, with the range of every value.
#pragma once

#include "io/config.h"
#include "io/quote.h"
#include "ops/rope.h"

namespace sluice::model {

// Generous bounds that keep every product of sizes far from 2^63.
inline constexpr io::IntRange kSize{1, int64_t{1} << 24};
inline constexpr io::IntRange kCount{1, 1 << 16};
inline constexpr io::NumberRange kEpsilon{1e-12, 0.1};
inline constexpr io::NumberRange kScale{1e-6, 1e6};

struct CommonConfig {
  int64_t vocab = 0, hidden = 0, max_positions = 0;
  int64_t heads = 0, kv_heads = 0;
  bool tied = false, attention_bias = false;
};
CommonConfig read_common(const io::Config& config);

// Columns of a head; absent: hidden_size / num_attention_heads, which must then be whole.
int64_t read_head_dim(const io::Config& config, const io::ConfigKeys& keys, const CommonConfig& common);

// rope_parameters (transformers 5), or rope_theta and rope_scaling (published checkpoints). Where several of them state
// the same thing, they must agree. dim: rotated values per head.
ops::RopeConfig read_rope(const io::Config& config, int64_t dim);

// What a name of the table stands for. Throws unsupported for any other: `what` is "x"; accepted: a, b, c.
template <class Enum, size_t N>
Enum parse_supported(const std::array<Named<Enum>, N>& table, const std::string& what, std::string_view name) {
  try {
    return parse_name(table, what, io::printable(name));
  } catch (const Error& e) {
    fail(ErrorCode::unsupported, "{}", e.what());
  }
}

// Throws unsupported unless the key is absent or has the only value that is implemented.
void require_string(const io::Config& config, const char* key, std::string_view value);
void require_bool(const io::Config& config, const char* key, bool value, std::string_view why);

}  // namespace sluice::model
