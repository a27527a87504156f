// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/mla/latent_plan.h"

#include <algorithm>

namespace sluice::sm90 {

LatentPlan plan_latent(int heads, const AttentionBounds& b, bool row_invariant, int multiprocessors) {
  LatentPlan p;
  if (!row_invariant && b.longest_rows > 1 && kLatentRows % heads == 0) p.rows_of_tile = kLatentRows / heads;
  p.tiles = p.rows_of_tile > 1 ? b.rows / p.rows_of_tile + b.sequences : b.rows * ceil_div<int64_t>(heads, kLatentRows);
  const int64_t most = int64_t{kLatentItems} * multiprocessors;
  // To look for the best cut and to merge takes 7 us, whether rows are cut or not.
  const bool gains = 2 * p.tiles <= multiprocessors || (2 * p.tiles <= most && b.longest_context >= 4096);
  p.cut = !row_invariant && gains && b.longest_context > kLatentTile;
  p.items = p.cut ? std::min(most, p.tiles * ceil_div<int64_t>(b.longest_context, kLatentTile)) : p.tiles;
  p.blocks = static_cast<int>(std::min<int64_t>(p.items, multiprocessors));
  return p;
}

int64_t latent_work_ints(const LatentPlan& p) {
  return round_up(p.blocks + 1, 4) + round_up(p.blocks, 4) + 8 * p.items + (p.cut ? 4 * p.tiles : 0);
}
int64_t latent_partial_bytes(const LatentPlan& p) { return p.cut ? p.items * kLatentRows * kLatent * 2 : 0; }
int64_t latent_stats_bytes(const LatentPlan& p) { return p.cut ? p.items * kLatentRows * 4 : 0; }

}  // namespace sluice::sm90
