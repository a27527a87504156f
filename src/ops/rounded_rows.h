// SPDX-License-Identifier: Apache-2.0
// Rows that a norm rounds to FP8 once for all products that read them.
#pragma once

#include "format/formats.h"
#include "ops/matrix.h"

namespace sluice::ops {

// How a product rounds its rows (docs/numerics.md, "Inputs"), where they may come rounded already.
struct Rounding {
  format::InputFormat format = format::InputFormat::plain;  // fp8_static, fp8_token, fp8_group, mxfp8; plain: none
  float scale = 1.0f;                                       // decode factor of fp8_static
  explicit operator bool() const { return format != format::InputFormat::plain; }
  bool operator==(const Rounding&) const = default;
};

// The codes of rows and their scales, in the device's memory, each row after the one before.
struct RoundedRows {
  Rounding rounding;            // plain: there are none
  uint8_t* codes = nullptr;     // e4m3 [rows, cols]
  float* row_scales = nullptr;  // [rows], the decode factors of fp8_token
  void* scales = nullptr;       // [rows, groups]: float32 of fp8_group, bytes of mxfp8; a row's last group may be short
  explicit operator bool() const { return static_cast<bool>(rounding); }
};

// The bytes of RoundedRows::scales for one row.
constexpr int64_t group_scale_bytes(const Rounding& r, int64_t cols) {
  const int64_t group = format::group_of(r.format);
  return group == 0 ? 0 : (cols + group - 1) / group * (r.format == format::InputFormat::fp8_group ? 4 : 1);
}

}  // namespace sluice::ops
