// SPDX-License-Identifier: Apache-2.0
// Causal attention over paged keys and values, for single new tokens, drafts, chunks of prompts and whole prompts in
// one launch (prefill.h has a faster kernel for the last two). There are two kinds of kernel:
//   tensor cores   bfloat16 queries in heads of 64 and 128 values over pages of bfloat16 or e4m3: attention_tokens.cuh
//                  for sequences of few pairs (row, head), attention_bf16.cuh for others
//   float32        attention_f32.cuh, for every other shape and type
// Which kind runs depends on shapes and types alone, never on the batch.
//
// FlashInfer's FA2 kernel was the alternative. It rounds probabilities to bfloat16, where ops.h asks for float32
// throughout.
//
// On tensor cores, where a row's bits may not depend on the rest of the batch, positions are cut into chunks of
// kAttentionChunk at fixed places. A chunk's result (sum of p v, sum of p, maximum) depends on the row and the chunk
// alone. Chunks are folded in ascending order, always by the same arithmetic (fold.cuh), in the registers of one block
// or by a second kernel. So how the work is split does not show in the bits, and may follow the batch. Elsewhere each
// block leaves one result, and its part may begin at any tile. attention_f32.cuh never splits a sequence's positions.
#pragma once

#include "base/bf16.h"
#include "kernels/sm90/attention/plan.h"
#include "kernels/sm90/device.h"
#include "kernels/sm90/rows.h"

namespace sluice::sm90 {

// Queries, pages and results; all pointers of this file are device memory.
struct AttentionOperands {
  ConstRowsView q;     // [rows, heads * key_width] in bfloat16 or float32
  const void* keys;    // [blocks, key_heads, block_size, key_width] in float32 if pages_f32, e4m3 if pages_e4m3, else
                       // bfloat16
  const void* values;  // [blocks, key_heads, block_size, value_width] in the same type; null: the first columns of the
                       // keys
  bool pages_f32;
  bool pages_e4m3 = false;  // not both
  float value_scale = 1;    // what results are multiplied by: the scale of e4m3 values
  RowsView out;             // [rows, heads * value_width] in bfloat16 or float32
  AttentionShape shape;
  int block_size;  // positions of a block of the pages
  float scale;     // of the products, and of e4m3 keys
};

// Rows of one sequence are consecutive, and so are its positions.
struct AttentionBatch {
  int64_t rows;
  int sequences;
  // Every sequence has at most one row, there are as many sequences as rows, and those without come last.
  bool one_row_each;
  const int32_t* row_begin;    // [sequences + 1] the first row of each sequence
  const int32_t* block_begin;  // [sequences + 1] where the blocks of each sequence begin in `blocks`
  const int32_t* blocks;       // blocks of the pages, in the order of positions; they cover context + rows
  const int32_t* contexts;     // [sequences] positions before the first row
  int prefill_rows;            // sequences of at least this many rows are left to prefill.h; 0: none is
};

// q, k and v of new tokens as they were projected, in bfloat16: what HeadsArgs (rope.h) says of them, for the kernels
// that norm and rotate q and k and store k and v themselves.
struct ProjectedHeads {
  const bf16_t *keys, *values;   // [rows, key_heads * width], rows q.stride apart, as q is; null: q is queries, and the
                                 // pages hold the new keys and values
  const float *q_norm, *k_norm;  // [width] each; null: none
  float q_eps, k_eps;
  const float *cosine, *sine;  // [rows, width / 2]; null: no rotation
  const int32_t* kv_slots;     // [rows]: block * block_size + offset; -1: not stored
  void *key_pages, *value_pages;
  float key_scale;  // of e4m3 pages; the values' is value_scale
};

// out = softmax(scale q k^T) v per row and head, causal.
struct AttentionArgs : AttentionOperands, AttentionBatch {
  // Workspace: results of chunks or parts, where the plan splits sequences; else not used.
  AttentionPlan plan;
  float* partial;            // [partial_rows * heads, results, value_width]
  float* partial_stats;      // [partial_rows * heads, results, 2]: maximum times scale times log2 e, sum
  ProjectedHeads projected;  // only if takes_projected()
};

// Whether the kernels can take q, k and v as they were projected: new tokens on tensor cores, aligned to 16 bytes.
inline bool takes_projected(const AttentionArgs& a) {
  const ProjectedHeads& h = a.projected;
  const auto aligned = [](const auto*... p) { return ((reinterpret_cast<uintptr_t>(p) % 16 == 0) && ...); };
  return a.plan.tensor_cores && a.plan.tokens && !a.plan.tiles && a.one_row_each && a.prefill_rows == 0 &&
         (a.plan.cluster > 0 || takes_projected_heads(a.plan.token_tiles)) && rows_aligned(a.q) &&
         aligned(h.keys, h.values, h.q_norm, h.k_norm, h.cosine, h.sine, a.keys, a.values, h.key_pages, h.value_pages);
}

// On the current device, once before the first launch there: allows the kernels' shared memory.
void allow_attention();
void launch_attention(const AttentionArgs& args, Stream stream, bool pdl);

}  // namespace sluice::sm90
