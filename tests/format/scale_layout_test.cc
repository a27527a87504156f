// SPDX-License-Identifier: Apache-2.0
#include "format/scale_layout.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

#include "tests/support/scale_layout.h"

namespace sluice::format {
namespace {

// The 128x4 layout as it is usually built: pad, view as [M/128, 4, 32, K/4, 4], transpose to [M/128, K/4, 32, 4, 4].
std::vector<int> swizzle_by_transpose(const std::vector<int>& linear, int64_t rows, int64_t cols, int64_t tile_m) {
  const int64_t m_pad = (rows + tile_m - 1) / tile_m * tile_m, k_pad = (cols + 3) / 4 * 4;
  const int64_t inner = tile_m == 128 ? 32 : 8, outer = tile_m / inner;
  std::vector<int> out;
  for (int64_t mt = 0; mt < m_pad / tile_m; ++mt)
    for (int64_t kt = 0; kt < k_pad / 4; ++kt)
      for (int64_t i = 0; i < inner; ++i)
        for (int64_t o = 0; o < outer; ++o)
          for (int64_t k4 = 0; k4 < 4; ++k4) {
            const int64_t m = mt * tile_m + o * inner + i, k = kt * 4 + k4;
            out.push_back(m < rows && k < cols ? linear[static_cast<size_t>(m * cols + k)] : 0);
          }
  return out;
}

TEST(ScaleLayout, WholeTensors) {
  for (auto [rows, cols] :
       {std::pair<int64_t, int64_t>{1, 1}, {7, 3}, {8, 4}, {127, 5}, {128, 4}, {129, 9}, {300, 62}}) {
    std::vector<int> linear(static_cast<size_t>(rows * cols));
    std::iota(linear.begin(), linear.end(), 1);
    for (const auto& [layout, name] : kScaleLayouts) {
      SCOPED_TRACE(name);
      std::vector<int> there(static_cast<size_t>(scale_elements(layout, rows, cols)), -1);
      test::scales_from_linear(layout, linear.data(), rows, cols, there.data());
      std::vector<int> expected = linear;
      if (layout == ScaleLayout::swizzled_128x4) expected = swizzle_by_transpose(linear, rows, cols, 128);
      if (layout == ScaleLayout::swizzled_8x4) expected = swizzle_by_transpose(linear, rows, cols, 8);
      if (layout == ScaleLayout::transposed) {
        for (int64_t m = 0; m < rows; ++m)
          for (int64_t k = 0; k < cols; ++k)
            expected[static_cast<size_t>(k * rows + m)] = linear[static_cast<size_t>(m * cols + k)];
      }
      EXPECT_EQ(there, expected);
    }
  }
}

// Values computed by hand from the published formula.
TEST(ScaleLayout, KnownOffsets) {
  EXPECT_EQ(offset_128x4(0, 0, 8), 0);
  EXPECT_EQ(offset_128x4(1, 0, 8), 16);
  EXPECT_EQ(offset_128x4(32, 0, 8), 4);
  EXPECT_EQ(offset_128x4(0, 4, 8), 512);
  EXPECT_EQ(offset_128x4(128, 0, 8), 1024);
  EXPECT_EQ(offset_128x4(127, 7, 8), 512 + 31 * 16 + 3 * 4 + 3);
  EXPECT_EQ(offset_8x4(9, 5, 8), 2 * 32 + 32 + 4 + 1);
}

}  // namespace
}  // namespace sluice::format
