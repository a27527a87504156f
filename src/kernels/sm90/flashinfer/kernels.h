// SPDX-License-Identifier: Apache-2.0
// The instances of FlashInfer's kernels and their launches, with plain pointers and numbers. Each takes minutes to
// compile where cores are few, so the files here include little of Sluice: attention/prefill.h and
// mla/latent_attention.h are what the rest of it calls.
#pragma once

#include <cstdint>

namespace sluice::sm90 {

// Whether this build has them; without, the launches below throw.
bool has_flashinfer();

// attention/hopper/prefill_sm90.cuh: pages, causal, heads of kFlashWidth values in bfloat16. Where pages are copied
// whole, the values of positions beyond a sequence's end in the same kFlashPage positions are multiplied by zero: they
// must be finite.
inline constexpr int kFlashWidth = 128;
inline constexpr int kFlashRows = 128;  // rows of one query head that a block works on together
// Blocks whose positions are a power of two and at least kFlashPage are loaded by the copy engine (page_mainloop.cuh),
// 128 positions at a time. Others are gathered row by row, 96 at a time. Tiles begin at multiples of 128 or 96.
inline constexpr int kFlashPage = 64;
constexpr bool copies_flash_pages(int block_size) {
  return block_size >= kFlashPage && (block_size & (block_size - 1)) == 0;
}
inline constexpr int kFlashPositions = 128;  // of the first kind: what work is dealt out by

// Arrays that blocks find their work in, in device memory; one value per item except in `begin`. FlashInfer's names:
// work_indptr, qo_tile_indices, head_indices, qo_indptr, kv_indptr, qo_lens, kv_lens.
struct FlashWork {
  int32_t* begin;        // [blocks + 1]: the items of a block
  int32_t* tile;         // of the sequence's rows
  int32_t* head;         // query head
  int32_t* first_row;    // of the sequence, in the batch
  int32_t* first_block;  // of the sequence, in the list of blocks
  int32_t* rows;         // new ones of the sequence
  int32_t* positions;    // of the sequence, the new rows among them
};

struct FlashArgs {
  const void* q;  // rows `q_stride` elements apart; addresses and strides of rows are multiples of 16 bytes
  int64_t q_stride;
  void* out;
  int64_t out_stride;
  const void *keys, *values;  // [blocks, key_heads, block_size, kFlashWidth]
  const int32_t* blocks;
  int rows, heads, key_heads, block_size;
  float scale;
  FlashWork work;
  int grid;
};
// On the current device, once before the first launch there.
void allow_flash();
void launch_flash(const FlashArgs& args, void* stream);

}  // namespace sluice::sm90
