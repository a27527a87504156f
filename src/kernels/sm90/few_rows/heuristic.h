// SPDX-License-Identifier: Apache-2.0
// Which products the kernel for few rows takes, and into how many parts it cuts K: pure functions, tested on the host.
#pragma once

#include "kernels/sm90/layout.h"

namespace sluice::sm90 {

// Every block rounds all rows for itself, or copies them by many small copies: from 17 rows on batch_rows/ is quicker
// (docs/kernels/sm90_batch_rows.md).
inline constexpr int kMaxFewRows = 16;
// Rows of weights that are decoded, where the format rounds them. More go to the kernel for a batch of rows: with 12
// rows this one takes 0.67 to 1.06 of its time, with 16 rows 0.74 to 1.21 (NVFP4 and MXFP8, 18 matrices, H200). Rows
// that are not rounded stay up to kMaxFewRows.
inline constexpr int kMaxRoundedFewRows = 12;
inline constexpr int kFewRowsBlocks = 2;  // per multiprocessor
inline constexpr int kMaxFewRowsSplits = 8;
// k-blocks of weights in one copy to shared memory, about 16 KB; also in batch_rows/. K is cut between copies, whatever
// the number of rows, so that sums have one order.
HD constexpr int k_blocks_per_copy(WeightOperand o) {
  return o == WeightOperand::nvfp4 || o == WeightOperand::mxfp4 ? 4 : decodes_e4m3(o) ? 2 : 1;
}
// The tile of `rows` rows.
HD constexpr int few_rows_tile(int64_t rows) { return rows <= 8 ? 8 : 16; }

// Whether a task can be a part of an M-tile: only where its rows follow each other in each k-block of a copy.
HD constexpr bool cuts_m_tiles(WeightOperand o) { return !decodes(o); }
inline constexpr int kMaxMParts = 4;  // of 32 weight rows

// Parts of K: a power of two. It does not depend on the number of rows.
int few_rows_splits(const WeightShape& shape, int multiprocessors);
// With one part of K: 1, 2 or 4 parts of each M-tile, as many as fill the multiprocessors. No sum depends on it.
int few_rows_m_parts(const WeightShape& shape, int multiprocessors);
// Whether rows of packed weights are rounded once by a launch before the kernel, or by each of its blocks for itself:
// `splits` parts of K. scaled: rows have a scale of their own.
bool rounds_rows_first(const WeightShape& shape, int64_t rows, int splits, bool scaled, int multiprocessors);

}  // namespace sluice::sm90
