// SPDX-License-Identifier: Apache-2.0
// What one thread computes of attention at a time: some rows by some query heads of one key head, over a run of
// positions. docs/kernels/cpu_attention.md explains how it works.
#pragma once

#include "kernels/cpu/cpu_kernel.h"
#include "ops/cpu/attention_sums.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/pages.h"
#include "ops/cpu/tile.h"

namespace sluice::ops::cpu {

// The softmax starts afresh at every multiple of this many positions, and the sums over the chunks are merged in their
// order. So several threads may share a sequence, and yet a row's bits depend on its position alone. Shorter chunks
// share out shorter contexts, but with 512 a prompt took 3 % longer than in one piece, with 1024 1 to 2 %.
inline constexpr int64_t kChunk = 1024;
static_assert(kChunk % kTile == 0);

// Some rows x some query heads of one key head of one sequence.
struct AttentionJob {
  const int32_t* blocks;  // of the sequence
  int64_t context;        // position of its first new row
  int64_t begin;          // that row in the batch
  int64_t key_head, first_head, heads, first_row, rows;

  int64_t queries() const { return rows * heads; }
  // Of query i, of which a row's lie together.
  int64_t row(int64_t i) const { return begin + first_row + i / heads; }
  int64_t head(int64_t i) const { return first_head + i % heads; }
  int64_t seen_by(int64_t r) const { return context + first_row + r + 1; }  // positions that its row r sees
  int64_t end() const { return seen_by(rows - 1); }
  // Rows that see no position from `first` on.
  int64_t blind(int64_t first) const;
};

// What all jobs of a call have in common.
class AttentionPlan {
 public:
  AttentionPlan(kernels::cpu::Isa isa, DType q_type, const Pages& keys, const Pages& values, int64_t value_width,
                float scale);

  int64_t most_queries() const;  // of a job
  int64_t query_width() const { return keys_.width; }
  int64_t sums_width() const { return value_stride_; }
  // Reading, transposing and pairing a tile takes as long as what is done with it for this many queries (measured with
  // 2 and 8 heads of 128 and one row: 30 and 9; heads of 576 with shared values: 13).
  int64_t tile_cost() const { return parts_ ? 24 : 8; }

  int64_t scratch_floats(int64_t queries) const;  // of a thread that computes jobs of at most so many
  // Sums up what the job sees of the positions [first, last), `first` a multiple of kChunk. `chunk` is memory for the
  // sums over one chunk; it is not used where there is no second one.
  void sum_up(const AttentionJob& job, ConstMatrix q, int64_t first, int64_t last, float* scratch,
              const AttentionSums& sums, const AttentionSums& chunk) const;
  // The job's query i, of all chunks that it sees. Overwrites the sums.
  void finish(const AttentionJob& job, int64_t i, const AttentionSums& sums, Matrix out) const;

 private:
  // One thread's memory. Scores are queries times the transposed keys, so that a lane is one position and no sum runs
  // across lanes. Keys and queries are words of four bytes: a float, or two bfloat16 values.
  struct Scratch {
    float *keys, *transposed_keys, *values, *q, *scores, *keep;
    uint32_t *paired_values, *parts;  // of a plan in parts
    int tile_rows = 0;                // TileProductArgs::tile_rows
  };
  // Where the positions [first, first + count) of one tile are.
  struct Tile {
    int64_t first, count;
    int64_t blind;  // rows that see none of them
    const void* keys;
    PageRun next_keys;  // of the tile after this one
  };

  int64_t floats_of_query() const;
  Scratch divide(float* memory, int64_t queries) const;
  void load_query(const void* src, DType dtype, float* dst, int64_t part_stride) const;
  void load_queries(const AttentionJob& job, ConstMatrix q, const Scratch& s) const;
  // Queries from `from` on whose scores are there at the same time: as many as fill a tile register, or all.
  int64_t block_queries(const AttentionJob& job, int64_t from) const;
  float* scores_of(const Scratch& s, int64_t query) const { return parts_ ? s.scores : s.scores + query * kTile; }
  void sum_up_chunk(const AttentionJob& job, int64_t first, int64_t last, int64_t prefetch_last, Scratch& s,
                    const AttentionSums& sums) const;
  // The probabilities of a tile, and the factors by which what was summed before shrinks.
  void score_tile(const AttentionJob& job, const Tile& tile, Scratch& s, const AttentionSums& sums) const;
  // Adds the values of a tile.
  void add_values(const AttentionJob& job, const Tile& tile, Scratch& s, const AttentionSums& sums) const;

  const Pages &keys_, &values_;  // values_.data null: they are columns of the keys
  bool shared_;
  int64_t value_width_;
  float scale_;                                // of the scores
  DType type_;                                 // of the rows of keys and values in the products
  int64_t key_stride_, value_stride_;          // elements, multiples of 32
  int64_t key_words_, value_words_, q_words_;  // of one row
  bool pairs_ = false;                         // queries stay bfloat16
  // Both products by tile instructions, which multiply bfloat16 values: float32 queries and the probabilities are sums
  // of three of them.
  bool parts_ = false;
  int64_t q_parts_ = 1;
  kernels::cpu::TileProductFn score_, mix_;
  kernels::cpu::SoftmaxFn softmax_ = softmax_tile;
};

}  // namespace sluice::ops::cpu
