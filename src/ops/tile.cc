// SPDX-License-Identifier: Apache-2.0
#include "ops/tile.h"

#include <cstring>
#include <limits>

#include "ops/clones.h"
#include "ops/exp.h"

namespace sluice::ops {

namespace {
// Sixteen floats whatever the machine's width: the compiler splits them, the arithmetic stays the same.
typedef float Lanes __attribute__((vector_size(64), aligned(4), may_alias));

inline __attribute__((always_inline)) float sum_lanes(const Lanes& v) {
  float s[16];
  std::memcpy(s, &v, sizeof s);
  for (int width = 8; width > 0; width /= 2)
    for (int j = 0; j < width; ++j) s[j] += s[j + width];
  return s[0];
}
}  // namespace

SLUICE_CLONES void dot_rows(const float* q, const float* rows, int64_t stride, int64_t count, float factor,
                            float* out) {
  for (int64_t i = 0; i < count; i += 4) {
    const float* k = rows + i * stride;
    Lanes a{}, b{}, c{}, d{};
    for (int64_t j = 0; j < stride; j += 16) {
      const Lanes x = *reinterpret_cast<const Lanes*>(q + j);
      a += x * *reinterpret_cast<const Lanes*>(k + j);
      b += x * *reinterpret_cast<const Lanes*>(k + stride + j);
      c += x * *reinterpret_cast<const Lanes*>(k + 2 * stride + j);
      d += x * *reinterpret_cast<const Lanes*>(k + 3 * stride + j);
    }
    out[i] = factor * sum_lanes(a);
    out[i + 1] = factor * sum_lanes(b);
    out[i + 2] = factor * sum_lanes(c);
    out[i + 3] = factor * sum_lanes(d);
  }
}

SLUICE_CLONES void mix_rows(const float* p, const float* rows, int64_t stride, int64_t count, int64_t dims, float keep,
                            float* acc) {
  int64_t j = 0;
  for (; j + 64 <= dims; j += 64) {
    Lanes* out = reinterpret_cast<Lanes*>(acc + j);
    Lanes a = out[0] * keep, b = out[1] * keep, c = out[2] * keep, d = out[3] * keep;
    const float* row = rows + j;
    for (int64_t i = 0; i < count; ++i, row += stride) {
      const Lanes* v = reinterpret_cast<const Lanes*>(row);
      a += v[0] * p[i];
      b += v[1] * p[i];
      c += v[2] * p[i];
      d += v[3] * p[i];
    }
    out[0] = a, out[1] = b, out[2] = c, out[3] = d;
  }
  for (; j < dims; j += 16) {
    Lanes* out = reinterpret_cast<Lanes*>(acc + j);
    Lanes a = out[0] * keep;
    const float* row = rows + j;
    for (int64_t i = 0; i < count; ++i, row += stride) a += *reinterpret_cast<const Lanes*>(row) * p[i];
    out[0] = a;
  }
}

SLUICE_CLONES float softmax_tile(float* scores, int64_t count, float& maximum, float& sum) {
  float m = maximum;
  for (int64_t i = 0; i < count; ++i) m = scores[i] > m ? scores[i] : m;
  for (int64_t i = count; i < kTile; ++i) scores[i] = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < kTile; ++i) scores[i] = exp_float(scores[i] - m);
  Lanes lanes{};
  for (int64_t i = 0; i < kTile; i += 16) lanes += *reinterpret_cast<const Lanes*>(scores + i);
  const float keep = exp_float(maximum - m);
  sum = sum * keep + sum_lanes(lanes);
  maximum = m;
  return keep;
}

}  // namespace sluice::ops
