// SPDX-License-Identifier: Apache-2.0
// Which products the kernel for few rows takes, and into how many parts it cuts K: pure functions, tested on the host.
#pragma once

#include "kernels/sm90/layout.h"

namespace sluice::sm90 {

inline constexpr int kMaxFewRows = 64;
inline constexpr int kFewRowsBlocks = 2;  // per multiprocessor
inline constexpr int kMaxFewRowsSplits = 8;
// K is cut at multiples of so many k-blocks, whatever the number of rows, so that sums have one order.
HD constexpr int few_rows_unit(WeightOperand o) {
  return o == WeightOperand::nvfp4 || o == WeightOperand::mxfp4 ? 4 : decodes_e4m3(o) ? 2 : 1;
}
// The tile of `rows` rows: 8, 16, 32 or 64.
HD constexpr int few_rows_tile(int64_t rows) { return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64; }

// Parts of K: a power of two. It does not depend on the number of rows.
int few_rows_splits(const WeightShape& shape, int multiprocessors);

}  // namespace sluice::sm90
