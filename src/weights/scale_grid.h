// SPDX-License-Identifier: Apache-2.0
// Where the block scales of one matrix [N, K] lie, and the element types of a format: the one place that turns
// FormatInfo into shapes.
#pragma once

#include <algorithm>

#include "base/math.h"
#include "format/formats.h"
#include "tensor/dtype.h"

namespace sluice::weights {

struct ScaleGrid {
  int64_t group_n = 1, group_k = 1;  // rows and columns that one scale covers, never 0
  int64_t rows = 1, cols = 1;        // scales of one matrix, row-major: scale of (n, k) at (n / group_n, k / group_k)
  int rank = 0;                      // dimensions after the expert: 0 (one per matrix), 1 (one per row), 2
};

inline ScaleGrid scale_grid(format::Format format, int64_t rows, int64_t cols) {
  const format::FormatInfo f = info(format);
  ScaleGrid g;
  g.group_n = f.group_n > 0 ? f.group_n : std::max<int64_t>(rows, 1);
  g.group_k = f.group_k > 0 ? f.group_k : std::max<int64_t>(cols, 1);
  g.rows = f.group_n > 0 ? ceil_div(rows, g.group_n) : 1;
  g.cols = f.group_k > 0 ? ceil_div(cols, g.group_k) : 1;
  g.rank = f.group_k > 0 ? 2 : f.group_n > 0 ? 1 : 0;
  return g;
}

constexpr DType code_type(const format::FormatInfo& f) {
  return f.bits == 16 ? DType::bf16 : f.bits == 8 ? DType::e4m3 : DType::u8;
}

constexpr DType scale_type(const format::FormatInfo& f) {
  return f.scale == format::ScaleType::e8m0   ? DType::e8m0
         : f.scale == format::ScaleType::e4m3 ? DType::e4m3
                                              : DType::f32;
}

}  // namespace sluice::weights
