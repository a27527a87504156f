// SPDX-License-Identifier: Apache-2.0
// What the operations' results are held against: definitions in double, and what float32 arithmetic may be off by.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

#include "tensor/dtype.h"
#include "tests/support/random.h"
#include "tests/support/reference_quantize.h"

namespace sluice::ops {

inline constexpr DType kTypes[] = {DType::f32, DType::bf16};

// The generator of the running test, which the fixtures set anew.
inline std::mt19937& random() {
  static std::mt19937 engine;
  return engine;
}

struct FreshRandom {
  FreshRandom() { random() = test::rng(); }
};

inline float normal(float mean = 0, float deviation = 1) {
  return std::normal_distribution<float>(mean, deviation)(random());
}

// Half a unit in the last place of D, relative: what one rounding may cost.
inline double half_ulp(DType d) { return d == DType::f32 ? 0x1p-24 : 0x1p-8; }

// Sums of n squares in 16 or more lanes: relative error at most (n / 16 + 4) ulp, half of it after the square root.
inline double sum_error(int64_t n) { return (static_cast<double>(n) / 16 + 8) * 0x1p-24; }

// What a result in float32 arithmetic may be. Followed through a formula's roundings to D it is mostly one value of D,
// so that a rounding left out, or one too many, is seen.
struct Interval {
  double low = 0, high = 0;

  static Interval around(double v, double slack) { return {v - slack, v + slack}; }
  // One more operation in float32: `ulps` halves of a unit in the last place.
  Interval loosened(double ulps) const {
    return {low - std::abs(low) * ulps * 0x1p-24, high + std::abs(high) * ulps * 0x1p-24};
  }
  Interval rounded(DType d) const {
    if (d == DType::bf16) return {test::to_bf16(low), test::to_bf16(high)};
    return {test::to_f32(low), test::to_f32(high)};
  }
  Interval times(double v) const { return {std::min(low * v, high * v), std::max(low * v, high * v)}; }
  bool holds(double v) const { return low <= v && v <= high; }
};

// Of n values x(i), each rounded to D before and after the weight: what x * norm_factor * weight may be off by,
// relative.
inline double norm_error(DType d, int64_t n) { return 2.01 * half_ulp(d) + sum_error(n) + 4 * 0x1p-24; }

template <class F>
double norm_factor(int64_t n, float eps, F&& x) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x(i) * x(i);
  return 1 / std::sqrt(sum / static_cast<double>(n) + static_cast<double>(eps));
}

// D(weight * D(x * factor)), factor a norm_factor() of n values.
inline Interval normed(DType d, int64_t n, double x, double factor, double weight) {
  return Interval::around(x * factor, std::abs(x * factor) * (sum_error(n) + 3 * 0x1p-24))
      .rounded(d)
      .times(weight)
      .loosened(1)
      .rounded(d);
}

inline double silu(double x) { return x / (1 + std::exp(-x)); }
// It falls up to -1.2784645 and rises from there on.
inline Interval silu(Interval x) {
  const double a = silu(x.low), b = silu(x.high);
  const bool has_least = x.holds(-1.2784645);
  return {has_least ? -0.2784645428 : std::min(a, b), std::max(a, b)};
}

// A sum of products, and the sum of their sizes that its error is measured by.
struct Sum {
  double value = 0, size = 0;
  void add(double term) {
    value += term;
    size += std::abs(term);
  }
};

}  // namespace sluice::ops
