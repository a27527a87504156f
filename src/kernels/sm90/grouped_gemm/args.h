// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "activation/kind.h"
#include "format/quantize.h"
#include "kernels/sm90/layout.h"

namespace sluice::sm90 {

// What the epilogue leaves behind.
enum class Store : int {
  rows,        // GEMM2's rows in bf16: rounded as `round` says
  rows_e4m3,   // GEMM2's rows as e4m3 codes, static scale
  rows_group,  // e4m3 codes with a scale for 128 columns (block-scaled tiles), only in registers
  activated,   // float32 [row, columns]: a second kernel rounds it, because it needs more columns than a tile has
  raw,         // float32 [row, 2, columns]: up and gate before bias and activation
  result,      // GEMM2: [pair, columns] in bf16 or float32
};
// GEMM1's rows are rounded in registers (rounded.cuh) after the two activations of large models, without parameters.
HD constexpr bool rounds_in_registers(activation::Activation act, bool parameters) {
  return !parameters && (act == activation::Activation::swiglu || act == activation::Activation::relu2);
}

enum class Round : int { plain, fp8_static, mxfp8, nvfp4, fp8_token, fp8_group, nvfp4_token };

// A calibrated scale in device memory, so that a refit reaches captured graphs. All ones where a format has none.
struct InputScale {
  float factor = 1.0f;   // what the rows' codes times their block scales are multiplied by
  float inverse = 1.0f;  // fp8_static: what values are multiplied by before rounding
  format::Nvfp4Global global;
};

// One GEMM: D[row, n] = sum_k W[row, k] X[n, k] for every tile of rows.
struct Gemm {
  const uint8_t* weights;      // WeightShape
  const float* row_scale;      // [experts, row_tiles * 128] or null
  const float* block_scale;    // fp8_block: [experts, row_tiles, slabs, 4]: up, gate, unused
  const uint8_t* x;            // rows layout
  const float* x_row_scale;    // [rows] or null
  const float* x_block_scale;  // fp8_block: [tile][slab][padded]
  const InputScale* x_scale;   // never null
  int slabs, row_tiles;        // row tiles of 128
  int splits;                  // K is cut into so many tasks; the last to finish adds them in order
  float* partial;              // [tile * row_tiles * splits][128 * padded]

  Store store;
  Round round;
  bool gated, out_f32;
  activation::Activation act;
  int columns;                        // I or H
  const float *bias, *bias_gate;      // [experts, columns] or null
  const float *alpha, *beta, *limit;  // [experts] or null
  const float* pair_weight;           // llama4: [pairs], multiplies the result before the activation; or null
  void* out;
  float* out_block_scale;       // rows_group
  int out_slabs;                // of GEMM2's rows
  const InputScale* out_scale;  // of GEMM2's rows; null for results
};

// Experts are counted in the epilogues' staging (early.cuh).
inline constexpr int kEarlyExperts = 2048;
// The routing that the caller gave, where it is worth reading before the tables are made.
struct GivenRouting {
  const int32_t* ids;  // [tokens, top_k]; null: the tables are waited for
  bool packed;
  int64_t tokens;             // the captured maximum
  const int32_t* num_tokens;  // device; null: tokens
  int top_k, experts, local_offset, locals;
};

struct GroupedGemmArgs {
  Gemm gemm[2];
  int gemms;  // 2: the second waits, tile by tile, for the first
  const Tile* tiles;
  Header* header;
  const int* row_pair;  // [rows] token * K + k
  int* arrivals[2];     // [tiles * row_tiles]
  int* ready;           // [tiles]
  float* token_scale;   // [rows]: the last block of a tile rounds GEMM1's rows to NVFP4 per token; null: not
  int ticket;           // which of the header's counters
  GivenRouting given;
};

}  // namespace sluice::sm90
