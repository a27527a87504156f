// SPDX-License-Identifier: Apache-2.0
// Brings canonical weights in device memory into the layout that the grouped GEMM streams. A refit does it again at the
// same addresses.
#pragma once

#include "format/formats.h"
#include "kernels/sm90/device.h"
#include "kernels/sm90/layout.h"

namespace sluice::sm90 {

// One canonical stack [experts, rows, k] in device memory (weights/quant_tensor.h).
struct CanonicalStack {
  const void* codes = nullptr;
  const void* scales = nullptr;
  const float* global = nullptr;
};

struct RepackArgs {
  format::Format format;
  WeightShape shape;
  CanonicalStack up, gate;  // gate only when gated
  uint8_t* weights;         // shape.bytes()
  float* row_scale;         // shape.row_scales(), or null where the operand has none (bf16, fp8_block)
  float* block_scale;       // shape.block_scales()
};

// What the weights of a format become. fp8_tensor and fp8_channel share one operand, with a scale per row. f32_sums:
// FP8 weights are decoded, because the tensor cores' FP8 instructions keep 14 bits of a sum.
constexpr WeightOperand operand_of(format::Format f, bool f32_sums = false) {
  switch (f) {
    case format::Format::bf16:
      return WeightOperand::bf16;
    case format::Format::fp8_tensor:
    case format::Format::fp8_channel:
      return f32_sums ? WeightOperand::fp8_f32 : WeightOperand::fp8;
    case format::Format::fp8_block:
      return f32_sums ? WeightOperand::fp8_block_f32 : WeightOperand::fp8_block;
    case format::Format::mxfp8:
      return WeightOperand::mxfp8;
    case format::Format::nvfp4:
      return WeightOperand::nvfp4;
    case format::Format::mxfp4:
      return WeightOperand::mxfp4;
  }
  return WeightOperand::bf16;
}

// pdl: the launch before it in the stream repacks another part of the same weights and need not be complete.
void launch_repack(const RepackArgs& args, Stream stream, bool pdl);

}  // namespace sluice::sm90
