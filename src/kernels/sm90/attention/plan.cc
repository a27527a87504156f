// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/attention/plan.h"

#include <algorithm>

#include "base/math.h"

namespace sluice::sm90 {

namespace {
// Blocks that sequences are split for: four waves of two blocks per multiprocessor. The bound on the context may be far
// above the contexts of a batch (a recorded launch); blocks without work leave at once.
constexpr int64_t kBlocksPerMultiprocessor = 8;
// With as many blocks without splitting, nothing is split.
constexpr int64_t kEnoughBlocks = 1;
// Clusters take at most one block per multiprocessor: 8 sequences of 1024 tokens and four key heads take 13.0 us in
// clusters of 4, 17.9 in clusters of 8. Smaller ones than these lose to the second kernel (16 sequences: 24.4 and 16.4
// us).
constexpr int kLeastCluster = 4;
}  // namespace

AttentionPlan plan_attention(const AttentionShape& shape, bool tensor_cores, int64_t rows, int64_t sequences,
                             int64_t longest_rows, int64_t longest_context, int multiprocessors) {
  AttentionPlan p{};
  p.tensor_cores = tensor_cores;
  p.max_chunks = std::max<int64_t>(1, ceil_div<int64_t>(longest_context, kAttentionChunk));
  p.parts = 1;
  p.part_chunks = p.max_chunks;
  const int64_t of_a_tile = tensor_cores ? kAttentionRows : kF32Rows;
  // Every sequence may have one tile that is not full.
  const int64_t tiles_of_one = ceil_div<int64_t>(longest_rows * shape.group(), of_a_tile);
  p.row_tiles = std::min(sequences * tiles_of_one, rows * shape.group() / of_a_tile + sequences);
  if (!tensor_cores) return p;
  const int64_t blocks = std::max<int64_t>(1, p.row_tiles * shape.key_heads);
  if (blocks >= kEnoughBlocks * multiprocessors || p.max_chunks == 1) return p;
  const int64_t wanted = std::clamp<int64_t>(kBlocksPerMultiprocessor * multiprocessors / blocks, 1, p.max_chunks);
  AttentionPlan split = p;
  split.part_chunks = ceil_div(p.max_chunks, wanted);
  split.parts = ceil_div(p.max_chunks, split.part_chunks);
  return split.split() && partial_bytes(shape, split, rows) <= kMaxPartialBytes ? split : p;
}

AttentionPlan with_clusters(const AttentionPlan& plan, const AttentionShape& shape, int64_t longest_rows,
                            int64_t longest_context, int multiprocessors) {
  const int64_t tasks = plan.row_tiles * shape.key_heads, tiles = ceil_div<int64_t>(longest_context, kAttentionTile);
  int cluster = 1;
  while (cluster < kMaxCluster && cluster < tiles && 2 * cluster * tasks <= multiprocessors) cluster *= 2;
  if (!plan.tensor_cores || cluster < kLeastCluster || longest_rows * shape.group() > kAttentionFewRows) return plan;
  AttentionPlan p = plan;
  p.cluster = cluster;
  p.parts = 1;
  p.part_chunks = p.max_chunks;
  return p;
}

PrefillPlan plan_prefill(const AttentionShape& shape, int64_t rows, int64_t sequences, int64_t longest_rows,
                         int multiprocessors, bool lists) {
  PrefillPlan p;
  p.tiles = std::min(sequences * ceil_div<int64_t>(longest_rows, kFlashRows), rows / kFlashRows + sequences);
  p.items = p.tiles * shape.heads;
  p.lists = lists;
  p.blocks = static_cast<int>(lists ? std::min<int64_t>(p.items, multiprocessors) : p.items);
  return p;
}
int64_t prefill_work_ints(const PrefillPlan& plan) { return round_up(plan.blocks + 1, 4) + 6 * plan.items; }

int64_t partial_bytes(const AttentionShape& shape, const AttentionPlan& plan, int64_t rows) {
  return plan.split() ? rows * shape.heads * plan.max_chunks * shape.value_width * 4 : 0;
}
int64_t partial_stats_bytes(const AttentionShape& shape, const AttentionPlan& plan, int64_t rows) {
  return plan.split() ? rows * shape.heads * plan.max_chunks * 8 : 0;
}

int64_t f32_shared_bytes(const AttentionShape& shape, bool shared_values) {
  const int64_t values = shared_values ? 0 : kF32Tile * f32_value_stride(shape.value_width);
  return 4 * (kF32Rows * f32_key_stride(shape.key_width) + kF32Tile * f32_key_stride(shape.key_width) + values +
              kF32Rows * f32_value_stride(shape.value_width) + kF32Rows * kF32Tile + kF32Rows) +
         4 * kF32Tile;
}

}  // namespace sluice::sm90
