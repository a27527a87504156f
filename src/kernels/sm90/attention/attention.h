// SPDX-License-Identifier: Apache-2.0
// Causal attention over paged keys and values, for single new tokens, drafts, chunks of prompts and whole prompts in
// one launch (prefill.h has a faster kernel for the last two). Tensor cores for bfloat16 queries in heads of 64 and 128
// values over pages of bfloat16 or e4m3: attention_tokens.cuh for sequences of few pairs (row, head),
// attention_bf16.cuh for others. Plain float32 arithmetic (attention_f32.cuh) for every other shape and type. Which of
// the two ways runs depends on shapes and types alone, never on the batch.
//
// FlashInfer's FA2 kernel was the alternative. It rounds probabilities to bfloat16, where ops.h asks for float32
// throughout.
//
// The first way cuts positions into chunks of kAttentionChunk at fixed places. A chunk's result (sum of p v, sum
// of p, maximum) depends on the row and the chunk alone; chunks are folded in ascending order, always by the same
// arithmetic (fold.cuh), in the registers of one block or by a second kernel. So how the work is split does not show in
// the bits, and may follow the batch. attention_f32.cuh never splits a sequence's positions.
#pragma once

#include "kernels/sm90/attention/plan.h"
#include "kernels/sm90/device.h"
#include "kernels/sm90/rows.h"

namespace sluice::sm90 {

struct AttentionArgs {
  ConstRowsView q;     // [rows, heads * key_width]
  const void* keys;    // [blocks, key_heads, block_size, key_width]
  const void* values;  // [blocks, key_heads, block_size, value_width]; null: the first columns of the keys
  bool pages_f32;      // else bf16, or
  bool pages_e4m3 = false;
  float value_scale = 1;  // what results are multiplied by: the scale of e4m3 values. That of the keys is in `scale`.
  RowsView out;           // [rows, heads * value_width]
  AttentionShape shape;
  int block_size;
  float scale;

  int64_t rows;
  int sequences;
  bool one_row_each;           // every sequence has at most one row, and there are as many sequences as rows
  const int32_t* row_begin;    // [sequences + 1]
  const int32_t* block_begin;  // [sequences + 1]
  const int32_t* blocks;
  const int32_t* contexts;  // [sequences]
  int prefill_rows;         // sequences with at least as many new rows are left alone: prefill.h's; 0: none is

  AttentionPlan plan;
  // Chunks' results, where the plan splits sequences: [rows * heads, max_chunks] of value_width values, and (maximum
  // times scale times log2 e, sum).
  float* partial;
  float* partial_stats;
};

// On the current device, once before the first launch there: allows the kernels' shared memory.
void allow_attention();
void launch_attention(const AttentionArgs& args, Stream stream, bool pdl);

}  // namespace sluice::sm90
