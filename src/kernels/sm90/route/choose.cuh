// SPDX-License-Identifier: Apache-2.0
// One token's experts by one warp, over the policies of routing/methods.h.
#pragma once

#include "base/bf16.h"
#include "kernels/sm90/route/expert_tiles.cuh"
#include "kernels/sm90/route/route.h"
#include "routing/route.h"

namespace sluice::sm90 {

__device__ inline uint64_t warp_max(uint64_t key) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const uint64_t other = __shfl_xor_sync(0xffffffffu, key, step);
    key = other > key ? other : key;
  }
  return key;
}

// Masks all but the best groups, one lane per group; leaves -infinity in scores. routing/route.cc has the plain
// version.
__device__ inline void mask_groups(const routing::Params& p, float* scores, int lane) {
  const int size = p.experts / p.groups;
  const float none = -__builtin_inff();
  uint64_t key = 0;
  if (lane < p.groups) {
    float first = none, second = none;
    for (int i = 0; i < size; ++i) {
      const float x = scores[lane * size + i];
      second = fmaxf(second, fminf(first, x));
      first = fmaxf(first, x);
    }
    key = routing::selection_key(size > 1 ? first + second : first, lane);
  }
  bool kept = false;
  for (int i = 0; i < p.top_groups; ++i) {
    const uint64_t best = warp_max(key);
    if (key == best && key != 0) kept = true, key = 0;
  }
  if (lane < p.groups && !kept)
    for (int i = 0; i < size; ++i) scores[lane * size + i] = none;
  __syncwarp();
}

// One token by one warp.
template <class M>
__device__ void choose(const RouteArgs& a, int64_t token, float* scores, int lane, int32_t* ids, float* weights) {
  const routing::Params& p = a.params;
  const routing::Values logits = routing::Values{a.logits, a.logits_bf16}.from(token * p.experts);
  const routing::Values bias{a.bias, a.bias_bf16};
  routing::RowSoftmax row;
  if constexpr (M::kRowSoftmax) {
    row.max = -__builtin_inff();
    for (int e = lane; e < p.experts; e += 32) row.max = fmaxf(row.max, logits[e]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) row.max = fmaxf(row.max, __shfl_xor_sync(0xffffffffu, row.max, step));
    row.sum = 0.0f;
    for (int e = lane; e < p.experts; e += 32) row.sum += expf(logits[e] - row.max);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) row.sum += __shfl_xor_sync(0xffffffffu, row.sum, step);
  }
  for (int e = lane; e < p.experts; e += 32) {
    const float b = M::kBias && bias ? routing::choice_bias(bias[e], p) : 0.0f;
    scores[e] = M::key(logits[e], b, row);
  }
  __syncwarp();
  if (p.groups > 1) mask_groups(p, scores, lane);

  // Each lane knows the best of its own experts below the last winner; only the winner's lane looks again.
  uint64_t limit = ~uint64_t{0}, mine = 0;
  bool stale = true;
  float top = 0.0f, sum = 0.0f;
  for (int k = 0; k < p.top_k; ++k) {
    if (stale) {
      mine = 0;
      for (int e = lane; e < p.experts; e += 32) {
        const uint64_t key = routing::selection_key(scores[e], e);
        if (key < limit && key > mine) mine = key;
      }
      stale = false;
    }
    const uint64_t best = warp_max(mine);
    if (best == mine) limit = best, stale = true;
    const int32_t id = routing::id_of(best);
    const float x = logits[id];
    if (k == 0) top = x;
    const float term = M::term(x, top, row);
    sum += term;
    if (lane == 0) ids[k] = id, weights[k] = term;
  }
  __syncwarp();
  for (int k = lane; k < p.top_k; k += 32) {
    const float w = M::weight(weights[k], sum, p);
    weights[k] = p.bf16 ? round_to_bf16(w) : w;
  }
}

__device__ inline int64_t real_tokens(const RouteArgs& a) { return real_tokens(a.num_tokens, a.tokens); }

// The lanes that have the same e as this lane. Values are below 2^bits, and it takes a vote per bit. match.any does the
// same, but a multiprocessor finishes only one in 77 cycles (2048 of them: 93 us).
__device__ inline uint32_t same_value(int e, int bits) {
  uint32_t same = 0xffffffffu;
#pragma unroll 4
  for (int b = 0; b < bits; ++b) {
    const bool set = (e >> b & 1) != 0;
    const uint32_t votes = __ballot_sync(0xffffffffu, set);
    same &= set ? votes : ~votes;
  }
  return same;
}
// Bits of the values 0 to locals. The value `locals` says that a pair is not local.
__device__ inline int expert_bits(int locals) { return 32 - __clz(locals); }

// Exclusive sum over a block of kThreads; returns this thread's, leaves the total in *total.
template <int kThreads>
__device__ inline int block_exclusive_sum(int value, int* warp_sums, int* total) {
  constexpr int kWarps = kThreads / 32;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  int sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    int w = lane < kWarps ? warp_sums[lane] : 0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, w, step);
      if (lane >= step) w += other;
    }
    if (lane < kWarps) warp_sums[lane] = w;
  }
  __syncthreads();
  *total = warp_sums[kWarps - 1];
  return sum - value + (warp > 0 ? warp_sums[warp - 1] : 0);
}

}  // namespace sluice::sm90
