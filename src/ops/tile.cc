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

typedef float Lanes8 __attribute__((vector_size(32)));
typedef float Lanes4 __attribute__((vector_size(16), aligned(4), may_alias));

// Always the same tree: lane j + lane j + 8, then + 4, + 2, + 1.
inline __attribute__((always_inline)) void fold(const Lanes& v, Lanes4& out) {
  const Lanes8 a = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                   __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  out = __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
}

inline __attribute__((always_inline)) float sum_lanes(const Lanes& v) {
  Lanes4 s;
  fold(v, s);
  return (s[0] + s[2]) + (s[1] + s[3]);
}

// The four sums at once: fold, transpose, add.
inline __attribute__((always_inline)) void store_sums(const Lanes& a, const Lanes& b, const Lanes& c, const Lanes& d,
                                                      float factor, float* out) {
  Lanes4 p, q, r, s;
  fold(a, p), fold(b, q), fold(c, r), fold(d, s);
  const Lanes4 pq01 = __builtin_shufflevector(p, q, 0, 4, 1, 5), pq23 = __builtin_shufflevector(p, q, 2, 6, 3, 7);
  const Lanes4 rs01 = __builtin_shufflevector(r, s, 0, 4, 1, 5), rs23 = __builtin_shufflevector(r, s, 2, 6, 3, 7);
  const Lanes4 pq = pq01 + pq23, rs = rs01 + rs23;  // [p0 + p2, q0 + q2, p1 + p3, q1 + q3]
  const Lanes4 even = __builtin_shufflevector(pq, rs, 0, 1, 4, 5), odd = __builtin_shufflevector(pq, rs, 2, 3, 6, 7);
  *reinterpret_cast<Lanes4*>(out) = (even + odd) * factor;
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
    store_sums(a, b, c, d, factor, out + i);
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
