// SPDX-License-Identifier: Apache-2.0
#include "ops/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sluice::ops {

namespace {
// Yarn (arXiv 2309.00071; transformers modeling_rope_utils.py, _compute_yarn_parameters): pairs that turn more than
// beta_fast times in the original context keep their frequency, those below beta_slow are interpolated by `factor`,
// a linear ramp over the pair's index in between.
void yarn(const RopeConfig& c, RopeFrequencies& f) {
  const auto correction_dim = [&](double rotations) {
    return static_cast<double>(c.dim) * std::log(c.original_max_positions / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(c.theta));
  };
  double low = correction_dim(c.beta_fast), high = correction_dim(c.beta_slow);
  if (c.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(c.dim - 1));
  if (low == high) high += 0.001;
  for (size_t i = 0; i < f.inv_freq.size(); ++i) {
    const float extrapolated = f.inv_freq[i];
    const float interpolated = 1.0f / (static_cast<float>(c.factor) / extrapolated);
    const auto ramp = static_cast<float>(std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0));
    f.inv_freq[i] = interpolated * ramp + extrapolated * (1.0f - ramp);
  }
  if (c.attention_factor)
    f.attention_factor = static_cast<float>(*c.attention_factor);
  else if (c.mscale != 0 && c.mscale_all_dim != 0)
    f.attention_factor = static_cast<float>(yarn_mscale(c.factor, c.mscale) / yarn_mscale(c.factor, c.mscale_all_dim));
  else
    f.attention_factor = static_cast<float>(yarn_mscale(c.factor, 1));
}
}  // namespace

double yarn_mscale(double scale, double mscale) { return scale <= 1 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0; }

RopeFrequencies rope_frequencies(const RopeConfig& c) {
  RopeFrequencies f;
  f.inv_freq.resize(static_cast<size_t>(c.dim / 2));
  // float32 powers: the frequencies that the models were trained with.
  for (size_t i = 0; i < f.inv_freq.size(); ++i)
    f.inv_freq[i] = 1.0f / std::pow(static_cast<float>(c.theta), static_cast<float>(2 * i) / static_cast<float>(c.dim));
  if (c.type == RopeType::linear)
    for (float& v : f.inv_freq) v /= static_cast<float>(c.factor);
  if (c.type == RopeType::yarn) yarn(c, f);
  return f;
}

}  // namespace sluice::ops
