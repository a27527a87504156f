// SPDX-License-Identifier: Apache-2.0
// Tokens, or GEMM1's float results, to the rows layout of the grouped GEMM, rounded to the run's input format.
#pragma once

#include "activation/kind.h"
#include "kernels/sm90/device.h"
#include "kernels/sm90/grouped_gemm/args.h"
#include "kernels/sm90/route/route.h"

namespace sluice::sm90 {

struct RowsArgs {
  // Source: tokens [T, columns] that are copied to each local pair's row (gather), or float rows.
  const void* tokens;  // null: rows
  bool tokens_f32;
  const float* rows;  // [row, columns], or raw [row, 2, columns] with `raw`
  int64_t max_tokens;
  const int32_t* num_tokens;
  int columns, top_k, locals;

  // raw: up and gate are rounded to e4m3 groups of 128, then activated (the Blackwell path of FP8 block).
  bool raw, gated;
  activation::Activation act;
  const float *bias, *bias_gate, *alpha, *beta, *limit;

  Round round;
  bool e4m3;                       // rows hold codes (FP8 tensor cores), else bf16
  const InputScale* static_scale;  // never null
  uint8_t* out;                    // rows layout
  int out_slabs, scale_runs;       // runs of 128 columns with a scale
  float* row_scale;                // [rows]: fp8_token, nvfp4_token
  float* block_scale;              // fp8_group: [tile][128 columns][padded]
  // Routing and its tables (route.h). The gather leaves weights where the sum reads them, and the caller's copies.
  Pairs pairs;
  float* weights;         // null: there already
  int32_t* chosen_ids;    // or null
  float* chosen_weights;  // or null
  const int32_t *rank, *counts, *expert_tile, *expert_per;
  const Tile* tiles;
  const Header* header;
  int32_t *pair_row, *row_pair;
  int local_offset, experts;
  void* zero_absent;     // result [pairs, result_columns] whose absent rows are cleared, or null
  int64_t result_bytes;  // of one pair's row
};

void launch_gather(const RowsArgs& args, Stream stream, bool pdl);
// max_rows: grid bound.
void launch_requantize(const RowsArgs& args, int64_t max_rows, Stream stream, bool pdl);

}  // namespace sluice::sm90
