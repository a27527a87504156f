// SPDX-License-Identifier: Apache-2.0
// One call of the dense GEMM, and what is refused before a device is touched.
#pragma once

#include <optional>

#include "format/scale_layout.h"
#include "kernels/sm90/batch_rows/heuristic.h"
#include "kernels/sm90/dense/plan.h"

namespace sluice::sm90 {

struct DenseCall {
  int64_t tokens = 0;                   // the largest number, if num_tokens is given
  const int32_t* num_tokens = nullptr;  // device
  const void* x = nullptr;              // [T, K], rounded to the spec's inputs by the call; or
  std::optional<DType> x_dtype;         // nothing: the spec's
  int64_t x_stride = 0;                 // elements from row to row, rows 16-byte aligned; 0: K
  const uint8_t* codes = nullptr;       // x rounded already, as QuantizeArgs leaves it:
  const void* scales = nullptr;
  format::ScaleLayout layout = format::ScaleLayout::linear;
  const float* row_scales = nullptr;  // [T] decode factors; null with static inputs: the calibrated one
  void* y = nullptr;                  // [T, N]
  std::optional<DType> y_dtype;       // nothing: the spec's
  int64_t y_stride = 0;               // elements from row to row; 0: N, and the grouped GEMM has no other
  void* workspace = nullptr;          // 256-byte aligned
  int64_t workspace_size = 0;         // its bytes
  bool pdl = true;
  bool leaves_room = false;  // of a chosen BatchRowsChoice, where it is possible
  // A forced kernel may add in another order than the spec's `deterministic` promises.
  GemmForce force;
  // Parts of K of the kernel for few rows (few_rows/), a power of two up to 8; 0: the grouped GEMM. Nothing: chosen.
  std::optional<int> few_rows;
  // Tile and parts of K of the kernel for a batch of rows (batch_rows/). Nothing: chosen, unless few_rows is given.
  std::optional<BatchRowsChoice> batch_rows;
};

// Throws invalid_argument for negative tokens, for not exactly one of x and codes, and for scales that such codes do
// not have or lack.
void check_dense_call(const DenseSpec& spec, const DenseCall& call);

}  // namespace sluice::sm90
