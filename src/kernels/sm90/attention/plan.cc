// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/attention/plan.h"

#include <algorithm>

#include "base/math.h"

namespace sluice::sm90 {

namespace {
// Blocks that sequences are split for: what the GPU holds at once. 8 sequences of 8192 tokens and four key heads take
// 48.7 us in 256 blocks, 49.2 in 128 and in 384, 51.3 in 512 (H100).
constexpr int64_t kBlocksPerMultiprocessor = 2;
// With as many blocks without splitting, nothing is split.
constexpr int64_t kEnoughBlocks = 1;
// Clusters take at most one block per multiprocessor. Smaller ones than these lose to the second kernel (four key heads
// on an H100; 8 sequences of 1024 tokens: 11.3 us in clusters of 4, 15.2 in clusters of 8 beyond one per
// multiprocessor, 10.0 with the second kernel; one sequence 5.5 in a cluster of 16 and 6.2), and so do clusters whose
// blocks have more tiles than these each (one sequence of 2048 tokens, two tiles each: 6.5 and 6.5 us; 4096 tokens: 8.4
// and 7.7; 8192 tokens: 12.4 and 10.2).
constexpr int kLeastCluster = 8, kMostClusterTiles = 2;
// Up to this context blocks of new tokens take several sequences, as many blocks as the GPU holds at once (256
// sequences of 64 to 192 tokens: 20.3 us, 24.2 with a block for each item). Longer ones have a block each: what they
// gain is little (1024 tokens: 127.4 and 128.2 us), and blocks that end early leave room for others, where sequences
// are not all as long.
constexpr int64_t kTokensTogether = 512;

// Blocks of the cluster that takes each of `tasks` sequences and key heads; 0: clusters are not faster. One chunk is
// soon done by one block: two tiles take 3.6 us there, 6.7 in clusters.
int cluster_size(int64_t tasks, int64_t longest_context, int multiprocessors) {
  const int64_t tiles = ceil_div<int64_t>(longest_context, kAttentionTile);
  int cluster = 1;
  while (cluster < kMaxCluster && cluster < tiles && 2 * cluster * tasks <= multiprocessors) cluster *= 2;
  return cluster < kLeastCluster || tiles > kMostClusterTiles * cluster ? 0 : cluster;
}

AttentionPlan with_token_blocks(AttentionPlan p, const AttentionShape& shape, const AttentionBounds& bounds,
                                int multiprocessors) {
  if (!p.tokens) return p;
  const int64_t items = bounds.sequences * shape.key_heads * p.parts;
  const auto at_once = [&](int tiles) { return int64_t{token_blocks_per_multiprocessor(tiles)} * multiprocessors; };
  // Three tiles keep more bytes on the way (64 sequences of 1024 tokens: 32.8 us, 40.6 with two), two let more blocks
  // run at once, where that saves a round.
  p.token_tiles = ceil_div(items, at_once(2)) < ceil_div(items, at_once(3)) ? 2 : 3;
  p.token_blocks = bounds.longest_context > kTokensTogether ? items : std::min(items, at_once(p.token_tiles));
  p.token_blocks = std::max(p.token_blocks, ceil_div<int64_t>(items, kTokenItems));
  return p;
}
}  // namespace

AttentionPlan plan_attention(const AttentionShape& shape, bool tensor_cores, const AttentionBounds& bounds,
                             bool row_invariant, int multiprocessors) {
  AttentionPlan p{};
  p.tensor_cores = tensor_cores;
  p.parts = p.results = 1;
  const int64_t of_a_tile = tensor_cores ? kAttentionRows : kF32Rows;
  // Every sequence may have one tile that is not full.
  const int64_t pairs = bounds.longest_rows * shape.group(), tiles_of_one = ceil_div<int64_t>(pairs, of_a_tile);
  p.row_tiles = std::min(bounds.sequences * tiles_of_one, bounds.rows * shape.group() / of_a_tile + bounds.sequences);
  if (!tensor_cores) return p;
  const int64_t own_rows = bounds.sequences * bounds.longest_rows;
  p.partial_rows = std::min(bounds.rows, own_rows);
  p.rows_of_sequence = own_rows < bounds.rows ? static_cast<int>(bounds.longest_rows) : 0;
  p.step_tiles = row_invariant ? kChunkTiles : 1;
  p.tiles = pairs > kAttentionFewRows;
  // A second launch is for prompts beside new tokens; where all sequences have as many rows, one kernel takes them all.
  p.tokens = !p.tiles || (bounds.sequences > 1 && bounds.rows != bounds.sequences * bounds.longest_rows);
  p = with_token_blocks(p, shape, bounds, multiprocessors);
  const int64_t tasks = std::max<int64_t>(1, p.row_tiles * shape.key_heads);
  if (tasks >= kEnoughBlocks * multiprocessors || bounds.longest_context <= kAttentionChunk) return p;
  if (!row_invariant && !p.tiles) p.cluster = cluster_size(tasks, bounds.longest_context, multiprocessors);
  if (p.cluster > 0) return p;
  AttentionPlan split = p;
  const int64_t tiles = ceil_div<int64_t>(bounds.longest_context, kAttentionTile);
  split.parts = std::clamp<int64_t>(kBlocksPerMultiprocessor * multiprocessors / tasks, 1,
                                    ceil_div<int64_t>(tiles, p.least_tiles()));
  split.results = p.chunk_results() ? ceil_div<int64_t>(tiles, kChunkTiles) : split.parts;
  split = with_token_blocks(split, shape, bounds, multiprocessors);
  return split.split() && partial_bytes(shape, split) <= kMaxPartialBytes ? split : p;
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

int64_t partial_bytes(const AttentionShape& shape, const AttentionPlan& plan) {
  return plan.split() ? plan.partial_rows * shape.heads * plan.results * shape.value_width * 4 : 0;
}
int64_t partial_stats_bytes(const AttentionShape& shape, const AttentionPlan& plan) {
  return plan.split() ? plan.partial_rows * shape.heads * plan.results * 8 : 0;
}

int64_t f32_shared_bytes(const AttentionShape& shape, bool shared_values) {
  const int64_t values = shared_values ? 0 : kF32Tile * f32_value_stride(shape.value_width);
  return 4 * (kF32Rows * f32_key_stride(shape.key_width) + kF32Tile * f32_key_stride(shape.key_width) + values +
              kF32Rows * f32_value_stride(shape.value_width) + kF32Rows * kF32Tile + kF32Rows) +
         4 * kF32Tile;
}

}  // namespace sluice::sm90
