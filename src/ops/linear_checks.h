// SPDX-License-Identifier: Apache-2.0
// What every device refuses alike in a matrix product and its weights.
#pragma once

#include "ops/linear.h"

namespace sluice::ops {

inline void check_parts(std::span<const weights::QuantTensor> parts) {
  check(!parts.empty(), "a linear layer takes at least one matrix");
  for (const weights::QuantTensor& w : parts) {
    check(w.experts == 1, "a linear layer takes one matrix, not a stack of {}", w.experts);
    check(w.format == parts[0].format && w.cols == parts[0].cols,
          "matrices of one product are [{}, {}] of {} and [{}, {}] of {}; K and format must be equal", parts[0].rows,
          parts[0].cols, name_of(format::kFormats, parts[0].format), w.rows, w.cols,
          name_of(format::kFormats, w.format));
  }
}

// Of `rows` outputs; not an empty one.
inline void check_bias(const Tensor& bias, int64_t rows) {
  check(bias.elements() == rows && (bias.dtype() == DType::f32 || bias.dtype() == DType::bf16),
        "bias has {} elements of {}; {} of float32 or bfloat16 are expected", bias.elements(), to_string(bias.dtype()),
        rows);
}

inline void check_shapes(const Linear& linear, ConstMatrix x, Matrix y) {
  check(x.cols == linear.inputs() && y.cols == linear.outputs() && x.rows == y.rows,
        "x is [{}, {}] and y [{}, {}]; the layer maps [T, {}] to [T, {}]", x.rows, x.cols, y.rows, y.cols,
        linear.inputs(), linear.outputs());
}

}  // namespace sluice::ops
