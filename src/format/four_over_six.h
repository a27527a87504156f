// SPDX-License-Identifier: Apache-2.0
// "Four over six": NVFP4 blocks rounded by the better of two scales. The usual scale reads the block's largest value as
// 6, e2m1's largest; the other one, 1.5 times as large, reads it as 4. Values near the largest then have 3 and 4 below
// them where they had 4 and 6, so many a block loses less. Both are tried, and the one to 4 is taken where the sum of
// its errors is strictly smaller. What comes out is ordinary NVFP4: readers need not know.
//
// From "Four Over Six: More Accurate NVFP4 Quantization with Adaptive Block Scaling" (arXiv 2512.02010); the order of
// the operations is that which FlashInfer and Transformer Engine publish (docs/numerics.md), for host and device alike.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "base/hd.h"
#include "base/named.h"
#include "format/quantize.h"

namespace sluice::format {

// What is summed over a block's columns: absolute or squared differences.
enum class BlockError : int { mae, mse };
inline constexpr std::array<Named<BlockError>, 2> kBlockErrors{{{BlockError::mae, "mae"}, {BlockError::mse, "mse"}}};

struct FourOverSix {
  bool on = false;
  int e4m3_max = 448;  // or 256: the block scale of a tensor's or row's largest value; 448 stays the bound of them all
  BlockError error = BlockError::mae;
  bool fast = false;  // errors before the global factor is applied: code * block scale - x * encode factor
};

// --- One float32 operation each: joined into an fma, as the device's compiler would, errors would be other ones
// ---------------------------------------------------------------------------------------------------------------

HD inline float rounded_product(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
HD inline float rounded_sum(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

// --- The factors of a whole tensor or row
// ---------------------------------------------------------------------------------------------------------------

struct FourOverSixFactors {
  Nvfp4Global global;
  // What errors read values as: code * block scale * times / over.
  float times = 1.0f, over = 1.0f;
};
HD inline FourOverSixFactors four_over_six_tensor(Nvfp4Global global) { return {global, global.decode, 1.0f}; }
// Of a row's own largest value.
HD inline FourOverSixFactors four_over_six_row(float row_amax, int e4m3_max) {
  const float largest = static_cast<float>(e4m3_max) * kE2m1Max;
  return {nvfp4_encode(at_most_float_max(largest / row_amax)), row_amax, largest};  // a zero row: FLT_MAX
}

// --- Whole blocks
// ---------------------------------------------------------------------------------------------------------------

struct FourOverSixBlock {
  uint8_t scale;   // e4m3
  uint64_t codes;  // e2m1, the first column in the lowest half of a byte
  float error;
};

// e2m1_to_float() without choices: 0, 1, 2, 3, 4, 6, 8, 12 halves.
HD inline float e2m1_halves(uint8_t code) {
  const int m = code & 7, halves = m + (m > 4) + (m > 5) + 3 * (m > 6);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(0.5f * static_cast<float>(halves)) | (code & 8u) << 28);
}

// The sum of the errors of x[16], coded as `codes`, in the order of the columns. One loop after the other, so that the
// host's compiler makes vectors of all but the last.
HD inline float block_error(const float (&x)[16], const uint8_t (&codes)[16], float scale, const FourOverSixFactors& f,
                            const FourOverSix& how) {
  float d[16];
  for (int i = 0; i < 16; ++i) d[i] = e2m1_halves(codes[i]) * scale;  // exact
  if (how.fast) {
    for (int i = 0; i < 16; ++i) d[i] = rounded_sum(d[i], -rounded_product(x[i], f.global.encode));
  } else {
    for (int i = 0; i < 16; ++i) d[i] = rounded_product(d[i], f.times);
    if (f.over != 1.0f)
      for (int i = 0; i < 16; ++i) d[i] = d[i] / f.over;
    for (int i = 0; i < 16; ++i) d[i] = rounded_sum(d[i], -x[i]);
  }
  if (how.error == BlockError::mse)
    for (int i = 0; i < 16; ++i) d[i] = rounded_product(d[i], d[i]);
  float sum = 0.0f;
  for (int i = 0; i < 16; ++i)
    sum = rounded_sum(sum, std::bit_cast<float>(std::bit_cast<uint32_t>(d[i]) & 0x7fffffffu));
  return sum;
}

HD inline FourOverSixBlock rounded_by(uint8_t scale, const float (&x)[16], const FourOverSixFactors& f,
                                      const FourOverSix& how) {
  const float inverse = nvfp4_inverse(scale, f.global);
  uint8_t codes[16];
  for (int i = 0; i < 16; ++i) codes[i] = float_to_e2m1(x[i] * inverse);
  FourOverSixBlock b{scale, 0, block_error(x, codes, e4m3_to_float(scale), f, how)};
  for (int i = 0; i < 16; ++i) b.codes |= static_cast<uint64_t>(codes[i]) << (4 * i);
  return b;
}

// x: the columns of a block, zeros beyond its end. NaN compares as not smaller and gives the usual block of NaN;
// errors of an infinity are infinite for both scales, which gives the usual one, too.
HD inline FourOverSixBlock quantize_block_four_over_six(const float (&x)[16], const FourOverSixFactors& f,
                                                        const FourOverSix& how) {
  const float to_six = amax_of(x, 16) / kE2m1Max * f.global.encode;
  const FourOverSixBlock six = rounded_by(float_to_e4m3(to_six), x, f, how);
  const FourOverSixBlock four = rounded_by(float_to_e4m3(to_six * 1.5f), x, f, how);
  return four.error < six.error ? four : six;
}

}  // namespace sluice::format
