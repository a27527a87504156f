// SPDX-License-Identifier: Apache-2.0
// The instance of FlashInfer's attention/hopper/prefill_sm90.cuh for prompts of latent attention in its expanded form:
// causal, keys of 192 and values of 128 in bfloat16, in contiguous rows. mla/expanded.h calls it.
#pragma once

#include <cstdint>

#include "kernels/sm90/flashinfer/kernels.h"

namespace sluice::sm90 {

inline constexpr int kExpandedKey = 192, kExpandedValue = 128;
// Positions that the kernel reads together, from multiples of this number on. Memory from a sequence's last position to
// the next multiple is read too and must be finite.
inline constexpr int kExpandedTile = 128;

struct ExpandedArgs {
  const void* q;  // rows `q_stride` elements apart, kExpandedKey for each head; multiples of 16 bytes
  int64_t q_stride;
  void* out;  // kExpandedValue for each head
  int64_t out_stride;
  // Rows of kExpandedKey and kExpandedValue values, `stride` elements apart; those of a head begin `head_stride`
  // elements after those of the one before. Multiples of 16 bytes.
  const void *keys, *values;
  int64_t stride, head_stride;
  int rows, positions, heads;
  float scale;
  FlashWork work;  // first_block: first position of the sequence
  int grid;
};
// On the current device, once before the first launch there.
void allow_expanded();
void launch_expanded(const ExpandedArgs& args, void* stream);

}  // namespace sluice::sm90
