// SPDX-License-Identifier: Apache-2.0
// The quantisers: ONE set of functions for CPU loops, CUDA kernels and checkpoints, in exact IEEE float32 arithmetic
// (docs/numerics.md, Weights and Inputs: the "exact mode"). The caller must not compile them with fast-math or
// flush-to-zero.
//
// Corner cases, the same in every format (docs/numerics.md):
//   NaN in a group  -> the group's scale is NaN (UE8M0 255, e4m3 0x7f), so every value of the group reads NaN.
//   infinity        -> counts as FLT_MAX when the scale is chosen; its code saturates. Other values keep their meaning.
//   zero groups     -> zero codes (the sign of a zero is kept) and a scale that is never a cause of NaN.
#pragma once

#include <bit>
#include <cfloat>
#include <cstdint>

#include "base/hd.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/e8m0.h"

namespace sluice::format {

// Largest absolute value, as its bits: unsigned comparison orders |x| and puts NaN above everything, so one integer
// max does what fmax cannot. Start from 0, feed every value, then read amax_value().
HD inline uint32_t amax_bits(uint32_t so_far, float x) {
  const uint32_t a = std::bit_cast<uint32_t>(x) & 0x7fffffffu;
  return a > so_far ? a : so_far;
}

// The amax that scales are made from: infinity counts as FLT_MAX; NaN stays.
HD inline float amax_value(uint32_t bits) { return std::bit_cast<float>(bits == 0x7f800000u ? 0x7f7fffffu : bits); }

HD inline float amax_of(const float* x, int64_t n) {
  uint32_t bits = 0;
  for (int64_t i = 0; i < n; ++i) bits = amax_bits(bits, x[i]);
  return amax_value(bits);
}

// min(x, FLT_MAX) that keeps NaN.
HD inline float at_most_float_max(float x) { return x > FLT_MAX ? FLT_MAX : x; }

// --- FP8 with a float scale: fp8_token, fp8_group, and weights per tensor and per channel
// -----------------------------

// The decode factor s of x = code * s; never below FLT_MIN, so that zero rows divide cleanly.
HD inline float fp8_scale(float amax) {
  const float s = amax / kE4m3Max;
  return s < FLT_MIN ? FLT_MIN : s;
}
// Weights of 128x128 blocks: the published preparation clamps at 1e-12 (docs/numerics.md, Weights).
HD inline float fp8_block_scale(float amax) {
  const float s = amax / kE4m3Max;
  return s < 1e-12f ? 1e-12f : s;
}
HD inline uint8_t fp8_code(float x, float scale) { return float_to_e4m3(x / scale); }

// fp8_static: the calibrated scale is inverted once, then multiplied (docs/numerics.md, Inputs).
HD inline float fp8_static_inverse(float scale) { return 1.0f / scale; }
HD inline uint8_t fp8_static_code(float x, float inverse) { return float_to_e4m3(x * inverse); }

// --- MX: a power of two for 32 values
// ----------------------------------------------------------------------------------

// amax = 448 * 2^n must give exactly 2^n: the float nearest to 1/448 lies above it and the product rounds back
// (docs/numerics.md, Inputs).
HD inline uint8_t mxfp8_scale(float amax) { return float_to_e8m0_up(amax * (1.0f / 448.0f)); }
// 1/6 as a float lies above 1/6 too: amax = 6 * 2^n gives 2^n.
HD inline uint8_t mxfp4_scale(float amax) { return float_to_e8m0_up(amax * (1.0f / 6.0f)); }

// 2^(127-b), what values are multiplied by; 0 for byte 0, whose values read as zero anyway.
HD inline float e8m0_inverse(uint8_t b) {
  if (b == 255u) return std::bit_cast<float>(0x7fc00000u);
  if (b == 254u) return std::bit_cast<float>(0x00400000u);  // 2^-127 is subnormal
  return b == 0u ? 0.0f : std::bit_cast<float>(static_cast<uint32_t>(254u - b) << 23);
}
HD inline uint8_t mxfp8_code(float x, float inverse) { return float_to_e4m3(x * inverse); }

// --- NVFP4: an e4m3 scale for 16 values under a float scale
// ------------------------------------------------------------

// The global factors of a tensor or a row: `encode` multiplies before rounding, `decode` = 1 / encode.
struct Nvfp4Global {
  float encode = 1.0f, decode = 1.0f;
};

// From the encode factor that other libraries call the global scale. A sixth of all floats are no float's inverse, so
// nvfp4_global() of the inverse may have the float beside it.
HD inline Nvfp4Global nvfp4_encode(float encode) { return {encode, 1.0f / encode}; }
// From a calibrated decode factor (input_scale, weight_scale_2), which must be positive, finite and at least FLT_MIN.
HD inline Nvfp4Global nvfp4_global(float scale) { return nvfp4_encode(1.0f / scale); }
// From the row itself (nvfp4_token). The row's decode factor in the product is `decode`.
HD inline Nvfp4Global nvfp4_row_global(float row_amax) {
  const float encode = at_most_float_max((kE4m3Max * kE2m1Max) / row_amax);  // a zero row: FLT_MAX
  return {encode, 1.0f / encode};
}
// The decode factor that calibration and weights use: amax / (448 * 6).
HD inline float nvfp4_global_scale(float amax) {
  const float s = amax / (kE4m3Max * kE2m1Max);
  return s < FLT_MIN ? FLT_MIN : s;
}

HD inline uint8_t nvfp4_scale(float amax16, Nvfp4Global g) {
  return float_to_e4m3(amax16 * (g.encode * (1.0f / 6.0f)));
}
// What values are multiplied by. The ROUNDED block scale goes in; a scale that rounded to 0 gives FLT_MAX: the codes
// are then meaningless and read as zero.
HD inline float nvfp4_inverse(uint8_t scale, Nvfp4Global g) {
  return at_most_float_max(1.0f / (e4m3_to_float(scale) * g.decode));
}

// --- Whole groups: n values in, codes out, the scale returned
// -----------------------------------------------------------

// e4m3 codes[n], float scale. fp8_group (n <= 128) and, with a whole row, fp8_token.
HD inline float quantize_group_fp8(const float* x, int64_t n, uint8_t* codes) {
  const float scale = fp8_scale(amax_of(x, n));
  for (int64_t i = 0; i < n; ++i) codes[i] = fp8_code(x[i], scale);
  return scale;
}

// e4m3 codes[n], UE8M0 scale; n <= 32.
HD inline uint8_t quantize_group_mxfp8(const float* x, int n, uint8_t* codes) {
  const uint8_t scale = mxfp8_scale(amax_of(x, n));
  const float inverse = e8m0_inverse(scale);
  for (int i = 0; i < n; ++i) codes[i] = mxfp8_code(x[i], inverse);
  return scale;
}

// Values times `inverse` as packed e2m1 codes[(n+1)/2], low nibble = even index; n <= 32.
HD inline void pack_e2m1(const float* x, int n, float inverse, uint8_t* packed) {
  uint8_t codes[32] = {};  // beforehand, so that the loop over values is one of vectors
  for (int i = 0; i < n; ++i) codes[i] = float_to_e2m1(x[i] * inverse);
  for (int i = 0; i < (n + 1) / 2; ++i) packed[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
}

// Packed e2m1 codes[(n+1)/2], UE8M0 scale; n <= 32.
HD inline uint8_t quantize_group_mxfp4(const float* x, int n, uint8_t* packed) {
  const uint8_t scale = mxfp4_scale(amax_of(x, n));
  pack_e2m1(x, n, e8m0_inverse(scale), packed);
  return scale;
}

// Packed e2m1 codes[(n+1)/2], e4m3 scale; n <= 16.
HD inline uint8_t quantize_group_nvfp4(const float* x, int n, Nvfp4Global g, uint8_t* packed) {
  const uint8_t scale = nvfp4_scale(amax_of(x, n), g);
  pack_e2m1(x, n, nvfp4_inverse(scale, g), packed);
  return scale;
}

}  // namespace sluice::format
