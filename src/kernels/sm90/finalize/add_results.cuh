// SPDX-License-Identifier: Apache-2.0
// The sum of finalize.h in eight columns of bfloat16 results: for its own kernel, and for a norm that adds results
// itself. One loop, so both give the same bits.
#pragma once

#include <cstdint>

namespace sluice::sm90 {

// acc[p] += weight(k) * load(p, k) for each piece p, k ascending from 0 to top_k - 1. load(p, k): eight bfloat16 values
// of result k, zeros if it does not count. kBatch reads of each piece are under way at once.
template <int kPieces, int kBatch = 8, class Load, class Weight>
__device__ __forceinline__ void add_results(int top_k, Load&& load, Weight&& weight, float (&acc)[kPieces][8]) {
  for (int first = 0; first < top_k; first += kBatch) {
    uint4 v[kPieces][kBatch];
    float w[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
#pragma unroll
      for (int p = 0; p < kPieces; ++p) v[p][k] = first + k < top_k ? load(p, first + k) : uint4{};
      w[k] = first + k < top_k ? weight(first + k) : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        const uint32_t words[4] = {v[p][k].x, v[p][k].y, v[p][k].z, v[p][k].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          acc[p][2 * i] = fmaf(w[k], __uint_as_float(words[i] << 16), acc[p][2 * i]);
          acc[p][2 * i + 1] = fmaf(w[k], __uint_as_float(words[i] & 0xffff0000u), acc[p][2 * i + 1]);
        }
      }
    }
  }
}

}  // namespace sluice::sm90
