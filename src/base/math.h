// SPDX-License-Identifier: Apache-2.0
// Integer helpers for shapes.
#pragma once

#include <cstdint>
#include <optional>

#include "base/hd.h"

namespace sluice {

template <class T>
HD constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

template <class T>
HD constexpr T round_up(T a, T multiple) {
  return ceil_div(a, multiple) * multiple;
}

// a * b for non-negative sizes read from files; nothing when it does not fit.
inline std::optional<int64_t> checked_mul(int64_t a, int64_t b) {
  int64_t product = 0;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

}  // namespace sluice
