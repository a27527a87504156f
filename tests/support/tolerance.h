// SPDX-License-Identifier: Apache-2.0
// How far float32 arithmetic may be from the reference, derived from sizes, magnitudes and rounding points. A value
// carries `slack`: the true float32 result lies within value +- slack. A rounding point turns slack into "which codes
// can this interval round to", so a value that sits near a boundary may be one code off and no other value may.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/reference_quantize.h"

namespace sluice::test {

struct Bounded {
  double value = 0, slack = 0;
};

// FP8 tensor cores align the 32 products of an instruction to the largest and cut what lies 2^-13 below it: where one
// outlier is the sum, the others lose 31 halves of that on average, 2^-9 of it. Seen on an H200: 1.14 * 2^-10 in 2 *
// 10^7 sums with outliers.
inline constexpr double kFp8TensorCoreError = 0x1p-9;

// What an implementation's arithmetic is made of.
struct Arithmetic {
  double unit = 0x1p-24;  // half an ulp of the accumulator
  // Rounding errors of a sum of n terms grow like lambda * sqrt(n) * unit with a probability that lambda sets, in any
  // order of summation (Higham and Mary 2019): 4 lets one in several thousand sums out; 6 one in 10^7.
  double lambda = 6;
  double product_error = 0;  // of matrix products, as a share of their magnitude: units that keep fewer bits
  double sum_error(double terms) const {
    return (lambda * std::sqrt(terms) + 6) * unit;
  }  // 6: scales, bias, conversion
};

// The values that round(x) may take for x in the interval; round must be monotone.
template <class Round>
Bounded through(const Bounded& x, Round&& round) {
  const double centre = round(x.value);
  return {centre, std::max(std::fabs(round(x.value + x.slack) - centre), std::fabs(round(x.value - x.slack) - centre))};
}

// A row through an input format: the scales too depend on values that carry slack. Every mix of the smallest, the
// middle and the largest row scale, group scale and value is rounded. Codes and rounded scales change in steps, so the
// corners show all of them. A float32 scale does not: a value that the smallest scale rounds up may still be rounded
// up by a larger one, so each corner's code is also taken times the smallest and the largest such scale.
inline void round_bounded_row(format::InputFormat f, Bounded* row, int64_t n, double input_scale) {
  if (f == format::InputFormat::plain) return;
  struct Range {
    double low = 0, middle = 0, high = 0;
    void add(const Bounded& x) {
      const double a = std::fabs(x.value);
      low = std::max(low, a - x.slack);
      middle = std::max(middle, a);
      high = std::max(high, a + x.slack);
    }
  };
  Range whole;
  for (int64_t i = 0; i < n; ++i) whole.add(row[i]);
  const int64_t group = reference_group(f) ? reference_group(f) : n;
  for (int64_t begin = 0; begin < n; begin += group) {
    const int64_t end = std::min(begin + group, n);
    Range part;
    for (int64_t i = begin; i < end; ++i) part.add(row[i]);
    for (int64_t i = begin; i < end; ++i) {
      const Bounded x = row[i];
      const double centre =
          reference_code(f, to_f32(x.value), to_f32(part.middle), to_f32(whole.middle), input_scale).value();
      if (x.slack == 0 && part.low == part.high && whole.low == whole.high) {
        row[i] = {centre, 0};
        continue;
      }
      std::vector<ReferenceCode> corners;
      for (double r : {whole.low, whole.middle, whole.high})
        for (double g : {part.low, part.middle, part.high})
          for (double v : {x.value - x.slack, x.value, x.value + x.slack})
            corners.push_back(reference_code(f, to_f32(v), to_f32(g), to_f32(r), input_scale));
      const auto f32_scale = [f](const ReferenceCode& c) {
        return f == format::InputFormat::fp8_group ? c.scale : c.row_scale;
      };
      const auto [smallest, largest] = std::minmax_element(
          corners.begin(), corners.end(),
          [&](const ReferenceCode& a, const ReferenceCode& b) { return f32_scale(a) < f32_scale(b); });
      double slack = 0;
      for (const ReferenceCode& c : corners)
        for (const double scale : {f32_scale(*smallest), f32_scale(*largest)})
          slack = std::max(slack, std::fabs(c.value() / f32_scale(c) * scale - centre));
      row[i] = {centre, slack};
    }
  }
}

}  // namespace sluice::test
