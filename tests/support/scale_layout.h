// SPDX-License-Identifier: Apache-2.0
// Scales of a whole matrix in a published layout.
#pragma once

#include "format/scale_layout.h"

namespace sluice::test {

// From linear [rows, cols]. `to` has format::scale_elements() elements; its padding becomes zero.
template <class T>
void scales_from_linear(format::ScaleLayout layout, const T* from, int64_t rows, int64_t cols, T* to) {
  for (int64_t i = 0, n = format::scale_elements(layout, rows, cols); i < n; ++i) to[i] = T{};
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t k = 0; k < cols; ++k)
      to[format::scale_offset(layout, m, k, rows, cols)] = from[format::linear_offset(m, k, cols)];
}

}  // namespace sluice::test
