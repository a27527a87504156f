// SPDX-License-Identifier: Apache-2.0
// The instance of FlashInfer's attention/mla_hopper.cuh: latent attention in its absorbed form, 512 latent and 64
// rotary values in bfloat16 (DeepSeek-V2 and V3). mla/latent_attention.h calls it.
#pragma once

#include <cstdint>

namespace sluice::sm90 {

inline constexpr int kLatent = 512, kLatentRope = 64, kLatentCached = kLatent + kLatentRope;
inline constexpr int kLatentRows = 64;  // pairs (row, head) that a block works on together
inline constexpr int kLatentTile = 64;  // positions that it reads together

// Arrays that blocks find their work in, one value per item except in `begin`. An item is up to kLatentRows pairs at
// some positions of a sequence: heads of one row, or all heads of some neighbouring rows. FlashInfer's names:
// work_indptr, q_indptr, kv_indptr, partial_indptr, q_len, kv_len, q_start, kv_start, kv_end.
struct LatentWork {
  int32_t* begin;        // [grid + 1]: the items of a block
  int32_t* row;          // the first one, in the batch
  int32_t* first_block;  // of the row's sequence, in the list of blocks
  int32_t* partial;      // row of the partial results that its first head writes; -1: its result is final
  int32_t* rows;         // 0: nothing to do
  int32_t* positions;    // that the last row sees
  int32_t* first_head;
  int32_t *first, *last;  // positions [first, last) of the item; first is a multiple of kLatentTile
  int32_t* none;          // [grid] zeros: the kernel's own merging has nothing to do
};

struct LatentArgs {
  const void* q;  // rows `q_stride` elements apart, kLatentCached for each head; multiples of 16 bytes
  int64_t q_stride;
  void* out;  // kLatent for each head
  int64_t out_stride;
  const void* pages;  // [blocks, block_size, kLatentCached]
  const int32_t* blocks;
  int heads, block_size;
  float scale;
  void* partial;         // bfloat16 [items * kLatentRows, kLatent]
  float* partial_stats;  // [items * kLatentRows]: log2 of the sum of exponentials
  LatentWork work;
  bool causal;  // items may have several rows
  int grid;     // at most the number of multiprocessors: its blocks wait for each other
};
void allow_latent();
void launch_latent(const LatentArgs& args, void* stream);

}  // namespace sluice::sm90
