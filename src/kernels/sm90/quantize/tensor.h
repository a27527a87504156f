// SPDX-License-Identifier: Apache-2.0
// Device quantisers: a tensor [rows, cols] to codes and scales as published kernels exchange them. Bit for bit
// format/quantize_rows.h (and quantize_group_mxfp4), but for the sign of NaN, which no arithmetic defines.
#pragma once

#include "format/scale_layout.h"
#include "kernels/sm90/device.h"

namespace sluice::sm90 {

enum class Coding : int { fp8_static, fp8_token, fp8_group, mxfp8, nvfp4, nvfp4_token, mxfp4 };

inline constexpr std::array<Named<Coding>, 7> kCodings{{{Coding::fp8_static, "fp8_static"},
                                                        {Coding::fp8_token, "fp8_token"},
                                                        {Coding::fp8_group, "fp8_group"},
                                                        {Coding::mxfp8, "mxfp8"},
                                                        {Coding::nvfp4, "nvfp4"},
                                                        {Coding::nvfp4_token, "nvfp4_token"},
                                                        {Coding::mxfp4, "mxfp4"}}};

// Columns that share a block scale; 0: none.
HD constexpr int coding_group(Coding c) {
  return c == Coding::fp8_group                           ? 128
         : c == Coding::mxfp8 || c == Coding::mxfp4       ? 32
         : c == Coding::nvfp4 || c == Coding::nvfp4_token ? 16
                                                          : 0;
}
HD constexpr bool is_four_bit(Coding c) { return c == Coding::nvfp4 || c == Coding::nvfp4_token || c == Coding::mxfp4; }

struct QuantizeArgs {
  Coding coding;
  const void* x;  // [rows, cols] bf16 or float32
  bool x_f32;
  int64_t rows;
  int cols;
  const float* input_scale;  // [1], fp8_static and nvfp4: the decode factor
  uint8_t* codes;            // e4m3 [rows, cols], or two e2m1 a byte [rows, ceil(cols / 2)]
  // Block scales [rows, ceil(cols / group)] in `layout`, whose padding becomes zero: bytes, for fp8_group float32. Null
  // where there are none.
  void* scales;
  format::ScaleLayout layout;
  float* row_scales;  // [rows] fp8_token, nvfp4_token; else null
};

void launch_quantize(const QuantizeArgs& args, Stream stream, bool pdl);

}  // namespace sluice::sm90
