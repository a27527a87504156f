// SPDX-License-Identifier: Apache-2.0
// Both products of the experts of one token, after its routing (one_token_kernel of route_permute): two launches, which
// stream weights in groups of 16 rows. Sums are added in another order than the grouped GEMM's, so deterministic layers
// do not come here.
#pragma once

#include "kernels/sm90/device.h"
#include "kernels/sm90/grouped_gemm/args.h"
#include "kernels/sm90/route/route.h"

namespace sluice::sm90 {

struct OneTokenArgs {
  // The tables of one token, and its rounded row in row 0 of every tile. All num_tiles tiles have been written, those
  // that are not used with zeros.
  const RowTile* tiles;
  int num_tiles;  // 1 to 32
  const Header* header;
  const int* row_pair;  // [rows]

  // Of gemm[0] the weights, x, and of the epilogue gated, act, columns, activation, pair_weight, and round, which is
  // how rows of the second product are rounded. Of gemm[1] the weights, x.scale, and of the epilogue columns,
  // activation, out and out_f32.
  GemmArgs gemm[2];
  float* middle;              // [rows, I] activated
  float* middle_max;          // [rows, groups of 16 weight rows] the largest magnitudes of their columns
  bool middle_bf16;           // rounded to bfloat16 first (NVFP4 per token)
  bool finalize;              // out [H] is the weighted sum; else out [pairs, H], of the rows that the tables have
  const float* weights;       // [pairs] of the sum; null: 1
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
void launch_one_token(const OneTokenArgs& args, WeightOperand operand, int multiprocessors, Stream stream, bool pdl);

}  // namespace sluice::sm90
