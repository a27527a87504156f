// SPDX-License-Identifier: Apache-2.0
// Device quantisers: a tensor [rows, cols] to codes and scales as published kernels exchange them. Bit for bit
// format/quantize_rows.h (and quantize_group_mxfp4), except for the sign of NaN, which no arithmetic defines.
#pragma once

#include "format/coding.h"
#include "format/scale_layout.h"
#include "kernels/sm90/device.h"

namespace sluice::sm90 {

using format::Coding;
using format::coding_group;
using format::is_four_bit;
using format::kCodings;

struct QuantizeArgs {
  Coding coding;
  const void* x;  // [rows, cols] bf16 or float32
  bool x_f32;
  int64_t rows;
  int cols;
  const float* input_scale;  // [1], fp8_static and nvfp4: the decode factor
  bool encodes;              // nvfp4: the encode factor in its place
  uint8_t* codes;            // e4m3 [rows, cols], or two e2m1 per byte [rows, ceil(cols / 2)]
  // Block scales [rows, ceil(cols / group)] in `layout`, whose padding becomes zero: bytes, for fp8_group float32. Null
  // where there are none.
  void* scales;
  format::ScaleLayout layout;
  float* row_scales;  // [rows] fp8_token, nvfp4_token; else null
};

void launch_quantize(const QuantizeArgs& args, Stream stream, bool pdl);

}  // namespace sluice::sm90
