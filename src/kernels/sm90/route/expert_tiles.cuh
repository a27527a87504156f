// SPDX-License-Identifier: Apache-2.0
// How the rows of one expert become tiles.
#pragma once

#include "base/math.h"
#include "kernels/sm90/layout.h"

namespace sluice::sm90 {

// n rounded up to a multiple of a power of two, without a division.
__device__ inline int stepped(int n, int step) { return (n + step - 1) & -step; }

// The tiles of one expert: as few as max_n allows, and about equally high.
struct ExpertTiles {
  int tiles;          // how many
  int rows;           // of all of them in memory, padding included
  int rows_per_tile;  // of every tile but the last: a multiple of step_n, without padding
  int last_rows;      // of the last one, without padding
};
// The case of few tokens, one tile, takes no division.
__device__ inline ExpertTiles expert_tiles(int count, int max_n, int step_n) {
  if (count == 0) return {0, 0, step_n, 0};
  if (count <= max_n) return {1, stepped(count, step_n), stepped(count, step_n), count};
  const int per = stepped(ceil_div(count, ceil_div(count, max_n)), step_n);
  const int tiles = ceil_div(count, per), last = count - (tiles - 1) * per;
  return {tiles, (tiles - 1) * per + stepped(last, step_n), per, last};
}

}  // namespace sluice::sm90
