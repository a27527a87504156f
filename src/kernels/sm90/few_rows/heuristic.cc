// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/few_rows/heuristic.h"

#include "kernels/sm90/tuning.h"

namespace sluice::sm90 {

int few_rows_splits(const WeightShape& shape, int multiprocessors) {
  const int copies = ceil_div(shape.k_blocks(), k_blocks_per_copy(shape.operand));
  int splits = 1;
  while (splits < kMaxFewRowsSplits && shape.m_tiles() * splits < tuning::kFewRowsFilled * multiprocessors &&
         copies >= 2 * splits * tuning::kFewRowsMinCopies)
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

}  // namespace sluice::sm90
