// SPDX-License-Identifier: Apache-2.0
// The keys and values of prompts from their latent rows: kv_b times each, on tensor cores (wgmma), bfloat16 with sums
// in float32, rounded once.
#pragma once

#include "kernels/sm90/device.h"
#include "kernels/sm90/mla/expanded_plan.h"

namespace sluice::sm90 {

struct KeyValueArgs {
  const void* pages;           // [blocks, block_size, kLatentCached]
  const int32_t* blocks;       // of all sequences
  const int32_t* block_begin;  // [sequences]
  int sequences, block_size;
  // [sequences + 1]: the first row of each prompt in `out`, a multiple of kExpandedTile; where a sequence is none, that
  // of the next. [sequences]: positions of each.
  const int32_t *first, *lengths;
  const void* weight;  // kv_b's rows of `heads` heads
  int heads;
  // For each head `rows` rows of key | value; the key ends in the latent row's rotary part. Rows between two prompts
  // and up to the multiple of kExpandedTile after the last are zeros.
  void* out;
  int64_t rows;
};
void launch_key_values(const KeyValueArgs& args, int multiprocessors, Stream stream, bool pdl);
// On the current device, once before the first launch there.
void allow_key_values();

}  // namespace sluice::sm90
