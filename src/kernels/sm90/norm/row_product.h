// SPDX-License-Identifier: Apache-2.0
// A small matrix that the norm of few rows multiplies its rows by: the router of an expert layer.
#pragma once

#include <cstdint>

#include "kernels/sm90/layout.h"
#include "kernels/sm90/rows.h"

namespace sluice::sm90 {

struct RowProductArgs {
  const uint8_t* weights;  // bf16 [outputs, cols], repacked (layout.h): one M-tile; null: there is no product
  int outputs;
  RowsView y;  // [rows, outputs] in bfloat16 or float32, rounded once from a float32 sum
};

// A row takes a cluster of this many blocks, each of which computes the norm and a share of the outputs.
inline constexpr int kRowProductBlocks = 8;
inline constexpr int kRowProductColumns = 4096;  // a row in the registers of a block
// Of rows that a product takes. The matrix is read once for each from L2: with 16 rows of a router of Qwen3-30B-A3B
// 8 MB, about as long as a launch of its own takes.
inline constexpr int64_t kRowProductRows = 16;

HD constexpr bool row_product_fits(int64_t rows, int64_t cols, int64_t outputs) {
  return rows <= kRowProductRows && cols <= kRowProductColumns && cols % 8 == 0 && outputs <= kMTileRows;
}

}  // namespace sluice::sm90
