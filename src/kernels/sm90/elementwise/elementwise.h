// SPDX-License-Identifier: Apache-2.0
// Operations whose result element depends on the same element of each input, and copies of rows by index.
#pragma once

#include "kernels/sm90/device.h"
#include "kernels/sm90/rows.h"

namespace sluice::sm90 {

enum class Elementwise : int {
  add,            // x = D(x + y)
  silu_multiply,  // x = D(D(silu(x)) * y)
  relu_squared,   // x = D(max(x, 0)^2)
};

struct ElementwiseArgs {
  Elementwise operation;
  RowsView x;       // [rows, cols], changed
  ConstRowsView y;  // [rows, cols] of x's type; relu_squared has none
  int64_t rows, cols;
};
void launch_elementwise(const ElementwiseArgs& args, Stream stream, bool pdl);

struct GatherRowsArgs {
  ConstRowsView x;
  const int32_t* rows;  // [count]: row of x; null: row i of x is row i of y
  RowsView y;           // [count, cols]
  int64_t count, cols;
};
void launch_gather_rows(const GatherRowsArgs& args, Stream stream, bool pdl);

struct AmaxArgs {
  ConstRowsView x;  // [rows, cols]
  int64_t rows, cols;
  uint32_t* largest;  // [1], 0 before: the bits of the largest |x|, those of a NaN if there is one
};
void launch_amax(const AmaxArgs& args, Stream stream, bool pdl);

}  // namespace sluice::sm90
