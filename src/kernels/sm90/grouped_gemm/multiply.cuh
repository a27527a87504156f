// SPDX-License-Identifier: Apache-2.0
// The products of one task: a warpgroup multiplies 64 weight rows of every M-tile by all tokens of the tile.
// Accumulators start at zero and every product adds. So no register is defined outside the tensor cores while products
// are in flight.
#pragma once

#include "kernels/ptx/wgmma.cuh"
#include "kernels/ptx/wgmma_sync.cuh"
#include "kernels/sm90/grouped_gemm/operand.cuh"
#include "kernels/sm90/grouped_gemm/task.cuh"

namespace sluice::sm90 {

// This warp has finished reading the stage. Rows that the blocks of a cluster share are free when all of these blocks
// have said so, and the scales of FP8 block are shared in the same way.
template <class T>
__device__ __forceinline__ void release_stage(const Shared<T>& smem, int stage, int lane) {
  if (T::lanes_read || lane == 0) ptx::mbarrier_arrive(smem.empty + stage);
  if constexpr (T::cluster > 1)
    if (T::block_scaled || lane == 0) ptx::mbarrier_arrive_cluster(smem.empty + stage, ptx::cluster_ctarank() ^ 1);
}

template <class T>
using Accumulators = float[T::m_tiles][T::max_n / 2];

template <class T, int N>
__device__ __forceinline__ void multiply_bf16(Accumulators<T>& acc, const Shared<T>& smem, Ring<T>& ring,
                                              int k_blocks) {
  const int wg = threadIdx.x >> 7, lane = threadIdx.x & 31;
  const uint32_t w0 = ptx::swizzled_desc_low(ptx::smem_address(smem.w(0)) + wg * 8192);
  const uint32_t x0 = ptx::swizzled_desc_low(ptx::smem_address(smem.x(0)));
#pragma unroll 1
  for (; k_blocks > 0; k_blocks -= T::k_blocks) {
    ptx::mbarrier_wait(smem.full + ring.stage(), ring.phase());
    const int at = ring.stage() * (T::stage_bytes >> 4);
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < T::k_blocks; ++s) {
      if (s > 0 && s >= k_blocks) break;
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int m = 0; m < T::m_tiles; ++m)
          ptx::Wgmma<N>::bf16_ss(acc[m], ptx::swizzled_desc(w0 + at + ((m * T::k_blocks + s) * 16384 >> 4) + 2 * k),
                                 ptx::swizzled_desc(x0 + at + (s * (N * 128) >> 4) + 2 * k), 1);
    }
    ptx::wgmma_commit();
    // The other warpgroup keeps the tensor cores busy. With one more product in flight the stage would be held for one
    // k-block longer.
    ptx::wgmma_wait<0>();
    release_stage(smem, ring.stage(), lane);
    ring.next();
  }
}

// Partial sums of 128 of K, times the block's two scales, of kPartN tokens from `first` on.
template <class T, int kPartN>
__device__ __forceinline__ void promote(const float (&part)[kPartN / 2], float* sums, const Shared<T>& smem, int stage,
                                        int m, int first, bool gated) {
  const float* ws = smem.w_scale(stage) + m * 4;
  const float w_up = ws[0], w_gate = gated ? ws[1] : ws[0];
  const float* xs = smem.x_scale(stage) + first + 2 * (threadIdx.x & 3);
#pragma unroll
  for (int j = 0; j < kPartN / 8; ++j) {
    const float2 f = *reinterpret_cast<const float2*>(xs + 8 * j);
    sums[4 * j + 0] = fmaf(part[4 * j + 0], f.x * w_up, sums[4 * j + 0]);
    sums[4 * j + 1] = fmaf(part[4 * j + 1], f.y * w_up, sums[4 * j + 1]);
    sums[4 * j + 2] = fmaf(part[4 * j + 2], f.x * w_gate, sums[4 * j + 2]);
    sums[4 * j + 3] = fmaf(part[4 * j + 3], f.y * w_gate, sums[4 * j + 3]);
  }
}

// FP8: partial sums of 128 of K, in one or two parts of N: both sums of 256 tokens at once would not fit in registers.
template <class T, int N>
__device__ __forceinline__ void multiply_fp8(Accumulators<T>& acc, const Shared<T>& smem, Ring<T>& ring, int k_blocks,
                                             bool gated) {
  static_assert(T::k_blocks == 1);
  constexpr int kParts = N > 128 ? 2 : 1, kPartN = N / kParts;
  const int wg = threadIdx.x >> 7, lane = threadIdx.x & 31;
  const uint32_t w0 = ptx::swizzled_desc_low(ptx::smem_address(smem.w(0)) + wg * 8192);
  const uint32_t x0 = ptx::swizzled_desc_low(ptx::smem_address(smem.x(0)));
  float part[kPartN / 2];
#pragma unroll 1
  for (; k_blocks > 0; --k_blocks) {
    const int stage = ring.stage(), at = stage * (T::stage_bytes >> 4);
    ptx::mbarrier_wait(smem.full + stage, ring.phase());
#pragma unroll
    for (int m = 0; m < T::m_tiles; ++m) {
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        float* sums = acc[m] + p * (kPartN / 2);
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k)
          ptx::Wgmma<kPartN>::e4m3_ss(part, ptx::swizzled_desc(w0 + at + (m * 16384 >> 4) + 2 * k),
                                      ptx::swizzled_desc(x0 + at + (p * kPartN * 128 >> 4) + 2 * k), k != 0);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < kPartN / 2; ++i) ptx::pin(part[i]);
        if constexpr (T::block_scaled) {
          promote<T, kPartN>(part, sums, smem, stage, m, p * kPartN, gated);
        } else {
#pragma unroll
          for (int i = 0; i < kPartN / 2; ++i) sums[i] += part[i];
        }
      }
    }
    release_stage(smem, stage, lane);
    ring.next();
  }
}

// Packed weights are decoded to bf16 registers. The codes of the next k-block are fetched from shared memory while the
// tensor cores run on this one. Up to 512 tokens the number of instructions bounds this loop. So the next stage is
// found once, and the upper word of the descriptor is a constant. (Decoding one half while the other is multiplied was
// 2 to 8 % slower.)
template <class T, int N>
__device__ __forceinline__ void multiply_decoded(Accumulators<T>& acc, const Shared<T>& smem, Ring<T>& ring,
                                                 int k_blocks) {
  using D = Decode<T::op>;
  const int wg = threadIdx.x >> 7, thread = threadIdx.x & 127, lane = thread & 31;
  const uint32_t x0 = ptx::swizzled_desc_low(ptx::smem_address(smem.x(0)));
  typename D::Packed packed[T::m_tiles];
  const auto fetch = [&](int k_block) {
#pragma unroll
    for (int m = 0; m < T::m_tiles; ++m)
      packed[m] = D::fetch(smem.w(ring.stage()) + (k_block + m * T::k_blocks) * k_block_bytes(T::op), wg, thread);
  };
  const auto fetch_stage = [&]() {
    ptx::mbarrier_wait(smem.full + ring.stage(), ring.phase());
    fetch(0);
  };
  const auto multiply_k_block = [&](int k_block) {
    const uint64_t x = ptx::swizzled_desc(x0 + ring.stage() * (T::stage_bytes >> 4) + (k_block * (N * 128) >> 4));
#pragma unroll
    for (int m = 0; m < T::m_tiles; ++m) {
      uint32_t a[16];
      D::expand(packed[m], a);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) ptx::Wgmma<N>::bf16_rs(acc[m], a + 4 * k, x + 2 * k, 1);
      ptx::wgmma_commit();
    }
  };
  if (k_blocks <= 0) return;
  fetch_stage();
#pragma unroll 1
  for (;;) {
    multiply_k_block(0);
#pragma unroll
    for (int s = 1; s < T::k_blocks; ++s) {
      if (s >= k_blocks) break;
      fetch(s);
      ptx::wgmma_wait<0>();
      multiply_k_block(s);
    }
    const int stage = ring.stage();
    ring.next();
    k_blocks -= T::k_blocks;
    if (k_blocks > 0) fetch_stage();
    ptx::wgmma_wait<0>();
    release_stage(smem, stage, lane);
    if (k_blocks <= 0) break;
  }
}

// FP8 block with sums in float32: a stage is 128 of K, decoded in halves.
template <class T, int N>
__device__ __forceinline__ void multiply_decoded_blocks(Accumulators<T>& acc, const Shared<T>& smem, Ring<T>& ring,
                                                        int k_blocks, bool gated) {
  using D = Decode<T::op>;
  const int wg = threadIdx.x >> 7, thread = threadIdx.x & 127, lane = thread & 31;
  const uint32_t x0 = ptx::swizzled_desc_low(ptx::smem_address(smem.x(0)));
#pragma unroll 1
  for (; k_blocks > 0; k_blocks -= T::k_blocks) {
    const int stage = ring.stage();
    ptx::mbarrier_wait(smem.full + stage, ring.phase());
#pragma unroll
    for (int m = 0; m < T::m_tiles; ++m) {
      float part[N / 2];
#pragma unroll
      for (int i = 0; i < N / 2; ++i) part[i] = 0.0f;
#pragma unroll
      for (int s = 0; s < T::k_blocks; ++s) {
        if (s > 0 && s >= k_blocks) break;
        uint32_t a[16];
        D::expand(D::fetch(smem.w(stage) + (s + m * T::k_blocks) * k_block_bytes(T::op), wg, thread), a);
        const uint64_t x = ptx::swizzled_desc(x0 + stage * (T::stage_bytes >> 4) + (s * (N * 128) >> 4));
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) ptx::Wgmma<N>::bf16_rs(part, a + 4 * k, x + 2 * k, 1);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
      }
#pragma unroll
      for (int i = 0; i < N / 2; ++i) ptx::pin(part[i]);
      promote<T, N>(part, acc[m], smem, stage, m, 0, gated);
    }
    release_stage(smem, stage, lane);
    ring.next();
  }
}

template <class T, int N>
__device__ __forceinline__ void multiply(Accumulators<T>& acc, const Shared<T>& smem, Ring<T>& ring, int k_blocks,
                                         bool gated) {
#pragma unroll
  for (int m = 0; m < T::m_tiles; ++m)
#pragma unroll
    for (int i = 0; i < N / 2; ++i) acc[m][i] = 0.0f;
  if constexpr (T::op == WeightOperand::bf16)
    multiply_bf16<T, N>(acc, smem, ring, k_blocks);
  else if constexpr (is_fp8(T::op))
    multiply_fp8<T, N>(acc, smem, ring, k_blocks, gated);
  else if constexpr (T::block_scaled)
    multiply_decoded_blocks<T, N>(acc, smem, ring, k_blocks, gated);
  else
    multiply_decoded<T, N>(acc, smem, ring, k_blocks);
#pragma unroll
  for (int m = 0; m < T::m_tiles; ++m)
#pragma unroll
    for (int i = 0; i < N / 2; ++i) ptx::pin(acc[m][i]);
}

// From the run-time number of rows to the instruction: N = I * step_n, I = 1, 2, ....
template <class T, int I>
__device__ __forceinline__ void multiply_padded(Accumulators<T>& acc, const Shared<T>& smem, Ring<T>& ring,
                                                int k_blocks, bool gated, int padded) {
  if (padded == I * T::step_n)
    multiply<T, I * T::step_n>(acc, smem, ring, k_blocks, gated);
  else if constexpr ((I + 1) * T::step_n <= T::max_n)
    multiply_padded<T, I + 1>(acc, smem, ring, k_blocks, gated, padded);
}

}  // namespace sluice::sm90
