// SPDX-License-Identifier: Apache-2.0
// Which products the kernel for few rows takes, and into how many parts it cuts K: pure functions, tested on the host.
#pragma once

#include "kernels/sm90/layout.h"

namespace sluice::sm90 {

// Every block rounds all rows for itself, or copies them by many small copies: from 17 rows on batch_rows/ is quicker
// (docs/kernels/sm90_batch_rows.md).
inline constexpr int kMaxFewRows = 16;
// Rows of weights that are decoded which every block rounds itself. More are rounded once by a launch before the kernel
// for a batch of rows: [4096, 7168], NVFP4, 16 rows 24.4 us here and 14.2 there, MXFP8 23.7 and 14.5 (H200). With 8
// rows that depends on K: this matrix takes 16.2 and 13.7, [5120, 2048] 6.8 and 7.5. Rows that are not rounded stay up
// to kMaxFewRows (MXFP4, 16 rows: this matrix 12.9 and 11.9, [5120, 2048] 6.2 and 6.0).
inline constexpr int kMaxRoundedFewRows = 8;
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

}  // namespace sluice::sm90
