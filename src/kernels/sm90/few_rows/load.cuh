// SPDX-License-Identifier: Apache-2.0
// Eight neighbouring values of a row of x, past the L1 cache.
#pragma once

#include <cstring>

#include "kernels/sm90/elements.cuh"

namespace sluice::sm90 {

__device__ __forceinline__ float past_l1(const float* p) { return __ldcg(p); }
__device__ __forceinline__ bf16_t past_l1(const bf16_t* p) {
  return static_cast<bf16_t>(__ldcg(reinterpret_cast<const unsigned short*>(p)));
}

// Eight neighbouring values as they are in memory.
template <class X>
struct Eight {
  uint4 words[sizeof(X) / 2];
};
// kWide: the row's elements come in whole eights, aligned. Zeros beyond the row. Past the L1 cache: a block reads each
// value once.
template <bool kWide, class X>
__device__ __forceinline__ Eight<X> load_eight(const X* row, int column, int columns, bool real) {
  Eight<X> v{};
  if constexpr (kWide) {
    if (real && column < columns) {
#pragma unroll
      for (int i = 0; i < static_cast<int>(sizeof(X)) / 2; ++i)
        v.words[i] = __ldcg(reinterpret_cast<const uint4*>(row + column) + i);
    }
  } else {
    X values[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = real && column + i < columns ? past_l1(row + column + i) : X{};
    memcpy(&v, values, sizeof(v));
  }
  return v;
}
__device__ __forceinline__ void widen(const Eight<bf16_t>& from, float (&v)[8]) {
  const uint32_t words[4] = {from.words[0].x, from.words[0].y, from.words[0].z, from.words[0].w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    v[2 * i] = __uint_as_float(words[i] << 16), v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
}
__device__ __forceinline__ void widen(const Eight<float>& from, float (&v)[8]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    v[4 * i] = __uint_as_float(from.words[i].x), v[4 * i + 1] = __uint_as_float(from.words[i].y);
    v[4 * i + 2] = __uint_as_float(from.words[i].z), v[4 * i + 3] = __uint_as_float(from.words[i].w);
  }
}

}  // namespace sluice::sm90
