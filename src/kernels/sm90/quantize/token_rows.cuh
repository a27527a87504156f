// SPDX-License-Identifier: Apache-2.0
// bf16 rows of GEMM2 to NVFP4 under a global scale of each row, in place, one warp per row.
#pragma once

#include "kernels/sm90/quantize/round.cuh"

namespace sluice::sm90 {

// A row's pieces of 16 bytes, 8 columns each, as they lie.
struct PlacedRow {
  uint8_t* tile;  // its first k-block
  int n, padded;
  __device__ uint4* piece(int i) const {
    return reinterpret_cast<uint4*>(tile + static_cast<int64_t>(i >> 3) * padded * 128 + swizzled(n, i & 7));
  }
};

// Largest magnitude of two bf16 per word, NaN above infinity as in format::amax_bits.
__device__ inline uint32_t amax_pairs(const uint4& v) {
  const uint32_t m = 0x7fff7fffu;
  return __vmaxu2(__vmaxu2(v.x & m, v.y & m), __vmaxu2(v.z & m, v.w & m));
}

__device__ inline format::Nvfp4Global token_global(uint32_t pairs) {
  const uint32_t row_bits = amax_lanes(max(pairs << 16, pairs & 0xffff0000u), 32);
  return format::nvfp4_row_global(format::amax_value(row_bits));
}

// Eight columns. Two neighbouring lanes have the 16 of a block scale.
__device__ inline uint4 rounded_piece(const uint4& v, format::Nvfp4Global global) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
  float values[8];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    values[2 * j] = __uint_as_float(words[j] << 16);
    values[2 * j + 1] = __uint_as_float(words[j] & 0xffff0000u);
  }
  return rounded_bf16(Round::nvfp4_token, values, amax_lanes(amax8(values), 2), global, 1.0f, 1.0f);
}

}  // namespace sluice::sm90
