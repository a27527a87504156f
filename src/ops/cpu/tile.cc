// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/tile.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/cpu/micro/inline.h"
#include "ops/cpu/clones.h"
#include "ops/cpu/exp.h"

namespace sluice::ops::cpu {

namespace {
using kernels::cpu::SoftmaxArgs;

// Sums have sixteen lanes whatever the machine's width, so that the arithmetic stays the same: kParts vectors.
constexpr int kLanes = 16;
template <int kBytes>
struct Level {
  typedef float F __attribute__((vector_size(kBytes)));
  typedef uint32_t U __attribute__((vector_size(kBytes)));
  typedef int32_t I __attribute__((vector_size(kBytes)));
  typedef float FInMemory __attribute__((vector_size(kBytes), aligned(4), may_alias));
  typedef uint32_t UInMemory __attribute__((vector_size(kBytes), aligned(4), may_alias));
  static constexpr int kWidth = kBytes / 4;
  static constexpr int kParts = kLanes / kWidth;
};
template <int kBytes>
using Lanes = typename Level<kBytes>::F[Level<kBytes>::kParts];

typedef float Lanes8 __attribute__((vector_size(32)));
typedef float Lanes4 __attribute__((vector_size(16)));

template <int kBytes>
SLUICE_INLINE const typename Level<kBytes>::FInMemory& at(const float* p) {
  return *reinterpret_cast<const typename Level<kBytes>::FInMemory*>(p);
}
template <int kBytes>
SLUICE_INLINE typename Level<kBytes>::FInMemory& at(float* p) {
  return *reinterpret_cast<typename Level<kBytes>::FInMemory*>(p);
}

struct Sum {
  template <class F>
  SLUICE_INLINE void add(F& a, const F& b) {
    a += b;
  }
};
// A NaN in `a` does not count.
struct Largest {
  template <class F>
  SLUICE_INLINE void add(F& a, const F& b) {
    a = a > b ? a : b;
  }
};

// Always the same tree: lane j with lane j + 8, then + 4.
template <int kBytes, class Op>
SLUICE_INLINE void fold(const Lanes<kBytes>& v, Lanes4& out) {
  Lanes4 high;
  if constexpr (kBytes == 16) {
    out = v[0], high = v[1];
    Op::add(out, v[2]), Op::add(high, v[3]);
  } else {
    Lanes8 a, b;
    if constexpr (kBytes == 32) {
      a = v[0], b = v[1];
    } else {
      a = __builtin_shufflevector(v[0], v[0], 0, 1, 2, 3, 4, 5, 6, 7);
      b = __builtin_shufflevector(v[0], v[0], 8, 9, 10, 11, 12, 13, 14, 15);
    }
    Op::add(a, b);
    out = __builtin_shufflevector(a, a, 0, 1, 2, 3);
    high = __builtin_shufflevector(a, a, 4, 5, 6, 7);
  }
  Op::add(out, high);
}

// Then + 2, + 1.
template <int kBytes, class Op>
SLUICE_INLINE float fold_all(const Lanes<kBytes>& v) {
  Lanes4 s;
  fold<kBytes, Op>(v, s);
  float a = s[0], b = s[1];
  Op::add(a, s[2]), Op::add(b, s[3]), Op::add(a, b);
  return a;
}

// The four sums at once: transpose, add.
SLUICE_INLINE void store_sums(const Lanes4 (&v)[4], float factor, float* out) {
  const Lanes4 &p = v[0], &q = v[1], &r = v[2], &s = v[3];
  const Lanes4 pq01 = __builtin_shufflevector(p, q, 0, 4, 1, 5), pq23 = __builtin_shufflevector(p, q, 2, 6, 3, 7);
  const Lanes4 rs01 = __builtin_shufflevector(r, s, 0, 4, 1, 5), rs23 = __builtin_shufflevector(r, s, 2, 6, 3, 7);
  const Lanes4 pq = pq01 + pq23, rs = rs01 + rs23;  // [p0 + p2, q0 + q2, p1 + p3, q1 + q3]
  const Lanes4 even = __builtin_shufflevector(pq, rs, 0, 1, 4, 5), odd = __builtin_shufflevector(pq, rs, 2, 3, 6, 7);
  at<16>(out) = (even + odd) * factor;
}

// The lanes' sums of kRows rows, folded to four.
template <int kBytes, int kRows>
SLUICE_INLINE void dot(const float* q, const float* k, int64_t stride, Lanes4* out) {
  using L = Level<kBytes>;
  Lanes<kBytes> sums[kRows] = {};
  for (int64_t j = 0; j < stride; j += kLanes)
#pragma GCC unroll 4
    for (int p = 0; p < L::kParts; ++p) {
      const typename L::F x = at<kBytes>(q + j + p * L::kWidth);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sums[r][p] += x * at<kBytes>(k + r * stride + j + p * L::kWidth);
    }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) fold<kBytes, Sum>(sums[r], out[r]);
}

template <int kBytes>
SLUICE_INLINE void dot_level(const float* q, const float* rows, int64_t stride, int64_t count, float factor,
                             float* out) {
  constexpr int kRows = kBytes == 16 ? 2 : 4;  // whose sums fill half of the registers
  for (int64_t i = 0; i < count; i += 4) {
    Lanes4 sums[4];
#pragma GCC unroll 2
    for (int r = 0; r < 4; r += kRows) dot<kBytes, kRows>(q, rows + (i + r) * stride, stride, sums + r);
    store_sums(sums, factor, out + i);
  }
}

template <int kBytes, int kVectors>
SLUICE_INLINE void mix_columns(const float* p, const float* rows, int64_t stride, int64_t count, float keep,
                               float* acc) {
  using F = typename Level<kBytes>::F;
  constexpr int kWidth = Level<kBytes>::kWidth;
  F sums[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) sums[v] = at<kBytes>(acc + v * kWidth) * keep;
  for (int64_t i = 0; i < count; ++i, rows += stride)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[v] += at<kBytes>(rows + v * kWidth) * p[i];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) at<kBytes>(acc + v * kWidth) = sums[v];
}

template <int kBytes>
SLUICE_INLINE void mix_level(const float* p, const float* rows, int64_t stride, int64_t count, int64_t dims, float keep,
                             float* acc) {
  constexpr int kVectors = kBytes == 64 ? 4 : 8, kColumns = kVectors * Level<kBytes>::kWidth;
  int64_t j = 0;
  for (; j + kColumns <= dims; j += kColumns) mix_columns<kBytes, kVectors>(p, rows + j, stride, count, keep, acc + j);
  for (; j < dims; j += kLanes) mix_columns<kBytes, Level<kBytes>::kParts>(p, rows + j, stride, count, keep, acc + j);
}

// exp_float (exp.h) of values that are not positive: there 2^n is a float of its own.
template <int kBytes>
SLUICE_INLINE void exp_lanes(typename Level<kBytes>::F& x) {
  using F = typename Level<kBytes>::F;
  using U = typename Level<kBytes>::U;
  const F low = F{} + kExpLow;
  const F t = x < low ? low : x;
  F p, shifted;
  exp_parts(t, p, shifted);
  // The low bits of `shifted` are n.
  const U power = (__builtin_bit_cast(U, shifted) << 23) + (127u << 23);
  const F y = p * __builtin_bit_cast(F, power);
  x = x < low ? F{} : y;
}

constexpr float kUnseen = -std::numeric_limits<float>::infinity();

template <int kBytes>
using Scores = typename Level<kBytes>::F[kTile / Level<kBytes>::kWidth];

// The scaled scores of query i; kUnseen where it sees none.
template <int kBytes>
SLUICE_INLINE void scaled_scores(const SoftmaxArgs& t, int64_t i, Scores<kBytes>& v) {
  using L = Level<kBytes>;
  constexpr int kVectors = kTile / L::kWidth;
  const float* s = t.scores + i * kTile;
#pragma GCC unroll 16
  for (int j = 0; j < kVectors; ++j) v[j] = at<kBytes>(s + j * L::kWidth) * t.scale;
  const int64_t count = t.seen + i / t.per_row;
  if (count >= kTile) return;
  typename L::I numbers;
#pragma GCC unroll 16
  for (int k = 0; k < L::kWidth; ++k) numbers[k] = k;
#pragma GCC unroll 16
  for (int j = 0; j < kVectors; ++j)
    v[j] = numbers + j * L::kWidth < static_cast<int32_t>(count) ? v[j] : typename L::F{} + kUnseen;
}

template <int kBytes>
SLUICE_INLINE void softmax_level(const SoftmaxArgs& t) {
  using L = Level<kBytes>;
  using F = typename L::F;
  constexpr int kVectors = kTile / L::kWidth;
  // Maxima first, so that all queries' factors are computed side by side. A NaN does not count: it shows in the sum.
  for (int64_t i = 0; i < t.queries; ++i) {
    Scores<kBytes> v;
    scaled_scores<kBytes>(t, i, v);
    Lanes<kBytes> largest;
#pragma GCC unroll 4
    for (int p = 0; p < L::kParts; ++p) largest[p] = F{} + kUnseen;
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      F& m = largest[j % L::kParts];
      m = v[j] > m ? v[j] : m;
    }
    const float m = fold_all<kBytes, Largest>(largest);
    t.keep[i] = m > t.maximum[i] ? m : t.maximum[i];
  }
  for (int64_t i = 0; i < t.queries; ++i) {
    const float m = t.keep[i];
    t.keep[i] = exp_float(t.maximum[i] - m);
    t.maximum[i] = m;
  }
  for (int64_t i = 0; i < t.queries; ++i) {
    Scores<kBytes> v;
    scaled_scores<kBytes>(t, i, v);
    Lanes<kBytes> total = {};
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      v[j] -= t.maximum[i];
      exp_lanes<kBytes>(v[j]);
      total[j % L::kParts] += v[j];
    }
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) at<kBytes>(t.scores + i * kTile + j * L::kWidth) = v[j];
    t.sum[i] = t.sum[i] * t.keep[i] + fold_all<kBytes, Sum>(total);
  }
}

constexpr uint32_t kUpperHalf = 0xffff0000;

template <int kBytes>
SLUICE_INLINE void pair_level(const uint32_t* from, int64_t stride, int64_t count, int64_t words, uint32_t* out) {
  using U = typename Level<kBytes>::U;
  using InMemory = typename Level<kBytes>::UInMemory;
  for (int64_t i = 0; i < kTile / 2; ++i, out += 2 * words) {
    const int64_t first = i / kLanes * 2 * kLanes + i % kLanes, second = first + kLanes;
    for (int64_t c = 0; c < words; c += Level<kBytes>::kWidth) {
      U a{}, b{};
      if (first < count) a = *reinterpret_cast<const InMemory*>(from + first * stride + c);
      if (second < count) b = *reinterpret_cast<const InMemory*>(from + second * stride + c);
      uint32_t* to = out + c / kLanes * 2 * kLanes + c % kLanes;
      *reinterpret_cast<InMemory*>(to) = (a & ~kUpperHalf) | (b << 16);
      *reinterpret_cast<InMemory*>(to + kLanes) = (a >> 16) | (b & kUpperHalf);
    }
  }
}

// One step of a transpose: the upper right block of every square of 2n x 2n values changes places with the lower left,
// n = kStep.
template <int kStep, class F, int... kI>
SLUICE_INLINE void exchange(F& a, F& b, std::integer_sequence<int, kI...>) {
  constexpr int kWidth = sizeof...(kI);
  const F low = __builtin_shufflevector(a, b, ((kI & kStep) == 0 ? kI : kWidth + kI - kStep)...);
  b = __builtin_shufflevector(a, b, ((kI & kStep) == 0 ? kI + kStep : kWidth + kI)...);
  a = low;
}
template <int kStep, class F, int kWidth>
SLUICE_INLINE void transpose(F (&v)[kWidth]) {
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i)
    if ((i & kStep) == 0) exchange<kStep>(v[i], v[i + kStep], std::make_integer_sequence<int, kWidth>{});
  if constexpr (kStep > 1) transpose<kStep / 2>(v);
}

template <int kBytes>
SLUICE_INLINE void transpose_level(const float* from, int64_t stride, int64_t width, float* out) {
  using F = typename Level<kBytes>::F;
  constexpr int kWidth = Level<kBytes>::kWidth;
  for (int64_t c = 0; c < width; c += kWidth)
    for (int64_t r = 0; r < kLanes; r += kWidth) {
      F v[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) v[i] = at<kBytes>(from + (r + i) * stride + c);
      transpose<kWidth / 2>(v);
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) at<kBytes>(out + (c + i) * kTile + r) = v[i];
    }
}

// [a0, b0, a1, b1, ..].
template <class F, int... kI>
SLUICE_INLINE void interleave(const F& a, const F& b, float* out, std::integer_sequence<int, kI...>) {
  constexpr int kWidth = sizeof...(kI);
  at<sizeof(F)>(out) = __builtin_shufflevector(a, b, (kI / 2 + kI % 2 * kWidth)...);
  at<sizeof(F)>(out + kWidth) = __builtin_shufflevector(a, b, (kWidth / 2 + kI / 2 + kI % 2 * kWidth)...);
}

template <int kBytes>
SLUICE_INLINE void finish_level(float* x, int64_t n, bool split, float sum, float scale) {
  using L = Level<kBytes>;
  using F = typename L::F;
  for (int64_t c = 0; c < n; c += 2 * kLanes) {
    F v[2 * L::kParts];
#pragma GCC unroll 8
    for (int p = 0; p < 2 * L::kParts; ++p) v[p] = at<kBytes>(x + c + p * L::kWidth) / sum * scale;
#pragma GCC unroll 4
    for (int p = 0; p < L::kParts; ++p) {
      float* out = x + c + 2 * p * L::kWidth;
      if (split)
        interleave(v[p], v[p + L::kParts], out, std::make_integer_sequence<int, L::kWidth>{});
      else
        at<kBytes>(out) = v[2 * p], at<kBytes>(out + L::kWidth) = v[2 * p + 1];
    }
  }
}
}  // namespace

void dot_rows(const float* q, const float* rows, int64_t stride, int64_t count, float factor, float* out) {
  at_level([=]<int kBytes>() SLUICE_INLINE_LAMBDA { dot_level<kBytes>(q, rows, stride, count, factor, out); });
}

void mix_rows(const float* p, const float* rows, int64_t stride, int64_t count, int64_t dims, float keep, float* acc) {
  at_level([=]<int kBytes>() SLUICE_INLINE_LAMBDA { mix_level<kBytes>(p, rows, stride, count, dims, keep, acc); });
}

void softmax_tile(const SoftmaxArgs& t) {
  at_level([&]<int kBytes>() SLUICE_INLINE_LAMBDA { softmax_level<kBytes>(t); });
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

void pair_rows(const void* rows, int64_t stride, int64_t count, int64_t words, uint32_t* out) {
  const auto* from = static_cast<const uint32_t*>(rows);
  at_level([=]<int kBytes>() SLUICE_INLINE_LAMBDA { pair_level<kBytes>(from, stride, count, words, out); });
}

void clear_paired_row(uint32_t* pairs, int64_t words, int64_t i) {
  uint32_t* row = pairs + (i / 32 * 16 + i % 16) * 2 * words;
  const uint32_t keep = i % 32 < 16 ? kUpperHalf : ~kUpperHalf;
  for (int64_t c = 0; c < 2 * words; ++c) row[c] &= keep;
}

void transpose_rows(const void* rows, int64_t stride, int64_t width, float* out) {
  const auto* from = static_cast<const float*>(rows);
  at_level([=]<int kBytes>() SLUICE_INLINE_LAMBDA { transpose_level<kBytes>(from, stride, width, out); });
}

void finish_row(float* x, int64_t n, bool split, float sum, float scale) {
  at_level([=]<int kBytes>() SLUICE_INLINE_LAMBDA { finish_level<kBytes>(x, n, split, sum, scale); });
}

}  // namespace sluice::ops::cpu
