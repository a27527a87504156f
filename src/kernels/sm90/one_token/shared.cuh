// SPDX-License-Identifier: Apache-2.0
// What both products of one token share: its experts, the shares of warps, and the sums.
#pragma once

#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/one_token/fragment.cuh"
#include "kernels/sm90/quantize/input_round.h"
#include "kernels/sm90/quantize/round.cuh"

namespace sluice::sm90 {

// There is no token. Read like the ids of LanePairs.
__device__ inline bool no_token(const OneTokenArgs& a) {
  return a.num_tokens != nullptr && ptx::ld_relaxed(a.num_tokens) <= 0;
}

// Lane i knows the i-th pair whose expert is here. A pair is a row of its own, so an expert that is given twice is read
// twice. The ids are read past the L1 cache: one_token_second does not wait for them itself.
struct LanePairs {
  int expert = 0, pair = 0, num;
  uint32_t here;  // bit p: pair p's expert is
  __device__ explicit LanePairs(const OneTokenArgs& a) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int id = lane < a.top_k ? a.pairs.id_in(ptx::ld_relaxed(a.pairs.ids + lane)) : -1,
              local = id >= 0 && id < a.experts ? id - a.local_offset : -1;
    here = __ballot_sync(0xffffffffu, local >= 0 && local < a.locals);
    num = __popc(here);
    for (int p = 0, n = 0; p < a.top_k; ++p)
      if ((here >> p & 1) != 0) pair = n++ == lane ? p : pair;
    expert = max(__shfl_sync(0xffffffffu, local, pair), 0);  // any, if none is here
  }
  __device__ int expert_of(int i) const { return __shfl_sync(0xffffffffu, expert, i); }
  __device__ int pair_of(int i) const { return __shfl_sync(0xffffffffu, pair, i); }
};

// The k-blocks of every segment that a warp multiplies, and which segments.
struct Share {
  int part, first, step;  // segments first, first + step, ...
  int begin, end;         // k-blocks
  __device__ Share(int warp, int warps, int parts, int k_blocks, int per_scale) {
    part = warp & (parts - 1), first = warp / parts, step = warps / parts;
    const int runs = ceil_div(k_blocks, per_scale);
    begin = min(runs * part / parts * per_scale, k_blocks);
    end = min(runs * (part + 1) / parts * per_scale, k_blocks);
  }
  __device__ int k_blocks() const { return end - begin; }
};

// Sums of a lane's two rows of a segment, by part of K.
template <WeightOperand op>
__device__ __forceinline__ void store_sums(float* sums, int parts, int segment, int part, const float (&sum)[2]) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  float* to = sums + (segment * parts + part) * 16 + fragment_row<op>(lane >> 2);
  if ((lane & 3) == 0) to[0] = sum[0], to[8] = sum[1];
}
__device__ __forceinline__ float total_of(const float* sums, int parts, int segment, int row) {
  float sum = 0.0f;
#pragma unroll 4
  for (int p = 0; p < parts; ++p) sum += sums[(segment * parts + p) * 16 + row];
  return sum;
}

// c's sums of a lane's two rows, times their block scales where they have them.
__device__ __forceinline__ void take_sums(float (&c)[2][4], float (&sum)[2], float scale0, float scale1) {
  sum[0] = fmaf(c[0][0] + c[1][0], scale0, sum[0]);
  sum[1] = fmaf(c[0][2] + c[1][2], scale1, sum[1]);
#pragma unroll
  for (int i = 0; i < 4; ++i) c[0][i] = c[1][i] = 0.0f;
}

}  // namespace sluice::sm90
