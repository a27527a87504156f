// SPDX-License-Identifier: Apache-2.0
// How an expert's rows become tiles.
#pragma once

#include "base/math.h"
#include "kernels/sm90/layout.h"

namespace sluice::sm90 {

// n up to a multiple of a power of two, without a division.
__device__ inline int stepped(int n, int step) { return (n + step - 1) & -step; }

// The passes of one expert: about equal, the fewest that the tile allows. One pass, the case of few tokens, takes no
// division either.
struct Passes {
  int tiles, rows, per, last;
};
__device__ inline Passes passes_of(int count, int max_n, int step_n) {
  if (count == 0) return {0, 0, step_n, 0};
  if (count <= max_n) return {1, stepped(count, step_n), stepped(count, step_n), count};
  const int per = stepped(ceil_div(count, ceil_div(count, max_n)), step_n);
  const int tiles = ceil_div(count, per), last = count - (tiles - 1) * per;
  return {tiles, (tiles - 1) * per + stepped(last, step_n), per, last};
}

}  // namespace sluice::sm90
