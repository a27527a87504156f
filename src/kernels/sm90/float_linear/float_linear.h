// SPDX-License-Identifier: Apache-2.0
// y = x W^T (+ bias) in float32 without tensor cores: routers that a checkpoint stores in float32, whole runs in
// float32, and the per-head value matrices of latent attention that tensor cores do not take.
#pragma once

#include "kernels/sm90/device.h"
#include "kernels/sm90/rows.h"

namespace sluice::sm90 {

// `heads` products side by side: product h reads columns h * k of x and writes columns h * n of y.
struct FloatLinearArgs {
  ConstRowsView x;     // [rows, heads * k]
  const void* weight;  // [heads][n, k], float32 or bfloat16
  bool weight_f32;
  int64_t head_stride;  // elements from one head's weight to the next
  const float* bias;    // [n] or null; heads is 1
  RowsView y;           // [rows, heads * n]
  int64_t rows;
  int heads, n, k;
};
void launch_float_linear(const FloatLinearArgs& args, Stream stream, bool pdl);

}  // namespace sluice::sm90
