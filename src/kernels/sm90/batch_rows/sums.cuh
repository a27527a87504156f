// SPDX-License-Identifier: Apache-2.0
// The exchange of partial sums in a cluster, and the results. A block adds the sums of a part of the rows of x, for all
// 128 weight rows of its M-tile.
#pragma once

#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/tensor_copy.cuh"
#include "kernels/sm90/batch_rows/multiply.cuh"
#include "kernels/sm90/few_rows/store.cuh"

namespace sluice::sm90 {

// The first of the rows, of `count` rows of a tile, whose sums the block with part r of K adds.
__device__ __forceinline__ int first_sum(const BatchRowsArgs& a, int count, int part) {
  return static_cast<int>(static_cast<uint32_t>(count * part) * a.parts_inverse >> 16);
}

// Sums of a row by 128 weight rows are kSumPitch bytes apart. A block's own of all rows ...
template <class T>
__device__ __forceinline__ uint8_t* own_sums(const BatchShared<T>& smem, int row) {
  return smem.partial + row * kSumPitch;
}
// ... are followed by those that others send, in the order of their parts. `most`: rows of a block.
template <class T>
__device__ __forceinline__ uint8_t* others_sums(const BatchShared<T>& smem, int most, int from, int to) {
  return smem.partial + (T::rows + (from < to ? from : from - 1) * most) * kSumPitch;
}

// Writes all sums of the block to its own place. Lanes write to 32 different banks.
template <class T>
__device__ __forceinline__ void write_sums(const float (&acc)[T::rows / 2], const BatchShared<T>& smem, int count) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  float* to = reinterpret_cast<float*>(own_sums(smem, 2 * (lane & 3))) + 16 * warp + lane / 4;
  constexpr int kPitch = kSumPitch / 4;
#pragma unroll
  for (int j = 0; j < T::rows / 8; ++j) {
    if (8 * j >= count) break;
    to[8 * j * kPitch] = acc[4 * j];
    to[(8 * j + 1) * kPitch] = acc[4 * j + 1];
    to[8 * j * kPitch + 8] = acc[4 * j + 2];
    to[(8 * j + 1) * kPitch + 8] = acc[4 * j + 3];
  }
}

// Sends every other block of the cluster the sums of the rows that it adds, in one copy each. Called after this block's
// sums are written.
template <class T>
__device__ __forceinline__ void send_sums(const BatchRowsArgs& a, const BatchShared<T>& smem, const BatchPart& part,
                                          int count, int most) {
  const int to = threadIdx.x >> 5;  // a warp for each
  if (to >= a.parts || to == part.part || (threadIdx.x & 31) != 0) return;
  ptx::mbarrier_wait_cluster(smem.ready, 0);
  const int begin = first_sum(a, count, to), rows = first_sum(a, count, to + 1) - begin;
  if (rows > 0)
    ptx::cp_async_bulk_cluster(ptx::mapa(ptx::smem_address(others_sums(smem, most, part.part, to)), to),
                               own_sums(smem, begin), rows * kSumPitch,
                               ptx::mapa(ptx::smem_address(smem.sums_full), to));
}

// Whether a lane's four weight rows are in the task.
__device__ __forceinline__ bool has_four(const BatchRowsArgs& a) {
  return static_cast<int>(threadIdx.x & 31) < 32 / a.m_parts;
}

// The scales and biases of a lane's four weight rows. first: the task's first weight row.
struct FourParams {
  float scale[4], bias[4];
};
__device__ __forceinline__ FourParams four_params(const BatchRowsArgs& a, int first) {
  const int row = first + 4 * static_cast<int>(threadIdx.x & 31);
  const bool inside = has_four(a);
  FourParams p;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    p.scale[i] = inside && a.weights.row_scale != nullptr ? __ldg(a.weights.row_scale + row + i) : 1.0f;
    p.bias[i] = inside && a.bias != nullptr && row + i < a.n ? __ldg(a.bias + row + i) : 0.0f;
  }
  return p;
}

// Results of a lane's four weight rows. The roundings are those of the grouped GEMM's epilogues (few_rows/store.cuh).
__device__ __forceinline__ void store_four(const BatchRowsArgs& a, int first, const FourParams& p, int row,
                                           const float (&sum)[4], float factor) {
  if (!has_four(a)) return;
  const int column = first + 4 * static_cast<int>(threadIdx.x & 31);
  const bool fused = !a.y_f32 && a.n % 8 == 0;
  float r[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float scale = __fmul_rn(p.scale[i], factor);
    r[i] = fused               ? fmaf(sum[i], scale, p.bias[i])
           : a.bias != nullptr ? __fadd_rn(__fmul_rn(sum[i], scale), p.bias[i])
                               : __fmul_rn(sum[i], scale);
  }
  const int64_t at = row * a.y_stride + column;
  if (a.y_wide) {
    if (column >= a.n) return;
    if (a.y_f32)
      *reinterpret_cast<float4*>(static_cast<float*>(a.y) + at) = {r[0], r[1], r[2], r[3]};
    else
      *reinterpret_cast<uint2*>(static_cast<uint16_t*>(a.y) + at) = {ptx::cvt_bf16x2_f32(r[1], r[0]),
                                                                     ptx::cvt_bf16x2_f32(r[3], r[2])};
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (column + i >= a.n) break;
    if (a.y_f32)
      static_cast<float*>(a.y)[at + i] = r[i];
    else
      static_cast<uint16_t*>(a.y)[at + i] = from_float<bf16_t>(r[i]);
  }
}

// Adds the sums of the block's rows in the order of K, and stores the results. A warp takes two rows at a time.
template <class T>
__device__ __forceinline__ void add_sums(const BatchRowsArgs& a, const BatchShared<T>& smem, const BatchPart& part,
                                         int first, const FourParams& params, int row0, int count, int most) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int begin = first_sum(a, count, part.part), end = first_sum(a, count, part.part + 1);
#pragma unroll 1
  for (int row = begin + warp; row < end; row += 16) {
    const bool two = row + 8 < end;
    float sum[2][4] = {};
#pragma unroll
    for (int s = 0; s < kMaxBatchCluster; ++s) {
      if (s >= a.parts) break;
      const uint8_t* from =
          s == part.part ? own_sums(smem, row) : others_sums(smem, most, s, part.part) + (row - begin) * kSumPitch;
      float4 v[2];
      v[0] = *reinterpret_cast<const float4*>(from + lane * 16);
      v[1] = two ? *reinterpret_cast<const float4*>(from + 8 * kSumPitch + lane * 16) : float4{};
#pragma unroll
      for (int i = 0; i < 2; ++i) sum[i][0] += v[i].x, sum[i][1] += v[i].y, sum[i][2] += v[i].z, sum[i][3] += v[i].w;
    }
    store_four(a, first, params, row0 + row, sum[0], smem.factors[row]);
    if (two) store_four(a, first, params, row0 + row + 8, sum[1], smem.factors[row + 8]);
  }
}

// Stores results from registers, while the rings are filled for the next task.
template <class T>
__device__ __forceinline__ void store_batch(const float (&acc)[T::rows / 2], const BatchRowsArgs& a,
                                            const BatchShared<T>& smem, int row0, int m_tile, int m_part, int count) {
  const int row_groups = 8 / a.m_parts, warp = static_cast<int>(threadIdx.x >> 5);
  if (warp >= row_groups) return;
  SumRows rows;
  rows.row_group = m_part * row_groups + warp;
  rows.row = 16 * rows.row_group + (threadIdx.x & 31) / 4;
  const RowParams params = row_params(a, m_tile, rows);
  const bool wide = stores_wide(a);
  constexpr int kAtOnce = 4;
#pragma unroll
  for (int j = 0; j < T::rows / 8; j += kAtOnce) {
    if (8 * j >= count) break;
    float sum[kAtOnce][4];
    float2 factor[kAtOnce];
#pragma unroll
    for (int g = 0; g < kAtOnce; ++g) {
      factor[g] = *reinterpret_cast<const float2*>(smem.factors + 8 * (j + g) + 2 * (threadIdx.x & 3));
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[g][i] = acc[4 * (j + g) + i];
    }
    if (wide) {
      store_wide(a, m_tile, rows, params, row0 / 8 + j, row0 / 8 + T::rows / 8, row0 + count, sum, factor);
    } else {
#pragma unroll
      for (int g = 0; g < kAtOnce; ++g)
        store_narrow(a, m_tile, rows, params, row0 / 8 + j + g, row0 + count, sum[g], factor[g]);
    }
  }
}

// Run by warps 0 to 7: all products and results of the block.
template <class T>
__device__ __forceinline__ void multiply_batch(const BatchRowsArgs& a, const BatchShared<T>& smem,
                                               const BatchPart& part) {
  float acc[T::rows / 2];
  BatchReader at;
  const int rows = static_cast<int>(real_tokens(a.num_rows, a.rows)), n = static_cast<int>(threadIdx.x);
  int factors_of = -1;  // tile of rows
#pragma unroll 1
  for (int t = 0; t < part.tasks; ++t) {
    const int task = part.first + t * part.step, m_tile = part.m_tile(a, task), row_tile = part.row_tile(a, task);
    const int m_part = part.m_part(a, task), first = m_tile * kMTileRows + m_part * (kMTileRows / a.m_parts);
    const int row0 = row_tile * T::rows, count = min(T::rows, max(rows - row0, 0));
    // These loads are under way while the products run.
    const bool other_rows = row_tile != factors_of;
    float factor = 1.0f, shared = 1.0f;
    if (other_rows && n < T::rows) {
      shared = __ldg(&a.scale->factor);
      if (a.row_factor != nullptr && row0 + n < a.rows) factor = __ldcg(a.row_factor + row0 + n);
    }
    if (cuts_m_tiles(T::op) && a.m_parts > 1 && threadIdx.x >= 128)
      pass_task<T>(smem, part, at);
    else
      multiply_task<T>(acc, smem, part, at);
    if (other_rows) {
      factors_of = row_tile;
      if (t > 0) ptx::bar_sync(2, 256);  // the last task's have been read
      if (n < T::rows) smem.factors[n] = shared * factor;
    }
    if (t + 1 < part.tasks) {
      if (other_rows) ptx::bar_sync(2, 256);
      store_batch<T>(acc, a, smem, row0, m_tile, m_part, count);
      continue;
    }
    // The last task: the rings are free when all warps of the block have multiplied.
    const FourParams params = four_params(a, first);
    const int most = first_sum(a, count + a.parts - 1, 1);
    ptx::bar_sync(1, 256);
    if (a.parts > 1 && n < a.parts) {
      if (n == 0) {
        const int mine = first_sum(a, count, part.part + 1) - first_sum(a, count, part.part);
        ptx::mbarrier_arrive_expect_tx(smem.sums_full, (a.parts - 1) * mine * kSumPitch);
      }
      // Nothing that was written before must be seen, so this is no release.
      ptx::mbarrier_arrive_cluster(smem.ready, n);
    }
    if (a.m_parts == 1 || threadIdx.x < 128) write_sums<T>(acc, smem, count);
    if (a.parts > 1) ptx::fence_proxy_async_shared();
    ptx::bar_sync(1, 256);
    if (a.parts > 1) {
      send_sums<T>(a, smem, part, count, most);
      __syncwarp();
      ptx::mbarrier_wait_cluster(smem.sums_full, 0);
      ptx::cluster_arrive_relaxed();  // what other blocks send has arrived
    }
    add_sums<T>(a, smem, part, first, params, row0, count, most);
  }
}

}  // namespace sluice::sm90
