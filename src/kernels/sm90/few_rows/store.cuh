// SPDX-License-Identifier: Apache-2.0
// Results from the registers of a product with weights as the M side: scales, bias, rounding, transposition.
#pragma once

#include "base/bf16.h"
#include "kernels/ptx/bf16x2.cuh"
#include "kernels/ptx/movmatrix.cuh"
#include "kernels/sm90/elements.cuh"
#include "kernels/sm90/layout.h"

namespace sluice::sm90 {

// The weight rows whose results a lane stores: `row` and the one eight below, of every M-tile. A warp has 16 of them.
struct SumRows {
  int row_groups;  // 16 weight rows each, that this block adds
  int row_group;   // of the M-tile
  int row;         // in the M-tile
};

// Scales and bias of a lane's two weight rows.
struct RowParams {
  float scale[2], bias[2];
};
template <class Args>
__device__ __forceinline__ RowParams row_params(const Args& a, int m_tile, const SumRows& rows) {
  RowParams p;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = m_tile * kMTileRows + rows.row + 8 * h;
    p.scale[h] = a.weights.row_scale != nullptr ? __ldg(a.weights.row_scale + row) : 1.0f;
    p.bias[h] = a.bias != nullptr && row < a.n ? __ldg(a.bias + row) : 0.0f;
  }
  return p;
}

// Whether results are stored 32 bytes of a row of y at a time.
template <class Args>
__device__ __forceinline__ bool stores_wide(const Args& a) {
  return !a.y_f32 && a.n % 8 == 0 && a.y_wide;
}

// The roundings of results are those of the grouped GEMM's epilogues (store.cuh, epilogue.cuh).
__device__ __forceinline__ float fused_result(float v, float scale, float bias) { return fmaf(v, scale, bias); }

// v: the sums of weight rows `row` and + 8 for tokens 8j + 2 (lane % 4) and + 1; factor: of these tokens. Groups of
// eight tokens j to j + kGroups - 1, below `end`; only if stores_wide(). Several groups at once hide each other's
// latencies.
template <int kGroups, class Args>
__device__ __forceinline__ void store_wide(const Args& a, int m_tile, const SumRows& rows, const RowParams& p, int j,
                                           int end, int count, const float (&v)[kGroups][4],
                                           const float2 (&factor)[kGroups]) {
  const int lane = threadIdx.x & 31;
  uint32_t low[kGroups], high[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const float f[2] = {factor[g].x, factor[g].y};
    float r[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) r[i] = fused_result(v[g][i], __fmul_rn(p.scale[i / 2], f[i % 2]), p.bias[i / 2]);
    low[g] = ptx::movmatrix_trans(ptx::cvt_bf16x2_f32(r[1], r[0]));
    high[g] = ptx::movmatrix_trans(ptx::cvt_bf16x2_f32(r[3], r[2]));
  }
  // Lane 4t + q: weight rows 2q and 2q + 1 of both halves of token t; to four neighbouring rows of one half.
  const int from = (lane & ~3) + 2 * (lane & 1);
  const bool upper = (lane & 2) != 0;
  const int column = m_tile * kMTileRows + 16 * rows.row_group + 4 * (lane & 3);
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const uint32_t low0 = __shfl_sync(0xffffffffu, low[g], from), low1 = __shfl_sync(0xffffffffu, low[g], from + 1);
    const uint32_t high0 = __shfl_sync(0xffffffffu, high[g], from), high1 = __shfl_sync(0xffffffffu, high[g], from + 1);
    const int token = 8 * (j + g) + lane / 4;
    if (j + g < end && token < count && column < a.n)
      *reinterpret_cast<uint2*>(static_cast<uint16_t*>(a.y) + token * a.y_stride + column) =
          upper ? uint2{high0, high1} : uint2{low0, low1};
  }
}

// The same for one group, one result at a time.
template <class Args>
__device__ __forceinline__ void store_narrow(const Args& a, int m_tile, const SumRows& rows, const RowParams& p, int j,
                                             int count, const float (&v)[4], float2 factor) {
  const int lane = threadIdx.x & 31;
  const float f[2] = {factor.x, factor.y};
  const bool fused = !a.y_f32 && a.n % 8 == 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int token = 8 * j + 2 * (lane & 3) + i % 2, row = m_tile * kMTileRows + rows.row + 8 * (i / 2);
    if (token >= count || row >= a.n) continue;
    const float scale = __fmul_rn(p.scale[i / 2], f[i % 2]);
    const float r = fused               ? fused_result(v[i], scale, p.bias[i / 2])
                    : a.bias != nullptr ? __fadd_rn(__fmul_rn(v[i], scale), p.bias[i / 2])
                                        : __fmul_rn(v[i], scale);
    const int64_t at = token * a.y_stride + row;
    if (a.y_f32)
      static_cast<float*>(a.y)[at] = r;
    else
      static_cast<uint16_t*>(a.y)[at] = from_float<bf16_t>(r);
  }
}

}  // namespace sluice::sm90
