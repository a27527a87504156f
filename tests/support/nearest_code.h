// SPDX-License-Identifier: Apache-2.0
// An independent definition of the small floating-point formats: values from their fields with ldexp, rounding by
// searching the nearest value in double precision. Shares nothing with src/format.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace sluice::test {

// Non-negative values of a sign/exponent/mantissa format in the order of their codes.
inline std::vector<double> small_float_values(int mantissa_bits, int bias, int count) {
  std::vector<double> values;
  for (int code = 0; code < count; ++code) {
    const int e = code >> mantissa_bits, m = code & ((1 << mantissa_bits) - 1);
    values.push_back(e == 0 ? std::ldexp(m, 1 - bias - mantissa_bits)
                            : std::ldexp((1 << mantissa_bits) + m, e - bias - mantissa_bits));
  }
  return values;
}

inline const std::vector<double>& e4m3_values() {
  static const auto values = small_float_values(3, 7, 127);  // 127 is NaN
  return values;
}
inline const std::vector<double>& e2m1_values() {
  static const auto values = small_float_values(1, 1, 8);
  return values;
}

// Index of the value nearest to |x|; the even index at a tie; the last one beyond the end.
inline int nearest_index(const std::vector<double>& values, double x) {
  const double a = std::fabs(x);
  if (a >= values.back()) return static_cast<int>(values.size()) - 1;
  const auto above = static_cast<int>(std::upper_bound(values.begin(), values.end(), a) - values.begin());
  const int below = above - 1;
  const double up = values[static_cast<size_t>(above)] - a, down = a - values[static_cast<size_t>(below)];
  if (up == down) return below % 2 == 0 ? below : above;
  return up < down ? above : below;
}

inline uint8_t nearest_e4m3(double x) {
  if (std::isnan(x)) return static_cast<uint8_t>(std::signbit(x) ? 0xff : 0x7f);
  return static_cast<uint8_t>(nearest_index(e4m3_values(), x) | (std::signbit(x) ? 0x80 : 0));
}
inline uint8_t nearest_e2m1(double x) {
  if (std::isnan(x)) return 7;
  return static_cast<uint8_t>(nearest_index(e2m1_values(), x) | (std::signbit(x) ? 8 : 0));
}

inline double e4m3_value(uint8_t code) {
  if ((code & 0x7f) == 0x7f) return std::nan("");
  const double v = e4m3_values()[code & 0x7f];
  return code & 0x80 ? -v : v;
}
inline double e2m1_value(uint8_t code) {
  const double v = e2m1_values()[code & 7];
  return code & 8 ? -v : v;
}

// The byte of the smallest power of two >= x; byte 0 up to 2^-127; at most 254.
inline uint8_t e8m0_at_least(double x) {
  if (std::isnan(x)) return 255;
  if (x <= std::ldexp(1.0, -127)) return 0;
  int e = 0;
  const double m = std::frexp(x, &e);  // x = m * 2^e, m in [0.5, 1)
  const int b = std::min(std::isinf(x) ? 254 : (m == 0.5 ? e - 1 : e) + 127, 254);
  return static_cast<uint8_t>(b);
}
// As implementations read it: byte 0 is zero.
inline double e8m0_value(uint8_t b) { return b == 255 ? std::nan("") : b == 0 ? 0.0 : std::ldexp(1.0, b - 127); }

}  // namespace sluice::test
