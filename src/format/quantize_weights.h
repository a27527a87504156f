// SPDX-License-Identifier: Apache-2.0
// One weight matrix [N, K] in each published format: float32 -> codes, block scales, global scale, and back.
#pragma once

#include <cstdint>
#include <optional>

#include "format/formats.h"

namespace sluice::format {

// Sizes of one matrix. K must be even for 4-bit codes; a short last group or block is allowed.
int64_t code_bytes(Format f, int64_t n, int64_t k);
int64_t scale_count(Format f, int64_t n, int64_t k);  // elements: float for ScaleType::f32, else bytes

// w [N, K] float32. codes: code_bytes(); scales: scale_count() elements of the format's scale type (ignored for bf16);
// global: one float where the format has a global scale, else ignored (may be null).
//   fp8_tensor: s = amax / 448; fp8_channel: the same for each row; fp8_block: max(amax / 448, 1e-12) for 128x128
//   mxfp8, mxfp4: UE8M0 for 32 columns; nvfp4: global = amax / (448 * 6), e4m3 for 16 columns
// given_amax replaces the matrix's own amax in fp8_tensor and nvfp4: matrices that must share one scale pass the
// largest.
void quantize_weight(Format f, const float* w, int64_t n, int64_t k, void* codes, void* scales, float* global,
                     std::optional<float> given_amax = {});

// out [N, K] = code * scale * global, each product in float32, in this order: the slow, obvious definition.
void dequantize_weight(Format f, const void* codes, const void* scales, float global, int64_t n, int64_t k, float* out);

}  // namespace sluice::format
