// SPDX-License-Identifier: Apache-2.0
// Views of activations: [rows, cols] of the run's type D (bfloat16 or float32), rows `stride` elements apart.
// Ops read D, compute in float32 and write D; a part of a wider row (one projection of a fused one) is a view too.
#pragma once

#include <cstddef>

#include "tensor/dtype.h"

namespace sluice::ops {

struct ConstMatrix {
  const void* data = nullptr;
  DType dtype = DType::f32;
  int64_t rows = 0, cols = 0, stride = 0;

  const void* row(int64_t r) const { return static_cast<const std::byte*>(data) + r * stride * bytes_of(dtype); }
  // Columns [begin, begin + count).
  ConstMatrix columns(int64_t begin, int64_t count) const {
    return {static_cast<const std::byte*>(data) + begin * bytes_of(dtype), dtype, rows, count, stride};
  }
};

struct Matrix {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t rows = 0, cols = 0, stride = 0;

  void* row(int64_t r) const { return static_cast<std::byte*>(data) + r * stride * bytes_of(dtype); }
  Matrix columns(int64_t begin, int64_t count) const {
    return {static_cast<std::byte*>(data) + begin * bytes_of(dtype), dtype, rows, count, stride};
  }
  // Rows [begin, begin + count).
  Matrix rows_from(int64_t begin, int64_t count) const { return {row(begin), dtype, count, cols, stride}; }
  operator ConstMatrix() const { return {data, dtype, rows, cols, stride}; }
};

}  // namespace sluice::ops
