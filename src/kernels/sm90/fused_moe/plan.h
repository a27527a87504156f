// SPDX-License-Identifier: Apache-2.0
// What one call of the layer runs, and where its workspace lies: host arithmetic that needs no device.
#pragma once

#include "kernels/sm90/fused_moe/problem.h"
#include "kernels/sm90/grouped_gemm/args.h"
#include "kernels/sm90/grouped_gemm/workspace_bound.h"
#include "kernels/sm90/route/route.h"

namespace sluice::sm90 {

// Workspace pieces; with a null workspace only `bytes` and what lies before the pieces mean anything. The kernels of
// one token have no other pieces than the tables' ids and weights, middle and middle_max, and their rows are pairs; all
// else of tables, tiles and m_groups is zero.
struct MoePlan {
  GemmChoice choice;
  bool one_token;  // both products by the kernels of one token (one_token.h)
  Store store;
  int64_t rows, tiles;                 // the most that any routing can need
  int m_groups[2];                     // tasks that a tile of rows has in each GEMM, per part of K
  int64_t bytes = 0;                   // of a call of exactly these tokens; MoeWorkspace has what smaller calls need
  RouteTables tables{};                // [pairs], [tiles], [rows] as route.h says
  uint8_t *x1, *x2;                    // [rows * k-blocks * 128] of GEMM1 and GEMM2
  float *x1_row_scale, *x2_row_scale;  // [rows], or null
  float *x1_block_scale, *x2_block_scale;  // [rows * scale runs], or null
  float* token_scale;                      // [tokens * their stride] (RowDestination), or null
  float* middle;                           // [rows, I], or [rows, 2, I] for Store::raw; else null
  float* middle_max;  // [rows, groups of 16 weight rows] of one token whose rows have scales, or null
  float* partial[2];  // [rows * weight rows of all M-tile groups * splits], or null
  void* results;      // spec.dtype [pairs, H]; null unless the call finalizes
};
MoePlan plan_moe(const MoeSpec& spec, int multiprocessors, int64_t tokens, const GemmForce& force, void* workspace);

// The workspace that any call of up to a number of tokens needs.
WorkspaceBound moe_workspace(const MoeSpec& spec, int multiprocessors);

// Where a prepared layer lies in one block of device memory, aligned to 256 bytes.
struct MoeMemory {
  MatrixMemory first, second;
  Span bias_up, bias_gate, bias_down, alpha, beta, limit;  // empty where the spec does not announce them
  Span input_scales;                                       // InputScale of each GEMM
  Span warm_up;                                            // of routing (warm_up_bytes)
  int64_t bytes;
};
MoeMemory moe_memory(const MoeSpec& spec);

}  // namespace sluice::sm90
