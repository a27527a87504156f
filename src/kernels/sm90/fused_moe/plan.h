// SPDX-License-Identifier: Apache-2.0
// What one call of the layer runs, and where its workspace lies.
#pragma once

#include "kernels/sm90/fused_moe/fused_moe.h"
#include "kernels/sm90/quantize/input_round.h"
#include "kernels/sm90/route/route.h"

namespace sluice::sm90 {

// Workspace pieces; with a null workspace only `bytes` means anything.
struct FusedMoe::Plan {
  GemmChoice choice;
  Store store;
  int64_t rows, tiles, bytes = 0;
  RouteTables tables{};
  uint8_t *x1, *x2;
  float *x1_row_scale, *x2_row_scale, *x1_block_scale, *x2_block_scale, *middle, *partial[2];
  void* results;
};

}  // namespace sluice::sm90
