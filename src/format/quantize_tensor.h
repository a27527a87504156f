// SPDX-License-Identifier: Apache-2.0
// A tensor [rows, cols] as codes and scales in the caller's memory, in the layouts that published kernels exchange.
#pragma once

#include <cstdint>

#include "format/coding.h"
#include "format/four_over_six.h"
#include "format/scale_layout.h"

namespace sluice::format {

struct CodedTensor {
  Coding coding = Coding::fp8_token;
  int64_t rows = 0, cols = 0;
  float input_scale = 1.0f;   // decode factor of fp8_static and nvfp4
  bool encodes = false;       // nvfp4, to quantise: input_scale is the encode factor in its place
  FourOverSix four_over_six;  // nvfp4 and nvfp4_token, to quantise
  uint8_t* codes = nullptr;  // e4m3 [rows, cols], or two e2m1 per byte [rows, ceil(cols / 2)], low nibble = even column
  // Block scales [rows, ceil(cols / group)] in `layout`: bytes, for fp8_group float32. Null where there are none.
  void* scales = nullptr;
  ScaleLayout layout = ScaleLayout::linear;
  float* row_scales = nullptr;  // [rows] fp8_token, nvfp4_token; else null
};

// Throws unless exactly the pointers are there that the coding has, and the layout is one that its scales come in.
void check_coded(const CodedTensor& t);

// Zeroes all block scales, and so the padding of their layout, which nothing else writes.
void clear_scales(const CodedTensor& t);
// x [count, cols] float32 -> the codes and scales of rows [first, first + count). Bit for bit quantize_rows() and
// quantize_group_mxfp4(), with four_over_six quantize_block_four_over_six(). Calls for other rows may run at the same
// time.
void quantize_into(const CodedTensor& to, const float* x, int64_t first, int64_t count);
// The values of rows [first, first + count): x [count, cols] float32 = code * block scale * row or input scale, each
// product in float32, in this order.
void dequantize_from(const CodedTensor& from, int64_t first, int64_t count, float* x);

}  // namespace sluice::format
