// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/tile.h"

#include <cstring>
#include <limits>

#include "ops/cpu/clones.h"
#include "ops/cpu/exp.h"

namespace sluice::ops::cpu {

namespace {
using kernels::cpu::SoftmaxArgs;

// Sixteen floats whatever the machine's width: the compiler splits them, the arithmetic stays the same.
typedef float Lanes __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(64)));

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

// The largest that is no NaN; minus infinity if all are.
inline __attribute__((always_inline)) float max_lanes(const Lanes& v) {
  const Lanes8 a = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
               b = __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  const Lanes8 c = a > b ? a : b;
  const Lanes4 d = __builtin_shufflevector(c, c, 0, 1, 2, 3), e = __builtin_shufflevector(c, c, 4, 5, 6, 7);
  const Lanes4 f = d > e ? d : e;
  const float g = f[0] > f[2] ? f[0] : f[2], h = f[1] > f[3] ? f[1] : f[3];
  return g > h ? g : h;
}

// exp_float (exp.h) of values that are not positive: there 2^n is a float of its own.
inline __attribute__((always_inline)) void exp_lanes(Lanes& x) {
  const Lanes low = Lanes{} + kExpLow;
  const Lanes t = x < low ? low : x;
  Lanes p, shifted;
  exp_parts(t, p, shifted);
  // The low bits of `shifted` are n.
  const Words power = (__builtin_bit_cast(Words, shifted) << 23) + (127u << 23);
  const Lanes y = p * __builtin_bit_cast(Lanes, power);
  x = x < low ? Lanes{} : y;
}

constexpr int kVectors = kTile / 16;
static_assert(kTile % 32 == 0);

constexpr uint32_t kUpperHalf = 0xffff0000;
typedef uint32_t WordsInMemory __attribute__((vector_size(64), aligned(4), may_alias));

// The scaled scores of query i; minus infinity where it sees none.
inline __attribute__((always_inline)) void scaled_scores(const SoftmaxArgs& t, int64_t i, Lanes (&v)[kVectors]) {
  const Lanes* s = reinterpret_cast<const Lanes*>(t.scores + i * kTile);
#pragma GCC unroll 16
  for (int j = 0; j < kVectors; ++j) v[j] = s[j] * t.scale;
  const int64_t count = t.seen + i / t.per_row;
  if (count >= kTile) return;
  const Words numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const Lanes none = Lanes{} - std::numeric_limits<float>::infinity();
#pragma GCC unroll 16
  for (int j = 0; j < kVectors; ++j)
    v[j] = numbers + 16u * static_cast<uint32_t>(j) < static_cast<uint32_t>(count) ? v[j] : none;
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

// One step of a transpose: the upper right block of every square of 2n x 2n values changes places with the lower left.
inline __attribute__((always_inline)) void exchange8(Lanes& a, Lanes& b) {
  const Lanes low = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
  b = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  a = low;
}
inline __attribute__((always_inline)) void exchange4(Lanes& a, Lanes& b) {
  const Lanes low = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
  b = __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  a = low;
}
inline __attribute__((always_inline)) void exchange2(Lanes& a, Lanes& b) {
  const Lanes low = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
  b = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  a = low;
}
inline __attribute__((always_inline)) void exchange1(Lanes& a, Lanes& b) {
  const Lanes low = __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
  b = __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  a = low;
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

SLUICE_CLONES void softmax_tile(const SoftmaxArgs& t) {
  // Maxima first, so that all queries' factors are computed side by side. A NaN does not count: it shows in the sum.
  for (int64_t i = 0; i < t.queries; ++i) {
    Lanes v[kVectors];
    scaled_scores(t, i, v);
    Lanes largest = Lanes{} - std::numeric_limits<float>::infinity();
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) largest = v[j] > largest ? v[j] : largest;
    const float m = max_lanes(largest);
    t.keep[i] = m > t.maximum[i] ? m : t.maximum[i];
  }
  for (int64_t i = 0; i < t.queries; ++i) {
    const float m = t.keep[i];
    t.keep[i] = exp_float(t.maximum[i] - m);
    t.maximum[i] = m;
  }
  for (int64_t i = 0; i < t.queries; ++i) {
    Lanes v[kVectors];
    scaled_scores(t, i, v);
    Lanes total{};
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      v[j] -= t.maximum[i];
      exp_lanes(v[j]);
      total += v[j];
    }
    Lanes* out = reinterpret_cast<Lanes*>(t.scores + i * kTile);
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) out[j] = v[j];
    t.sum[i] = t.sum[i] * t.keep[i] + sum_lanes(total);
  }
}

SLUICE_CLONES void split_row(const float* x, int64_t n, int64_t words, uint32_t* out, int64_t part_stride) {
  for (int64_t i = 0; i < words; ++i) {
    float a = 2 * i < n ? x[2 * i] : 0.0f, b = 2 * i + 1 < n ? x[2 * i + 1] : 0.0f;
    for (int64_t part = 0; part < kParts; ++part) {
      const uint32_t low = __builtin_bit_cast(uint32_t, a) & kUpperHalf;
      const uint32_t high = __builtin_bit_cast(uint32_t, b) & kUpperHalf;
      out[part * part_stride + i] = (low >> 16) | high;
      a -= __builtin_bit_cast(float, low);
      b -= __builtin_bit_cast(float, high);
    }
  }
}

SLUICE_CLONES void pair_rows(const void* rows, int64_t stride, int64_t count, int64_t words, uint32_t* out) {
  const auto* from = static_cast<const uint32_t*>(rows);
  for (int64_t i = 0; i < kTile / 2; ++i, out += 2 * words) {
    const int64_t first = i / 16 * 32 + i % 16, second = first + 16;
    for (int64_t c = 0; c < words; c += 16) {
      Words a{}, b{};
      if (first < count) a = *reinterpret_cast<const WordsInMemory*>(from + first * stride + c);
      if (second < count) b = *reinterpret_cast<const WordsInMemory*>(from + second * stride + c);
      *reinterpret_cast<WordsInMemory*>(out + 2 * c) = (a & ~kUpperHalf) | (b << 16);
      *reinterpret_cast<WordsInMemory*>(out + 2 * c + 16) = (a >> 16) | (b & kUpperHalf);
    }
  }
}

void clear_paired_row(uint32_t* pairs, int64_t words, int64_t i) {
  uint32_t* row = pairs + (i / 32 * 16 + i % 16) * 2 * words;
  const uint32_t keep = i % 32 < 16 ? kUpperHalf : ~kUpperHalf;
  for (int64_t c = 0; c < 2 * words; ++c) row[c] &= keep;
}

SLUICE_CLONES void transpose_rows(const void* rows, int64_t stride, int64_t width, float* out) {
  const auto* from = static_cast<const float*>(rows);
  for (int64_t c = 0; c < width; c += 16) {
    Lanes v[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) v[i] = *reinterpret_cast<const Lanes*>(from + i * stride + c);
#pragma GCC unroll 16
    for (int i = 0; i < 8; ++i) exchange8(v[i], v[i + 8]);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i)
      if ((i & 4) == 0) exchange4(v[i], v[i + 4]);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i)
      if ((i & 2) == 0) exchange2(v[i], v[i + 2]);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) exchange1(v[i], v[i + 1]);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) *reinterpret_cast<Lanes*>(out + (c + i) * kTile) = v[i];
  }
}

SLUICE_CLONES void finish_row(float* x, int64_t n, bool split, float sum, float scale) {
  for (int64_t c = 0; c < n; c += 32) {
    Lanes* p = reinterpret_cast<Lanes*>(x + c);
    const Lanes a = p[0] / sum * scale, b = p[1] / sum * scale;
    if (split) {
      p[0] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      p[1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    } else {
      p[0] = a, p[1] = b;
    }
  }
}

}  // namespace sluice::ops::cpu
