// SPDX-License-Identifier: Apache-2.0
// Which attention kernel runs, and how its work is spread over blocks: pure functions, tested on the host. A block
// finds its sequence from the batch's own arrays, so a plan holds bounds only and a recorded launch serves every batch
// within them.
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "base/math.h"
#include "kernels/sm90/attention/bounds.h"
#include "kernels/sm90/flashinfer/kernels.h"

namespace sluice::sm90 {

// 128 doubles the partial results (13 % of the pages' bytes for 8 heads per key head), 512 leaves a single sequence of
// 1000 tokens on 8 of 132 multiprocessors.
inline constexpr int kAttentionChunk = 256;
inline constexpr int kAttentionTile = 64;     // positions that are in shared memory together
inline constexpr int kAttentionRows = 64;     // pairs (row, head of the key head's group) of a block
inline constexpr int kAttentionFewRows = 16;  // sequences of at most as many pairs are attention_tokens.cuh's
inline constexpr int kTokenItems = 32;        // that a block of it takes at most
// By the shared memory of a block, in tiles of bfloat16 keys and of values: 2 or 3.
constexpr int token_blocks_per_multiprocessor(int tiles) { return tiles == 2 ? 3 : 2; }
inline constexpr int kClusterTiles = 3;
// Whether a kernel of new tokens can norm and rotate their heads as well (AttentionArgs::projected). That takes
// registers, which blocks of two tiles, three to a multiprocessor, do not have: some are spilled already.
HD constexpr bool takes_projected_heads(int tiles) { return tiles == 3; }
inline constexpr int kMaxCluster = 16;              // blocks: more than the 8 that every GPU has room for
inline constexpr int kLeastPartTiles = 4;           // for each part of a split sequence; one may have fewer
inline constexpr int kF32Rows = 16, kF32Tile = 32;  // pairs of a block and positions of a tile of attention_f32.cuh
// A guard: what would take more is not split. Splits end at two blocks per multiprocessor, each with kAttentionRows
// pairs: on 132 multiprocessors partial results of 128 float32 values take 9 MB.
inline constexpr int64_t kMaxPartialBytes = int64_t{192} << 20;

struct AttentionShape {
  int heads, key_heads, key_width, value_width;
  HD int group() const { return heads / key_heads; }
};

// Whether attention_bf16.cuh has this shape; attention_f32.cuh takes all others that fit in shared memory.
constexpr bool attention_on_tensor_cores(const AttentionShape& s, bool q_f32, bool pages_f32, bool shared_values) {
  return !q_f32 && !pages_f32 && !shared_values && s.key_width == s.value_width &&
         (s.key_width == 64 || s.key_width == 128);
}

inline constexpr int kChunkTiles = kAttentionChunk / kAttentionTile;

// How one sequence's tiles of positions are dealt to blocks: in order, in parts that differ by at most one step.
struct SequenceParts {
  int count;  // 1: not split
  int steps;  // of all parts together
  int step_tiles;

  HD int first_tile(int part) const {
    const int rest = steps % count;
    return (steps / count * part + (part < rest ? part : rest)) * step_tiles;
  }
  HD int part_of_tile(int tile) const {
    const int each = steps / count, rest = steps % count, step = tile / step_tiles, longer = (each + 1) * rest;
    return step < longer ? step / (each + 1) : rest + (step - longer) / each;
  }
};

struct AttentionPlan {
  bool tensor_cores;
  int64_t row_tiles;  // blocks for the rows of all sequences together, at least
  int64_t parts;      // blocks that share the positions of one row tile, at most
  // Parts begin at multiples of as many tiles: kChunkTiles, and each chunk has a result of its own, or 1, and each part
  // has one.
  int step_tiles = kChunkTiles;
  int64_t results;  // of a row and head, at most
  // Partial results have room for as many rows: those of the batch, or, if that is less (rows that prefill.h computes
  // are in the batch as well), rows_of_sequence for each sequence.
  int64_t partial_rows = 0;
  int rows_of_sequence = 0;
  int cluster = 0;  // blocks that share a sequence's positions through their shared memory; 0: parts do
  // With tensor cores, which kernels run: attention_tokens.cuh for all sequences of few pairs, attention_bf16.cuh for
  // those that the first one leaves, or for all.
  bool tokens = false, tiles = true;
  int64_t token_blocks = 0;  // the first kernel's grid
  int token_tiles = 3;       // of shared memory, of each block of it
  HD bool split() const { return parts > 1; }
  HD int least_tiles() const { return step_tiles > kLeastPartTiles ? step_tiles : kLeastPartTiles; }
  // Where the results of row r of sequence s are, whose first row in the batch is first_row.
  HD int64_t partial_row(int s, int first_row, int r) const {
    return rows_of_sequence > 0 ? int64_t{s} * rows_of_sequence + r : first_row + r;
  }
  HD bool chunk_results() const { return step_tiles == kChunkTiles; }
  // Of a sequence of that many positions, whose own length decides: a recorded launch has a bound that may be twice it.
  HD SequenceParts parts_of(int positions) const {
    const int own = ceil_div(positions, kAttentionTile), most = ceil_div(own, least_tiles());
    const int count = parts < most ? static_cast<int>(parts) : most;
    return {count < 1 ? 1 : count, ceil_div(own, step_tiles), step_tiles};
  }
};

// Prompts, where FlashInfer's kernel computes them (prefill.h): sequences with at least kPrefillMinRows new rows.
// 32/4 heads after 0, 2048 and 16384 positions: 128 rows take 10.0, 39, 243 us in place of 10.0, 47, 281; 64 rows 9.3,
// 38, 242 in place of 8.9, 27, 148.
inline constexpr int kPrefillMinRows = 128;
inline constexpr int kMaxPrefillTiles = 2048;  // of all sequences
inline constexpr bool kPrefillLists = true;    // PrefillPlan::lists

struct PrefillPlan {
  int64_t tiles =
      0;  // of rows, of all sequences together: at least as many as there are; 0: no sequence is long enough
  int64_t items = 0;  // tiles of all heads
  int blocks = 0;     // the grid: one for each item, or one for each multiprocessor, which work through lists of items
  bool lists = false;
};
// `lists`: the second kind of grid. Bounds of a batch: bounds.h.
PrefillPlan plan_prefill(const AttentionShape& shape, int64_t rows, int64_t sequences, int64_t longest_rows,
                         int multiprocessors, bool lists);
// int32 values of the arrays that a block finds its work in (FlashWork).
int64_t prefill_work_ints(const PrefillPlan& plan);

// Where item `item` of `items`, counted from the longest to the shortest, lies in the arrays of work. With lists they
// are dealt forth and back (0 1 2 2 1 0 0 1 ...), so that each block gets about the same sum.
struct PrefillSlots {
  int blocks;
  int64_t items;
  bool lists;

  HD int64_t begin(int64_t block) const {
    if (!lists) return block < items ? block : items;
    const int64_t rounds = items / blocks, rest = items % blocks, late = block - (blocks - rest);
    return block * rounds + (rounds % 2 == 0 ? (block < rest ? block : rest) : (late > 0 ? late : 0));
  }
  HD int64_t of(int64_t item) const {
    if (!lists) return item;
    const int64_t round = item / blocks, at = item % blocks;
    return begin(round % 2 == 0 ? at : blocks - 1 - at) + round;
  }
};

// row_invariant: a row's bits depend on its own sequence alone. Otherwise positions are cut at any tile, and with few
// new rows in all a cluster of blocks takes each sequence (attention_cluster.cuh).
AttentionPlan plan_attention(const AttentionShape& shape, bool tensor_cores, const AttentionBounds& bounds,
                             bool row_invariant, int multiprocessors);
// Bytes of AttentionArgs::partial and partial_stats; 0 where nothing is split.
int64_t partial_bytes(const AttentionShape& shape, const AttentionPlan& plan);
int64_t partial_stats_bytes(const AttentionShape& shape, const AttentionPlan& plan);
// attention_f32.cuh's rows in shared memory, in floats: an odd number of 16 bytes, so that eight lanes reading 16 bytes
// of neighbouring rows meet no bank twice.
HD constexpr int f32_key_stride(int width) { return 4 * (ceil_div(width, 4) | 1); }
HD constexpr int f32_value_stride(int width) { return round_up(width, 4); }
// Shared memory of attention_f32.cuh, in bytes.
int64_t f32_shared_bytes(const AttentionShape& shape, bool shared_values);
inline constexpr int kMaxSharedBytes = 227 * 1024;

}  // namespace sluice::sm90
