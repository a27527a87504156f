// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/mla/expanded_plan.h"

#include <algorithm>

#include "base/math.h"
#include "kernels/sm90/tuning.h"

namespace sluice::sm90 {

namespace {
// Floating-point operations of one head, those of kv_b by what they cost: a pair of a row and a position that it sees
// in either form, and what moves a position's latent row to its key and value (a row's query to the latents and its
// result back costs as much).
constexpr double kAbsorbedPair = 2.0 * (kLatentCached + kLatent), kExpandedPair = 2.0 * kExpandedRow;
constexpr double kMove = tuning::kMoveCost * 2.0 * kLatent * (kExpandedKey - kLatentRope + kExpandedValue);

int64_t bytes_of_head(int64_t positions) { return positions * kExpandedRow * 2; }
}  // namespace

ExpandedPlan plan_expanded(int heads, const PromptBounds& b, int multiprocessors) {
  if (b.rows == 0) return {};
  ExpandedPlan p;
  p.positions = (b.positions + b.prompts * (kExpandedTile - 1)) / kExpandedTile * kExpandedTile;
  // Not more memory than the absorbed queries and results of the same rows take, but for few rows.
  const int64_t most = std::max(b.rows * heads * (kLatentCached + kLatent) * 2, tuning::kExpandedBytes);
  const int64_t tiles = ceil_div<int64_t>(b.rows, kFlashRows);
  // As many heads as the L2 cache has room for, but enough to give each multiprocessor a tile.
  for (int i = 1; i <= heads; ++i) {
    const int64_t bytes = i * bytes_of_head(p.positions);
    const bool wanted = bytes <= tuning::kExpandedPassBytes || p.heads * tiles < multiprocessors;
    if (heads % i == 0 && bytes <= most && wanted) p.heads = i;
  }
  if (p.heads == 0) return {};
  // Where a pass has fewer tiles, multiprocessors are without work.
  const double idle = std::max(1.0, static_cast<double>(multiprocessors) / static_cast<double>(p.heads * tiles));
  // A row sees half of its prompt's new rows, and all before them.
  const auto rows = static_cast<double>(b.rows), positions = static_cast<double>(b.positions);
  const double pairs = rows * (positions - rows / 2) / static_cast<double>(b.prompts);
  if (kExpandedPair * pairs * idle + kMove * positions > kAbsorbedPair * pairs + kMove * rows) return {};
  return p;
}

int64_t expanded_bytes(const ExpandedPlan& p) { return p.heads * bytes_of_head(p.positions); }

}  // namespace sluice::sm90
