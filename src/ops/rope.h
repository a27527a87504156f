// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding: the frequencies of a configuration.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace sluice::ops {

enum class RopeType : uint8_t { plain, linear, yarn };
enum class RopeLayout : uint8_t {
  halves,       // the pair (i, i + dim / 2) turns together
  interleaved,  // the pair (2i, 2i + 1)
};

// config.json's rope_parameters (transformers 5) or rope_theta + rope_scaling (published checkpoints).
struct RopeConfig {
  RopeType type = RopeType::plain;
  int64_t dim = 0;  // rotated values per head, even
  double theta = 10000;
  double factor = 1;  // linear, yarn
  // yarn only
  double original_max_positions = 0;
  double beta_fast = 32, beta_slow = 1;
  double mscale = 0, mscale_all_dim = 0;  // 0: not given
  std::optional<double> attention_factor;
  bool truncate = true;
};

// The angles of a position: inv_freq[i] * position for pair i; cos and sin are multiplied by attention_factor.
struct RopeFrequencies {
  std::vector<float> inv_freq;  // [dim / 2]
  float attention_factor = 1.0f;
};
RopeFrequencies rope_frequencies(const RopeConfig& config);

// 0.1 * mscale * ln(scale) + 1, or 1 when scale <= 1. DeepSeek multiplies the softmax scale by the square of
// yarn_mscale(factor, mscale_all_dim) (transformers modeling_deepseek_v3.py, yarn_apply_mscale).
double yarn_mscale(double scale, double mscale);

}  // namespace sluice::ops
