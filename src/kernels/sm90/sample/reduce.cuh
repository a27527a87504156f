// SPDX-License-Identifier: Apache-2.0
// Reductions over one row of logits, or a part of it, by a block of kWarps warps.
#pragma once

#include <cstdint>

namespace sluice::sm90 {

inline constexpr int kSampleThreads = 1024, kSampleWarps = kSampleThreads / 32;

// A logit with its token, ordered as tokens are: a larger logit first, of equal ones the lower token. NaN is not
// ordered.
struct Ranked {
  float logit;
  int32_t token;
};
__device__ __forceinline__ bool before(Ranked a, Ranked b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}
__device__ __forceinline__ Ranked first_of(Ranked a, Ranked b) { return before(b, a) ? b : a; }

__device__ __forceinline__ Ranked warp_first(Ranked r) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2)
    r = first_of(r, {__shfl_xor_sync(0xffffffffu, r.logit, i), __shfl_xor_sync(0xffffffffu, r.token, i)});
  return r;
}

// Memory of a block's reductions. Each begins with a barrier, so that they may follow each other.
struct SampleShared {
  Ranked ranked[kSampleWarps];
  uint64_t counts[kSampleWarps];
  double doubles[kSampleWarps];
};

template <int kWarps = kSampleWarps>
__device__ __forceinline__ Ranked block_first(Ranked r, SampleShared& s) {
  r = warp_first(r);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) s.ranked[threadIdx.x >> 5] = r;
  __syncthreads();
  for (int i = 0; i < kWarps; ++i) r = first_of(r, s.ranked[i]);
  return r;
}

__device__ __forceinline__ double block_sum(double v, SampleShared& s) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) v += __shfl_xor_sync(0xffffffffu, v, i);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) s.doubles[threadIdx.x >> 5] = v;
  __syncthreads();
  double sum = 0;
  for (int i = 0; i < kSampleWarps; ++i) sum += s.doubles[i];
  return sum;
}

// The sum over the threads before this one; total: over all.
template <int kWarps = kSampleWarps>
__device__ __forceinline__ uint64_t block_exclusive(uint64_t v, uint64_t& total, SampleShared& s) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  uint64_t sum = v;
#pragma unroll
  for (int i = 1; i < 32; i *= 2) {
    const uint64_t below = __shfl_up_sync(0xffffffffu, sum, i);
    if (lane >= i) sum += below;
  }
  __syncthreads();
  if (lane == 31) s.counts[warp] = sum;
  __syncthreads();
  uint64_t base = 0;
  total = 0;
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp) base += s.counts[i];
    total += s.counts[i];
  }
  return base + sum - v;
}

}  // namespace sluice::sm90
