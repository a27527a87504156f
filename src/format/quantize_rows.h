// SPDX-License-Identifier: Apache-2.0
// A GEMM's input rows [T, K] rounded to an InputFormat on the host: codes and scales, and what they read as.
#pragma once

#include <cstdint>
#include <vector>

#include "format/formats.h"

namespace sluice::format {

// value[t, k] = code * block_scale * row_scale, in float32, in this order.
struct QuantRows {
  InputFormat format = InputFormat::plain;
  int64_t rows = 0, cols = 0;
  std::vector<uint8_t> codes;       // e4m3 [T, K], or two e2m1 [T, ceil(K/2)], low nibble = even k
  std::vector<uint8_t> scales;      // mxfp8: UE8M0, nvfp4*: e4m3, [T, ceil(K/group)]
  std::vector<float> group_scales;  // fp8_group: [T, ceil(K/128)]
  std::vector<float> row_scales;    // fp8_static, fp8_token, nvfp4*: [T]
};

// Throws unless the scale of a calibrated format is positive, normal and finite. Others have none.
void check_input_scale(InputFormat f, float input_scale);

// x [T, K] float32. A short last group is allowed. input_scale: the calibrated decode factor of the static formats,
// positive; ignored by the others. `plain` is refused: it has no codes. encodes: with nvfp4, input_scale is the encode
// factor, 448 * 6 / amax, in its place.
QuantRows quantize_rows(InputFormat f, const float* x, int64_t rows, int64_t cols, float input_scale = 1.0f,
                        bool encodes = false);

// out [T, K] float32.
void dequantize_rows(const QuantRows& q, float* out);

// Rounds one row in place to what it reads as after quantising; scratch-free. `plain` leaves it untouched.
void round_row(InputFormat f, float* x, int64_t cols, float input_scale = 1.0f);

}  // namespace sluice::format
