// SPDX-License-Identifier: Apache-2.0
// Rows of x as the product of a batch of rows reads them: rounded once, in rows that follow each other.
#pragma once

#include "kernels/sm90/device.h"
#include "kernels/sm90/grouped_gemm/args.h"

namespace sluice::sm90 {

enum class BatchSource : int { bf16, f32, e4m3 };

struct RoundRowsArgs {
  const void* x;       // [rows, k], rows aligned to 16 bytes if k is a multiple of 8
  int64_t x_stride;    // elements
  BatchSource source;  // e4m3: codes of rows that are rounded, without scales of columns; k is a multiple of 8
  int rows, k;
  const int32_t* num_rows;  // device, or null
  Round round;
  const InputScale* scale;  // never null
  bool e4m3;                // to codes, else to the bf16 values of codes times block scales
  uint8_t* out;             // [rows, stride bytes], aligned to 16; what follows the last eight columns is not written
  int64_t out_stride;       // bytes, a multiple of 16
  float* row_factor;        // [rows], written for formats with a scale per row
  float* group_scales;      // [rows, groups of 128 columns], written for fp8_group; the last group may be short
  int blocks_per_row;       // filled by the launch
};

void launch_round_rows(const RoundRowsArgs& args, Stream stream, bool pdl);

}  // namespace sluice::sm90
