// SPDX-License-Identifier: Apache-2.0
// Parts of K and the shared memory of the product of few rows.
#include <gtest/gtest.h>

#include "kernels/sm90/few_rows/config.h"
#include "kernels/sm90/tuning.h"
#include "tests/kernels_sm90_plan/operands.h"

namespace sluice::sm90 {
namespace {

TEST(FewRowsPlan, PartsArePowersOfTwoWithWorkForEach) {
  for (const WeightOperand op : kOperands)
    for (const int64_t rows : {1, 128, 2048, 5120, 24576, 151936})
      for (const int64_t k : {1, 64, 513, 2048, 7168, 16384})
        for (const int multiprocessors : {1, 78, 132, 1000}) {
          const WeightShape s{op, 1, rows, k, false, 0};
          const int parts = few_rows_splits(s, multiprocessors);
          ASSERT_TRUE(parts == 1 || parts == 2 || parts == 4 || parts == 8);
          if (parts == 1) continue;
          ASSERT_GE(copies(s), parts);
          // With half of them blocks were missing.
          ASSERT_LT(s.m_tiles() * (parts / 2), tuning::kFewRowsFilled * multiprocessors);
        }
}

// Every k-block belongs to one part, in order: what the kernel's part_of() does.
TEST(FewRowsPlan, PartsCoverK) {
  for (const WeightOperand op : kOperands)
    for (int k_blocks = 1; k_blocks < 200; ++k_blocks)
      for (const int parts : {1, 2, 4, 8}) {
        const int copy = k_blocks_per_copy(op), all = ceil_div(k_blocks, copy);
        int next = 0;
        for (int p = 0; p < parts; ++p) {
          const int begin = all * p / parts * copy, end = std::min(all * (p + 1) / parts * copy, k_blocks);
          ASSERT_EQ(begin, next);
          ASSERT_LE(begin, end);
          next = end;
        }
        ASSERT_EQ(next, k_blocks);
      }
}

// Qwen3's qkv, eight rows: a part of K has 512 columns. Its head has five tasks per block of 2048 columns each.
TEST(FewRowsPlan, RowsAreRoundedFirstWhereBlocksWouldRoundMany) {
  const auto first = [](WeightOperand op, int64_t n, int64_t k, int64_t rows, int parts, bool scaled) {
    return rounds_rows_first({op, 1, n, k, false, 0}, rows, parts, scaled, 132);
  };
  EXPECT_FALSE(first(WeightOperand::nvfp4, 5120, 2048, 8, 4, false));
  EXPECT_TRUE(first(WeightOperand::nvfp4, 5120, 2048, 8, 4, true));
  EXPECT_TRUE(first(WeightOperand::nvfp4, 151936, 2048, 1, 1, false));
  EXPECT_FALSE(first(WeightOperand::mxfp8, 7168, 16384, 1, 4, false));
  EXPECT_TRUE(first(WeightOperand::mxfp8, 7168, 16384, 3, 4, false));
  // The others' rows are rounded by each block, or not at all.
  for (const WeightOperand op : {WeightOperand::bf16, WeightOperand::fp8, WeightOperand::fp8_block})
    EXPECT_FALSE(first(op, 151936, 2048, 8, 1, true));
}

template <WeightOperand op, int rows>
void check_tile() {
  using T = FewTile<op, rows>;
  static_assert(T::blocks_per_sm * (T::smem_bytes + 1024) <= 233472);
  // What Little's law asks for: 4.3 TB/s times a microsecond, over 132 multiprocessors.
  EXPECT_GE(T::blocks_per_sm * T::stages * T::w_bytes, 32 * 1024) << static_cast<int>(op) << " " << rows;
}
template <WeightOperand op>
void check_tiles() {
  check_tile<op, 8>();
  check_tile<op, 16>();
}
TEST(FewRowsPlan, EnoughWeightsAreUnderWay) {
  check_tiles<WeightOperand::bf16>();
  check_tiles<WeightOperand::fp8>();
  check_tiles<WeightOperand::fp8_block>();
  check_tiles<WeightOperand::mxfp8>();
  check_tiles<WeightOperand::nvfp4>();
  check_tiles<WeightOperand::mxfp4>();
  check_tiles<WeightOperand::fp8_f32>();
  check_tiles<WeightOperand::fp8_block_f32>();
}

TEST(FewRowsPlan, TilesHoldTheirRows) {
  for (int64_t rows = 1; rows <= kMaxFewRows; ++rows) {
    const int tile = few_rows_tile(rows);
    ASSERT_GE(tile, rows);
    ASSERT_TRUE(tile == 8 || tile / 2 < rows);
  }
}

}  // namespace
}  // namespace sluice::sm90
