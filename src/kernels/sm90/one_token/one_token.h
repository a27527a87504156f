// SPDX-License-Identifier: Apache-2.0
// Both products of the experts of one token, whose routing is given or chosen by a launch before: two launches, which
// stream weights in groups of 16 rows. No table is made: every block finds the experts from the ids, and rounds the
// row. Sums are added in another order than the grouped GEMM's, so deterministic layers do not come here.
#pragma once

#include "kernels/sm90/device.h"
#include "kernels/sm90/grouped_gemm/args.h"
#include "kernels/sm90/route/route.h"

namespace sluice::sm90 {

struct OneTokenArgs {
  // Ids outside of 0 .. experts - 1 and those of other ranks contribute nothing.
  TopkPairs pairs;
  int experts, local_offset, locals;
  const bf16_t* x;  // [columns], aligned to 16 bytes
  int x_columns;    // a multiple of 8
  // Copies for the caller of what was chosen, -1 where an id contributes nothing anywhere; null: none.
  int32_t* chosen_ids;
  float* chosen_weights;

  // Of gemm[0] the weights, x.scale, and of the epilogue gated, act, columns, activation, and round, which is how rows
  // of both products are rounded. Of gemm[1] the weights, x.scale, and of the epilogue columns, activation and out.
  GemmArgs gemm[2];
  float* middle;  // [pairs, I] activated
  // [pairs, groups of 16 weight rows] the largest magnitudes of their columns; null unless rows have a scale each.
  float* middle_max;
  bool middle_bf16;           // rounded to bfloat16 first (NVFP4 per token)
  bool weighs_input;          // pairs' weights multiply what is activated; else the results
  bool finalize;              // out [H] is the sum; else out [pairs, H], zeros for absent pairs
  const int32_t* num_tokens;  // [1] device; null: 1. None: nothing is written
  int top_k;                  // at most kOneTokenPairs
};

// A layer as the kernels need to know it.
struct OneTokenShape {
  int k_blocks[2], columns[2];  // of both products: K in k-blocks; I and H
  bool gated;
  int top_k;
};
// Whether the kernels can run it (I is a multiple of 8, and it fits into their shared memory) and are quicker than the
// grouped GEMM (tuning.h).
bool one_token_pays(const OneTokenShape& shape, WeightOperand operand, int multiprocessors);

// On the current device, before the first launch.
void allow_one_token(WeightOperand operand);
// follows_own: the kernel ahead is one of this library's (moe::MoeArgs).
void launch_one_token(const OneTokenArgs& args, WeightOperand operand, int multiprocessors, Stream stream, bool pdl,
                      bool follows_own);

}  // namespace sluice::sm90
