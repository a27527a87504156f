// SPDX-License-Identifier: Apache-2.0
// How latent attention's work is spread over blocks: pure functions, tested on the host.
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "base/math.h"
#include "kernels/sm90/attention/bounds.h"
#include "kernels/sm90/flashinfer/latent.h"

namespace sluice::sm90 {

// Lengths of pieces that a row's positions may be cut into, in tiles: 1, 2, 3, 4, 6, 8, 12 ... 128. The kernel that
// fills the arrays takes the one that the multiprocessors finish first with.
inline constexpr int kLatentPieces = 14;
HD constexpr int latent_piece(int i) { return i == 0 ? 1 : i % 2 == 1 ? 2 << i / 2 : 3 << (i / 2 - 1); }
// Items for each multiprocessor, at most, where rows are cut: with 132 multiprocessors their partial results take 35 MB
// at most, which the L2 cache of 50 MB holds until they are merged. No measurement of other numbers is kept.
inline constexpr int kLatentItems = 4;

struct LatentPlan {
  int64_t tiles = 0;     // of kLatentRows pairs (row, head), at most
  int rows_of_tile = 1;  // neighbouring rows of a sequence that share a tile; 1: a row has a tile per kLatentRows heads
  int64_t items = 0;     // that the arrays of LatentWork have room for
  int blocks = 0;        // of the kernel's grid
  bool cut = false;      // rows may be cut into pieces, whose partial results another kernel merges
};
// row_invariant: a row's bits depend on its own sequence alone. So no row is cut, and none shares a tile.
LatentPlan plan_latent(int heads, const AttentionBounds& bounds, bool row_invariant, int multiprocessors);
int64_t latent_work_ints(const LatentPlan& plan);
// Bytes of LatentArgs::partial and partial_stats; 0 where nothing is cut.
int64_t latent_partial_bytes(const LatentPlan& plan);
int64_t latent_stats_bytes(const LatentPlan& plan);

// What latent_cost() counts in, eighths of the time of one tile of positions (1.8 us on an H200; the runs that the four
// numbers were chosen by are not kept): a tile; an item's beginning and end; those of a piece of a row, which stores a
// partial result; reading one of these while they are merged.
inline constexpr int kLatentTileCost = 8, kLatentItemCost = 12, kLatentPieceCost = 32, kLatentMergeCost = 1;
// What `items` of `tiles` tiles of positions each cost on `blocks` blocks. The `pieces` partial results of a row are
// read one after another.
HD constexpr int64_t latent_cost(int64_t items, int tiles, int pieces, int blocks) {
  const bool cut = pieces > 1;
  return ceil_div<int64_t>(items, blocks) * (kLatentTileCost * tiles + (cut ? kLatentPieceCost : kLatentItemCost)) +
         (cut ? kLatentMergeCost * pieces : 0);
}

}  // namespace sluice::sm90
