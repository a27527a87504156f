// SPDX-License-Identifier: Apache-2.0
#include "ops/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/bf16.h"
#include "ops/parallel.h"

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

void rope_angles(const RopeFrequencies& f, std::span<const int32_t> positions, DType dtype, float* cosine,
                 float* sine) {
  for (const int32_t position : positions)
    for (const float inv_freq : f.inv_freq) {
      const float angle = inv_freq * static_cast<float>(position);
      float c = std::cos(angle) * f.attention_factor, s = std::sin(angle) * f.attention_factor;
      if (dtype == DType::bf16) c = round_to_bf16(c), s = round_to_bf16(s);
      *cosine++ = c;
      *sine++ = s;
    }
}

namespace {
struct Bf16Type {
  using Element = bf16_t;
  static float get(Element e) { return bf16_to_float(e); }
  static Element put(float f) { return float_to_bf16(f); }
  static float round(float f) { return round_to_bf16(f); }
};
struct F32Type {
  using Element = float;
  static float get(Element e) { return e; }
  static Element put(float f) { return f; }
  static float round(float f) { return f; }
};

template <class D>
void rotate(typename D::Element* x, int64_t half, int64_t step, int64_t partner, const float* c, const float* s) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = D::get(x[i * step]), b = D::get(x[i * step + partner]);
    x[i * step] = D::put(D::round(a * c[i]) - D::round(b * s[i]));
    x[i * step + partner] = D::put(D::round(b * c[i]) + D::round(a * s[i]));
  }
}
}  // namespace

void rope(Context& ctx, Matrix x, int64_t head_dim, int64_t first, int64_t half, RopeLayout layout, const float* cosine,
          const float* sine) {
  const int64_t step = layout == RopeLayout::halves ? 1 : 2, partner = layout == RopeLayout::halves ? half : 1;
  parallel_rows(ctx, x.rows, x.cols * 2, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t h = first; h < x.cols; h += head_dim) {
        const float *c = cosine + r * half, *s = sine + r * half;
        if (x.dtype == DType::bf16)
          rotate<Bf16Type>(static_cast<bf16_t*>(x.row(r)) + h, half, step, partner, c, s);
        else
          rotate<F32Type>(static_cast<float*>(x.row(r)) + h, half, step, partner, c, s);
      }
  });
}

}  // namespace sluice::ops
