// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/few_rows/heuristic.h"

#include "kernels/sm90/tuning.h"

namespace sluice::sm90 {

int few_rows_splits(const WeightShape& shape, int multiprocessors) {
  const int copies = ceil_div(shape.k_blocks(), k_blocks_per_copy(shape.operand));
  int splits = 1;
  while (splits < kMaxFewRowsSplits && shape.m_tiles() * splits < tuning::kFewRowsFilled * multiprocessors &&
         copies >= 2 * splits)
    splits *= 2;
  return splits;
}

int few_rows_m_parts(const WeightShape& shape, int multiprocessors) {
  int parts = 1;
  while (cuts_m_tiles(shape.operand) && parts < kMaxMParts &&
         shape.m_tiles() * parts < tuning::kFewRowsFilled * multiprocessors)
    parts *= 2;
  return parts;
}

bool rounds_rows_first(const WeightShape& shape, int64_t rows, int splits, bool scaled, int multiprocessors) {
  if (!decodes(shape.operand) || block_scaled(shape.operand)) return false;
  if (scaled) return true;
  const int64_t blocks = kFewRowsBlocks * multiprocessors, tasks = ceil_div<int64_t>(shape.m_tiles() * splits, blocks);
  const int64_t columns = ceil_div(shape.k_blocks(), splits) * k_block_columns(shape.operand);
  return rows * columns * tasks > tuning::kFewRowsRounded;
}

}  // namespace sluice::sm90
