// SPDX-License-Identifier: Apache-2.0
// The products of a task, the exchange of partial sums in a cluster, and the results.
#pragma once

#include "kernels/sm90/few_rows/rows.cuh"
#include "kernels/sm90/few_rows/store.cuh"
#include "kernels/sm90/grouped_gemm/multiply.cuh"

namespace sluice::sm90 {

__device__ __forceinline__ SumRows sum_rows(const FewRowsArgs& a, const Part& part) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  SumRows r;
  r.row_groups = 8 / a.splits;
  r.row_group = part.rank * r.row_groups + warp % r.row_groups;
  r.row = 16 * r.row_group + lane / 4;
  return r;
}

// Sends each warp's sums to the block that adds them; 512 bytes of a warp lie side by side.
template <class T>
__device__ __forceinline__ void send_sums(const float (&acc)[T::max_n / 2], const FewShared<T>& smem, const Part& part,
                                          const SumRows& rows) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, rank = warp / rows.row_groups;
  const int first = (part.rank * rows.row_groups + warp % rows.row_groups) * (T::max_n / 8);
  const uint32_t to = ptx::mapa(ptx::smem_address(smem.partial + (first * 32 + lane) * 16), rank);
  const uint32_t bar = ptx::mapa(ptx::smem_address(smem.sums_full), rank);
#pragma unroll
  for (int j = 0; j < T::max_n / 8; ++j)
    ptx::st_async_f32x4(to + j * 512, {acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]}, bar);
}

template <class T>
__device__ __forceinline__ void add_sums(const FewShared<T>& smem, const SumRows& rows, int splits, int row_group,
                                         int j, float (&sum)[4]) {
  const int lane = threadIdx.x & 31;
  const auto* from = reinterpret_cast<const float4*>(smem.partial) + (row_group * (T::max_n / 8) + j) * 32 + lane;
  const int stride = rows.row_groups * (T::max_n / 8) * 32;
#pragma unroll
  for (int s = 0; s < kMaxFewRowsSplits; ++s) {
    if (s >= splits) break;
    const float4 v = from[s * stride];
    sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
  }
}

// multiply_bf16 (multiply.cuh) with a stage's products in flight while the next stage's are issued: a product of few
// rows is shorter than its latency.
template <class T>
__device__ __forceinline__ void multiply_bf16_ahead(float (&acc)[T::max_n / 2], const FewShared<T>& smem, Ring<T>& ring,
                                                    int k_blocks) {
  static_assert(T::k_blocks == 1);
  const int wg = threadIdx.x >> 7, lane = threadIdx.x & 31;
  const uint32_t w0 = ptx::swizzled_desc_low(ptx::smem_address(smem.w(0)) + wg * 8192);
  const uint32_t x0 = ptx::swizzled_desc_low(ptx::smem_address(smem.x(0)));
#pragma unroll
  for (int i = 0; i < T::max_n / 2; ++i) acc[i] = 0.0f;
  int last = -1;
#pragma unroll 1
  for (; k_blocks > 0; --k_blocks) {
    const int stage = ring.stage(), at = stage * (T::stage_bytes >> 4);
    ptx::mbarrier_wait(smem.full + stage, ring.phase());
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)
      ptx::Wgmma<T::max_n>::bf16_ss(acc, ptx::swizzled_desc(w0 + at + 2 * k), ptx::swizzled_desc(x0 + at + 2 * k), 1);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (last >= 0 && lane == 0) ptx::mbarrier_arrive(smem.empty + last);
    last = stage;
    ring.next();
  }
  ptx::wgmma_wait<0>();
  if (last >= 0 && lane == 0) ptx::mbarrier_arrive(smem.empty + last);
#pragma unroll
  for (int i = 0; i < T::max_n / 2; ++i) ptx::pin(acc[i]);
}

// What a warpgroup does in a task that is a part of an M-tile without its weight rows.
template <class T>
__device__ __forceinline__ void pass_stages(const FewShared<T>& smem, Ring<T>& ring, int k_blocks) {
  for (; k_blocks > 0; k_blocks -= T::k_blocks) {
    ptx::mbarrier_wait(smem.full + ring.stage(), ring.phase());
    if (T::lanes_read || (threadIdx.x & 31) == 0) ptx::mbarrier_arrive(smem.empty + ring.stage());
    ring.next();
  }
}

// The weight rows that a warp adds in a task; those of a warp beyond the task's are another's, whom it does not
// disturb.
__device__ __forceinline__ SumRows rows_of_task(const FewRowsArgs& a, const SumRows& rows, int task) {
  if (a.m_parts == 1) return rows;
  SumRows r;
  r.row_groups = 8 / a.m_parts;
  r.row_group = task % a.m_parts * r.row_groups + static_cast<int>(threadIdx.x >> 5) % r.row_groups;
  r.row = 16 * r.row_group + static_cast<int>(threadIdx.x & 31) / 4;
  return r;
}

// Run by warps 0 to 7: all products and results of the block.
template <class T>
__device__ __forceinline__ void multiply_few(const FewRowsArgs& a, const FewShared<T>& smem, const Part& part,
                                             const SumRows& all_rows) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, group = 1 + (threadIdx.x >> 7);
  SumRows rows = all_rows;
  const int count = static_cast<int>(real_tokens(a.num_rows, a.rows));
  if (scales_few_rows<T::op>(a.round)) {
    a.x_f32 ? send_maxima<T, float>(a, smem, part, count) : send_maxima<T, bf16_t>(a, smem, part, count);
    ptx::mbarrier_wait_cluster(smem.maxima_full, 0);
  }
  float* factors = smem.epilogue_params->row_factor;
  const float shared = a.scale->factor;
  for (int n = threadIdx.x; n < T::max_n; n += 256)
    factors[n] = scales_few_rows<T::op>(a.round)        ? shared * row_scale<T>(a, smem, n)
                 : a.row_factor != nullptr && n < count ? shared * __ldcg(a.row_factor + n)
                                                        : shared;
  ptx::bar_sync(3, 256);
  const bool wide = stores_wide(a);
  const auto store = [&](int m_tile, const RowParams& params, int j, const float(&v)[4], float2 factor) {
    if (wide)
      store_wide<1>(a, m_tile, rows, params, j, j + 1, count, {{v[0], v[1], v[2], v[3]}}, {factor});
    else
      store_narrow(a, m_tile, rows, params, j, count, v, factor);
  };
  const auto factors_of = [&](int j) { return *reinterpret_cast<const float2*>(factors + 8 * j + 2 * (lane & 3)); };
  float acc[1][T::max_n / 2];
  Ring<T> ring;
  for (int t = 0; t < part.tasks; ++t) {
    const int task = part.first + t * part.step, m_tile = task / a.m_parts;
    rows = rows_of_task(a, all_rows, task);
    const RowParams params = row_params(a, m_tile, rows);
    // As in the grouped GEMM, two barriers let the compiler keep the ring's position in uniform registers.
    ptx::bar_sync(group, 128);
    if (cuts_m_tiles(T::op) && a.m_parts > 1 && group > 1)
      pass_stages<T>(smem, ring, part.end - part.begin);
    else if constexpr (T::op == WeightOperand::bf16)
      multiply_bf16_ahead<T>(acc[0], smem, ring, part.end - part.begin);
    else
      multiply<T, T::max_n>(acc, smem, ring, part.end - part.begin, false);
    ptx::bar_sync(group, 128);
    if (a.splits == 1) {
      if (warp >= 8 / a.m_parts) continue;
#pragma unroll
      for (int j = 0; j < T::max_n / 8; ++j)
        if (8 * j < count)
          store(m_tile, params, j, {acc[0][4 * j], acc[0][4 * j + 1], acc[0][4 * j + 2], acc[0][4 * j + 3]},
                factors_of(j));
      continue;
    }
    send_sums<T>(acc[0], smem, part, rows);
    ptx::mbarrier_wait_cluster(smem.sums_full, 0);
    for (int j = warp / rows.row_groups; 8 * j < count; j += a.splits) {
      float sum[4] = {};
      add_sums<T>(smem, rows, a.splits, warp % rows.row_groups, j, sum);
      store(m_tile, params, j, sum, factors_of(j));
    }
  }
}

}  // namespace sluice::sm90
