// SPDX-License-Identifier: Apache-2.0
// Weight matrices quantised on the device, the same bits as the host's (format/quantize_weights.h).
#pragma once

#include "base/bf16.h"
#include "format/formats.h"
#include "kernels/sm90/device.h"

namespace sluice::sm90 {

// A stack in weights/quant_tensor.h's layout, all in device memory.
struct QuantizeWeightsArgs {
  format::Format format;  // any but bf16
  const bf16_t* w;        // [experts, rows, cols]
  int64_t experts, rows, cols;
  uint8_t* codes;
  void* scales;
  float* global;   // [experts], written where the format has global scales
  uint32_t* amax;  // [experts], 0 before: scratch of the formats with a scale of the whole matrix
};
void launch_quantize_weights(const QuantizeWeightsArgs& args, Stream stream);

}  // namespace sluice::sm90
