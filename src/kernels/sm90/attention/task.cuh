// SPDX-License-Identifier: Apache-2.0
// What one block of attention works on: some pairs (row, query head) of one key head of one sequence.
#pragma once

#include "base/math.h"
#include "kernels/sm90/attention/attention.h"

namespace sluice::sm90 {

struct AttentionTask {
  int sequence;
  const int32_t* blocks;  // of the sequence
  int context;            // position of its first row
  int first_row, rows;    // of the sequence, in the batch
  int key_head;
  int first_pair, pairs;      // pair p is row p / group, head p % group; `pairs` of this tile
  int end;                    // positions that the tile's last row sees
  int first_tile, last_tile;  // tiles of positions of this block
  SequenceParts parts;        // of the sequence; results of several are folded by the second kernel
};

// New rows of sequence s that attention.h computes.
__device__ __forceinline__ int own_rows(const AttentionArgs& a, int s) {
  const int rows = a.row_begin[s + 1] - a.row_begin[s];
  return a.prefill_rows == 0 || rows < a.prefill_rows ? rows : 0;
}
// Those that are computed in row tiles.
__device__ __forceinline__ int tiled_rows(const AttentionArgs& a, int s) {
  const int rows = own_rows(a, s);
  return a.plan.tokens && rows * a.shape.group() <= kAttentionFewRows ? 0 : rows;
}

// The sequence that row tile `tile` belongs to, with `tile` counted within it on return; -1: there are fewer tiles.
// Every warp of a block finds it for itself.
__device__ __forceinline__ int sequence_of_tile(const AttentionArgs& a, int of_a_tile, int& tile) {
  const int lane = threadIdx.x & 31, group = a.shape.group();
  if (a.one_row_each && group <= of_a_tile) {  // decoding: the search below is a chain of up to sequences / 32 reads
    const int s = tile;
    tile = 0;
    return tiled_rows(a, s) > 0 ? s : -1;
  }
  for (int base = 0; base < a.sequences; base += 32) {
    const int s = base + lane;
    const int tiles = s < a.sequences ? ceil_div(tiled_rows(a, s) * group, of_a_tile) : 0;
    int sum = tiles;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
      const int below = __shfl_up_sync(0xffffffffu, sum, i);
      if (lane >= i) sum += below;
    }
    const uint32_t beyond = __ballot_sync(0xffffffffu, sum > tile);
    if (beyond != 0) {
      const int found = __ffs(static_cast<int>(beyond)) - 1;
      tile -= __shfl_sync(0xffffffffu, sum - tiles, found);
      return base + found;
    }
    tile -= __shfl_sync(0xffffffffu, sum, 31);
  }
  return -1;
}

// The sequence that holds a row; every warp finds it for itself.
__device__ __forceinline__ int sequence_of_row(const AttentionArgs& a, int64_t row, int lane) {
  if (a.one_row_each) return static_cast<int>(row);  // sequences without rows come last
  for (int base = 0; base < a.sequences; base += 32) {
    const int s = base + lane;
    const bool holds = s < a.sequences && a.row_begin[s] <= row && row < a.row_begin[s + 1];
    const uint32_t found = __ballot_sync(0xffffffffu, holds);
    if (found != 0) return base + __ffs(static_cast<int>(found)) - 1;
  }
  return -1;
}

__device__ __forceinline__ bool find_task(const AttentionArgs& a, int of_a_tile, AttentionTask& task) {
  // Late tiles of a prompt see the most: they start first.
  int tile = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  const int s = sequence_of_tile(a, of_a_tile, tile);
  if (s < 0) return false;
  const int group = a.shape.group();
  task.sequence = s;
  task.context = a.contexts[s];
  task.first_row = a.row_begin[s];
  task.rows = a.row_begin[s + 1] - task.first_row;
  task.blocks = a.blocks + a.block_begin[s];
  task.key_head = static_cast<int>(blockIdx.y);
  task.first_pair = tile * of_a_tile;
  task.pairs = min(of_a_tile, task.rows * group - task.first_pair);
  task.end = task.context + (task.first_pair + task.pairs - 1) / group + 1;
  task.parts = a.plan.parts_of(task.context + task.rows);
  return true;
}

// How many positions a pair of the tile sees; 0 for a pair after the last one.
__device__ __forceinline__ int positions_seen(const AttentionTask& t, int pair, int group) {
  return pair < t.pairs ? t.context + (t.first_pair + pair) / group + 1 : 0;
}

// Where position p of the sequence begins in the pages, counted in rows of one head (fewer than 2^31); -1 at and beyond
// the task's end.
__device__ __forceinline__ int page_row(const AttentionArgs& a, const AttentionTask& t, int position) {
  if (position >= t.end) return -1;
  const int block = position / a.block_size, offset = position % a.block_size;
  return (t.blocks[block] * a.shape.key_heads + t.key_head) * a.block_size + offset;
}

}  // namespace sluice::sm90
