// SPDX-License-Identifier: Apache-2.0
// One token's experts by one warp, over the policies of routing/methods.h.
#pragma once

#include "base/bf16.h"
#include "kernels/sm90/route/expert_tiles.cuh"
#include "kernels/sm90/route/route.h"
#include "routing/route.h"

namespace sluice::sm90 {

// The largest selection key of a warp. Keys of experts differ in their lower half.
__device__ __forceinline__ uint64_t warp_max(uint64_t key) {
  const auto high = static_cast<uint32_t>(key >> 32);
  const uint32_t best = __reduce_max_sync(0xffffffffu, high);
  const uint32_t low = __reduce_max_sync(0xffffffffu, high == best ? static_cast<uint32_t>(key) : 0);
  return static_cast<uint64_t>(best) << 32 | low;
}

// Which groups a token may choose from: bit g * `lanes` of the result, where `lanes` neighbouring lanes share a group.
// routing/route.cc has the plain version.
__device__ inline uint32_t best_groups(const routing::Params& p, const float* scores, int lane, int lanes) {
  const int size = p.experts / p.groups, group = lane / lanes;
  float first = -__builtin_inff(), second = -__builtin_inff();
  int nan = 0;  // a score of the group is: it comes first
  if (group < p.groups)
    for (int i = lane & (lanes - 1); i < size; i += lanes) {
      const float x = scores[group * size + i];
      nan |= x != x;
      second = fmaxf(second, fminf(first, x));
      first = fmaxf(first, x);
    }
  for (int step = 1; step < lanes; step *= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, first, step);
    second = fmaxf(fminf(first, other), fmaxf(second, __shfl_xor_sync(0xffffffffu, second, step)));
    first = fmaxf(first, other);
    nan |= __shfl_xor_sync(0xffffffffu, nan, step);
  }
  const float score = nan != 0 ? __int_as_float(0x7fc00000) : size > 1 ? first + second : first;
  const bool speaks = group < p.groups && (lane & (lanes - 1)) == 0;
  uint64_t key = speaks ? routing::selection_key(score, group) : 0;
  bool kept = false;
  for (int i = 0; i < p.top_groups; ++i)
    if (key == warp_max(key) && key != 0) kept = true, key = 0;
  return __ballot_sync(0xffffffffu, kept);
}

// Leaves -infinity in the scores of experts outside the best groups.
__device__ inline void mask_groups(const routing::Params& p, float* scores, int lane) {
  const int lanes = 1 << (__clz(p.groups - 1) - 27);  // 32 / groups, rounded down to a power of two
  const uint32_t kept = best_groups(p, scores, lane, lanes);
  const float per_expert = __fdividef(static_cast<float>(p.groups), static_cast<float>(p.experts));
  for (int e = lane; e < p.experts; e += 32) {
    const int group = static_cast<int>((static_cast<float>(e) + 0.5f) * per_expert);
    if ((kept >> (group * lanes) & 1) == 0) scores[e] = -__builtin_inff();
  }
  __syncwarp();
}

// The keys of a lane's experts in descending order (a bitonic sort).
template <int kEach>
__device__ __forceinline__ void sort_keys(uint64_t (&keys)[kEach]) {
#pragma unroll
  for (int run = 2; run <= kEach; run *= 2) {
#pragma unroll
    for (int step = run / 2; step > 0; step /= 2) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int j = i ^ step;
        if (j < i) continue;
        const bool swaps = (i & run) == 0 ? keys[i] < keys[j] : keys[i] > keys[j];
        const uint64_t a = keys[i], b = keys[j];
        keys[i] = swaps ? b : a;
        keys[j] = swaps ? a : b;
      }
    }
  }
}

// The chosen experts of a token: each lane has those of the slots `lane` and 32 + lane, where top_k has them.
inline constexpr int kChosenEach = kMaxTopK / 32;
struct Chosen {
  int32_t id[kChosenEach];
  float weight[kChosenEach];
};
static_assert(kChosenEach == 2);

// The best `top_k` of the scores in shared memory. Each lane keeps its own experts' keys in order, so that the best of
// all is the largest of 32.
template <int kEach>
__device__ __forceinline__ void choose_sorted(const float* scores, int experts, int top_k, int lane, Chosen& chosen) {
  uint64_t keys[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = lane + 32 * i;
    keys[i] = e < experts ? routing::selection_key(scores[e], e) : 0;
  }
  sort_keys(keys);
#pragma unroll 1
  for (int k = 0; k < top_k; ++k) {
    const uint64_t best = warp_max(keys[0]);
    if (k == lane) chosen.id[0] = routing::id_of(best);
    if (k == lane + 32) chosen.id[1] = routing::id_of(best);
    if (best == keys[0]) {
#pragma unroll
      for (int i = 0; i + 1 < kEach; ++i) keys[i] = keys[i + 1];
      keys[kEach - 1] = 0;
    }
  }
}
// The same for any number of experts: only the lane of the last winner looks at its experts again.
__device__ inline void choose_unsorted(const float* scores, int experts, int top_k, int lane, Chosen& chosen) {
  uint64_t limit = ~uint64_t{0}, mine = 0;
  bool stale = true;
  for (int k = 0; k < top_k; ++k) {
    if (stale) {
      mine = 0;
      for (int e = lane; e < experts; e += 32) {
        const uint64_t key = routing::selection_key(scores[e], e);
        if (key < limit && key > mine) mine = key;
      }
      stale = false;
    }
    const uint64_t best = warp_max(mine);
    if (best == mine) limit = best, stale = true;
    if (k == lane) chosen.id[0] = routing::id_of(best);
    if (k == lane + 32) chosen.id[1] = routing::id_of(best);
  }
}

// What the choice compares, in place of the logits.
template <class M>
__device__ __forceinline__ routing::RowSoftmax make_scores(const RouteArgs& a, float* scores, int lane) {
  const routing::Params& p = a.params;
  routing::RowSoftmax row;
  if constexpr (M::kRowSoftmax) {
    row.max = -__builtin_inff();
    for (int e = lane; e < p.experts; e += 32) row.max = fmaxf(row.max, scores[e]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) row.max = fmaxf(row.max, __shfl_xor_sync(0xffffffffu, row.max, step));
    row.sum = 0.0f;
    for (int e = lane; e < p.experts; e += 32) row.sum += expf(scores[e] - row.max);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) row.sum += __shfl_xor_sync(0xffffffffu, row.sum, step);
  }
  const routing::Values bias{M::kBias ? a.bias : nullptr, a.bias_bf16};
#pragma unroll 4
  for (int e = lane; e < p.experts; e += 32)
    scores[e] = M::key(scores[e], bias ? routing::choice_bias(bias[e], p) : 0.0f, row);
  return row;
}

// The experts of one token by one warp. scores: [experts] in shared memory. Every lane reads and writes the scores of
// its own experts only, except where a group's experts are compared.
__device__ __forceinline__ Chosen choose(const RouteArgs& a, int64_t token, float* scores, int lane) {
  const routing::Params& p = a.params;
  const routing::Values logits = routing::Values{a.logits, a.logits_bf16}.from(token * p.experts);
  constexpr int kBatch = 4;  // reads under way together
  for (int first = lane; first < p.experts; first += 32 * kBatch) {
    float x[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) x[i] = first + 32 * i < p.experts ? logits[first + 32 * i] : 0.0f;
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (first + 32 * i < p.experts) scores[first + 32 * i] = x[i];
  }
  routing::RowSoftmax row;
  routing::Methods::visit(a.method, [&]<class M> { row = make_scores<M>(a, scores, lane); });
  if (p.groups > 1) {
    __syncwarp();
    mask_groups(p, scores, lane);
  }
  Chosen chosen{};
  if (p.experts <= 128)
    choose_sorted<4>(scores, p.experts, p.top_k, lane, chosen);
  else if (p.experts <= 256)
    choose_sorted<8>(scores, p.experts, p.top_k, lane, chosen);
  else if (p.experts <= 512)
    choose_sorted<16>(scores, p.experts, p.top_k, lane, chosen);
  else
    choose_unsorted(scores, p.experts, p.top_k, lane, chosen);
  float x[kChosenEach];
#pragma unroll
  for (int i = 0; i < kChosenEach; ++i) x[i] = logits[chosen.id[i]];
  const float top = __shfl_sync(0xffffffffu, x[0], 0);
  routing::Methods::visit(a.method, [&]<class M> {
#pragma unroll
    for (int i = 0; i < kChosenEach; ++i) chosen.weight[i] = M::term(x[i], top, row);
    float sum = 0.0f;  // in the order of choice
    for (int k = 0; k < p.top_k; ++k)
      sum += __shfl_sync(0xffffffffu, k < 32 ? chosen.weight[0] : chosen.weight[1], k & 31);
#pragma unroll
    for (int i = 0; i < kChosenEach; ++i) {
      const float w = M::weight(chosen.weight[i], sum, p);
      chosen.weight[i] = p.bf16 ? round_to_bf16(w) : w;
    }
  });
  return chosen;
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
