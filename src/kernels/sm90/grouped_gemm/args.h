// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "activation/kind.h"
#include "format/quantize.h"
#include "kernels/sm90/layout.h"
#include "kernels/sm90/rows_map/rows_map.h"

namespace sluice::sm90 {

// What the epilogue writes to EpilogueArgs::out.
enum class Store : int {
  rows,        // the input rows of GEMM2 in bf16, rounded as `round` says
  rows_e4m3,   // the input rows of GEMM2 as e4m3 codes with a static scale
  rows_group,  // the same with a scale per 128 columns (block-scaled tiles); only where it is rounded in registers
  activated,   // float32 [row, columns]; a second kernel rounds it, because a scale needs more columns than a tile has
  raw,         // float32 [row, 2, columns]: up and gate before bias and activation; a second kernel does the rest
  result,      // GEMM2: [pair, columns] in bf16 or float32
};
// GEMM1's rows are rounded in registers (rounded.cuh) after the two activations of large models, without parameters.
HD constexpr bool rounds_in_registers(activation::Activation act, bool parameters) {
  return !parameters && (act == activation::Activation::swiglu || act == activation::Activation::relu2);
}

enum class Round : int { plain, fp8_static, mxfp8, nvfp4, fp8_token, fp8_group, nvfp4_token };

// A calibrated scale. It is in device memory, so that a refit reaches captured graphs. All ones if a format has none.
struct InputScale {
  float factor = 1.0f;   // what the rows' codes times their block scales are multiplied by
  float inverse = 1.0f;  // fp8_static: what values are multiplied by before rounding
  format::Nvfp4Global global;
};

// The weights of one GEMM. Which scales exist follows from the operand (layout.h): a null scale means 1.
struct WeightArgs {
  const uint8_t* data;       // WeightShape; never null
  const float* row_scale;    // [experts, m_tiles * 128]; null unless has_row_scale(operand)
  const float* block_scale;  // [experts, m_tiles, scale runs, 4]: up, gate, unused; null unless block_scaled(operand)
};

// The input rows of one GEMM, in the rows layout (layout.h).
struct InputArgs {
  const uint8_t* data;       // null: the rows lie one after the other where GroupedGemmArgs::rows_in_place says
  const float* row_scale;    // [rows] decode factors; null if rows share x.scale->factor (no per-token format)
  const float* block_scale;  // [tile][128 columns][padded]; null unless block_scaled(operand)
  const InputScale* scale;   // never null
};

// Biases and parameters of the activation, per expert. Null: no bias, or the activation's default parameter.
struct ActivationArgs {
  const float *bias, *bias_gate;      // [experts, columns] float32; bias_gate only if gated
  const float *alpha, *beta, *limit;  // [experts]
};

// What happens to the sums of a tile. Legal combinations, by `store`:
//   rows, rows_e4m3, rows_group: GEMM1. out is in the rows layout with out_k_blocks k-blocks; out_scale is not null.
//     rows_group writes a scale per 128 columns to out_block_scale, which is then not null.
//   activated, raw: GEMM1. out is float32; out_scale, out_k_blocks and out_block_scale are not read.
//   result: GEMM2 or a dense GEMM. out_f32 says the type of out, gated is false, and of `activation` only bias is read.
struct EpilogueArgs {
  Store store;
  Round round;  // of the rows of GEMM2
  bool gated, out_f32;
  activation::Activation act;
  int columns;  // of the result: I for GEMM1, H for GEMM2
  ActivationArgs activation;
  const float* pair_weight;  // llama4: [pairs], multiplies the sums before the activation; else null
  void* out;
  float* out_block_scale;       // [tile][128 columns][padded]
  int out_k_blocks;             // of the rows of GEMM2
  const InputScale* out_scale;  // of the rows of GEMM2
};

// One GEMM: D[row, n] = sum_k W[row, k] X[n, k] for every tile of rows. Filled by FusedMoe::gemm_args (two of them)
// and by DenseGemm::run (one).
struct GemmArgs {
  WeightArgs weights;
  InputArgs x;
  int k_blocks, m_tiles;  // of the weights: columns in k-blocks, rows in M-tiles of 128
  int tiles_in_turn;      // tiles whose tasks take turns at each group of M-tiles (task.cuh); 1: tile by tile
  int splits;             // the tasks that K is cut into; the task that finishes last adds the partial sums in order
  float* partial;         // [tile * m_tiles * splits][128 * padded]; null if splits is 1
  EpilogueArgs epilogue;
};

// Experts are counted in the shared memory that later stages the epilogues (early_weights.cuh).
inline constexpr int kEarlyExperts = 2048;
// The routing that the caller gave. A block reads it to find its first task before the tables are there
// (early_weights.cuh). All zero if it should wait for the tables.
struct GivenRouting {
  const int32_t* ids;         // [tokens, top_k]; null: the tables are waited for, and nothing else here is read
  bool packed;                // ids hold the weights too (routing::packed_id)
  int64_t tokens;             // the captured maximum
  const int32_t* num_tokens;  // device; null: tokens
  int top_k, experts, local_offset, locals;
};

// One launch: both GEMMs of a layer, or one GEMM (dense, or where a kernel must run between the two).
struct GroupedGemmArgs {
  GemmArgs gemm[2];  // the second is read only if gemms is 2
  int gemms;         // 2: the second waits, tile by tile, for the first
  const RowTile* tiles;
  Header* header;
  const int* row_pair;      // [rows] token * top_k + slot
  int* arrivals[2];         // [tiles * M-tile groups] cleared counters; null if that GEMM has one split
  int* ready;               // [tiles] cleared counters of finished parts; read only if gemms is 2
  float* token_scale;       // [rows]: not null only if gemms is 2, in tiles with completes_token_rows: the block that
                            // finishes a tile rounds its rows to gemm[1].x.data and writes their factors here
  int ticket;               // which of the header's counters deals the tasks
  TensorMap rows_in_place;  // of gemm[0], read only if its x.data is null: boxes of max_n / cluster rows. Row n of a
                            // tile is row row_base + n. Tiles for which reads_in_place()
  GivenRouting given;
};

}  // namespace sluice::sm90
