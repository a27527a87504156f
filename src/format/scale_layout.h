// SPDX-License-Identifier: Apache-2.0
// Where the block scale of (row m, group k) lies in each published layout (docs/numerics.md, Scale layouts). Scales are
// one byte (UE8M0, e4m3) in linear, 128x4 and 8x4; transposed [K/128, T] is float32.
#pragma once

#include <array>
#include <cstdint>

#include "base/hd.h"
#include "base/math.h"
#include "base/named.h"

namespace sluice::format {

// Numbers are those of sluice_scale_layout (sluice/c/quantize.h): a zeroed struct means linear.
enum class ScaleLayout : uint8_t { linear = 0, swizzled_128x4 = 1, swizzled_8x4 = 2, transposed = 3 };

inline constexpr std::array<Named<ScaleLayout>, 4> kScaleLayouts{{{ScaleLayout::linear, "linear"},
                                                                  {ScaleLayout::swizzled_128x4, "128x4"},
                                                                  {ScaleLayout::swizzled_8x4, "8x4"},
                                                                  {ScaleLayout::transposed, "transposed"}}};

// m: row, k: group along K, cols: groups per row.
HD inline int64_t linear_offset(int64_t m, int64_t k, int64_t cols) { return m * cols + k; }

HD inline int64_t offset_128x4(int64_t m, int64_t k, int64_t cols) {
  return (m / 128 * ceil_div<int64_t>(cols, 4) + k / 4) * 512 + m % 32 * 16 + m % 128 / 32 * 4 + k % 4;
}

HD inline int64_t offset_8x4(int64_t m, int64_t k, int64_t cols) {
  return (m / 8 * ceil_div<int64_t>(cols, 4) + k / 4) * 32 + m % 8 * 4 + k % 4;
}

// [K/128, T]: the rows of one group are contiguous; stride is T or what it was padded to.
HD inline int64_t transposed_offset(int64_t m, int64_t k, int64_t stride) { return k * stride + m; }

// Elements that rows x cols scales take in a layout, padding included.
HD constexpr int64_t scale_elements(ScaleLayout layout, int64_t rows, int64_t cols) {
  return layout == ScaleLayout::swizzled_128x4 ? round_up<int64_t>(rows, 128) * round_up<int64_t>(cols, 4)
         : layout == ScaleLayout::swizzled_8x4 ? round_up<int64_t>(rows, 8) * round_up<int64_t>(cols, 4)
                                               : rows * cols;
}

HD inline int64_t scale_offset(ScaleLayout layout, int64_t m, int64_t k, int64_t rows, int64_t cols) {
  switch (layout) {
    case ScaleLayout::swizzled_128x4:
      return offset_128x4(m, k, cols);
    case ScaleLayout::swizzled_8x4:
      return offset_8x4(m, k, cols);
    case ScaleLayout::transposed:
      return transposed_offset(m, k, rows);
    default:
      return linear_offset(m, k, cols);
  }
}

}  // namespace sluice::format
