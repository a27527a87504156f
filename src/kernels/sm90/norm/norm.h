// SPDX-License-Identifier: Apache-2.0
// Root-mean-square norms of rows, and of groups within gated rows.
#pragma once

#include "kernels/sm90/device.h"
#include "kernels/sm90/rows.h"

namespace sluice::sm90 {

struct RmsNormArgs {
  RowsView x;            // [rows, cols]; with `change`, x = D(x + change) is stored first
  ConstRowsView change;  // [rows, cols] of x's type; data null: none
  const float* weight;   // [cols]
  float eps;
  RowsView y;  // [rows, cols] of x's type; may be x
  int64_t rows, cols;
};
void launch_rms_norm(const RmsNormArgs& args, Stream stream, bool pdl);

struct GatedNormArgs {
  ConstRowsView x;      // float32 [rows, cols]
  ConstRowsView gate;   // D [rows, cols]
  RowsView y;           // D [rows, cols]
  const float* weight;  // [cols]
  float eps;
  int64_t rows, cols, groups;
};
void launch_gated_group_rms_norm(const GatedNormArgs& args, Stream stream, bool pdl);

}  // namespace sluice::sm90
