// SPDX-License-Identifier: Apache-2.0
// Tokens, or GEMM1's float results, to the rows layout of the grouped GEMM, rounded to the run's input format.
#pragma once

#include "activation/kind.h"
#include "kernels/sm90/device.h"
#include "kernels/sm90/grouped_gemm/args.h"
#include "kernels/sm90/route/route.h"

namespace sluice::sm90 {

// Where rows come from. At most one of `tokens` and `float_rows` is not null; both are null if the dense GEMM is given
// rows that are quantised already.
struct RowSource {
  const void* tokens;  // [T, columns]: each is copied to the row of every local pair (gather, route_permute, dense)
  bool tokens_f32;     // else bf16
  const float* float_rows;  // GEMM1's float result [row, columns], or [row, 2, columns] if `raw` (requantize)
  int64_t max_tokens;
  const int32_t* num_tokens;   // device; null: max_tokens
  int columns, top_k, locals;  // top_k and locals: gather only
  // Of float_rows only. raw: up and gate are rounded to e4m3 groups of 128 columns, then the bias is added and `act`
  // applied (the Blackwell path of FP8 block). Otherwise that has been done.
  bool raw, gated;
  activation::Activation act;
};

// Where they go, and how they are rounded. All callers fill it.
struct RowDestination {
  Round round;
  bool e4m3;                       // rows hold codes (FP8 tensor cores), else bf16
  const InputScale* static_scale;  // never null
  uint8_t* data;                   // rows layout
  int k_blocks, scale_runs;        // scale_runs: groups of 128 columns that have a scale
  float* row_scale;                // [rows] decode factors of fp8_token and nvfp4_token; else null
  float* block_scale;              // fp8_group: [tile][128 columns][padded]; else null
  float* token_scale;  // gather with fp8_group: [tokens, token_scale_stride()], from which place_scales_kernel makes
                       // block_scale; null: the gather does it
};
// So that a token's scales can be read 16 bytes at a time.
HD constexpr int token_scale_stride(int scale_runs) { return (scale_runs + 3) / 4 * 4; }

// The routing and its tables (route.h). The gather reads pairs, rank, counts, expert_tile, expert_tile_rows, tiles,
// local_offset and experts, and writes what the others point to. route_permute makes the tables itself and reads
// zero_absent and result_bytes only; requantize reads tiles and header only; the dense GEMM leaves all of it null.
struct GatherArgs {
  TopkPairs pairs;
  float* weights;         // [pairs], where the finalize kernel reads them; null: they are there already
  int32_t* chosen_ids;    // [pairs] copy for the caller, or null
  float* chosen_weights;  // [pairs] copy for the caller, or null
  const int32_t *rank, *counts, *expert_tile, *expert_tile_rows;
  const RowTile* tiles;
  const Header* header;
  int32_t *pair_row, *row_pair;
  int local_offset, experts;
  void* zero_absent;     // results [pairs, H] whose rows of absent pairs are cleared; null if the call finalizes
  int64_t result_bytes;  // of one row of these
};

// One type for the four kernels that write rows: the launch for small batches passes the arguments of its kernel and of
// the warm-up together, and a layout of its own per kernel would copy the same fields.
struct RowsArgs {
  RowSource source;
  ActivationArgs activation;  // read only if source.raw
  RowDestination out;
  GatherArgs gather;
};

// One launch, or two with token_scale. max_tiles, max_n: the most tiles, and rows of a tile.
void launch_gather(const RowsArgs& args, int64_t max_tiles, int max_n, Stream stream, bool pdl);
// max_tiles, max_n, max_rows: the most tiles, rows of a tile, and rows of all tiles together.
void launch_requantize(const RowsArgs& args, int64_t max_tiles, int max_n, int64_t max_rows, Stream stream, bool pdl);

}  // namespace sluice::sm90
