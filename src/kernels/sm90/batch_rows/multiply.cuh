// SPDX-License-Identifier: Apache-2.0
// The products of one task: a warpgroup multiplies 64 weight rows by all rows of the tile.
#pragma once

#include "kernels/ptx/wgmma.cuh"
#include "kernels/ptx/wgmma_sync.cuh"
#include "kernels/sm90/batch_rows/shared.cuh"
#include "kernels/sm90/grouped_gemm/operand.cuh"

namespace sluice::sm90 {

// The next stages that a multiplying warp reads.
struct BatchReader {
  Stage w, x;
};

// This warp has read the stage.
__device__ __forceinline__ void release(uint64_t* empty) {
  if ((threadIdx.x & 31) == 0) ptx::mbarrier_arrive(empty);
}

// FP8 block: adds the sums of 128 of K of kRows rows, times the two scales. scales: of the rows from the first one on,
// and of the weights. The arithmetic is the grouped GEMM's (grouped_gemm/multiply.cuh).
template <int kRows>
__device__ __forceinline__ void promote_sums(float* acc, const float (&sums)[kRows / 2], const float* scales,
                                             float of_weights) {
  const float* of_rows = scales + 2 * (threadIdx.x & 3);
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
    const float2 f = *reinterpret_cast<const float2*>(of_rows + 8 * j);
    acc[4 * j] = fmaf(sums[4 * j], f.x * of_weights, acc[4 * j]);
    acc[4 * j + 1] = fmaf(sums[4 * j + 1], f.y * of_weights, acc[4 * j + 1]);
    acc[4 * j + 2] = fmaf(sums[4 * j + 2], f.x * of_weights, acc[4 * j + 2]);
    acc[4 * j + 3] = fmaf(sums[4 * j + 3], f.y * of_weights, acc[4 * j + 3]);
  }
}

// A k-block's products are in flight while the next one's are issued: of few rows they are shorter than their latency.
template <class T>
__device__ __forceinline__ void multiply_batch_bf16(float (&acc)[T::rows / 2], const BatchShared<T>& smem,
                                                    const BatchPart& part, BatchReader& at) {
  static_assert(T::w_k_blocks == 1);
  const int wg = threadIdx.x >> 7;
  const uint32_t w0 = ptx::swizzled_desc_low(ptx::smem_address(smem.ws) + wg * 8192);
  const uint32_t x0 = ptx::swizzled_desc_low(ptx::smem_address(smem.xs));
  int last_w = -1, last_x = 0;
#pragma unroll 1
  for (int k_block = part.begin; k_block < part.end; ++k_block) {
    ptx::mbarrier_wait(smem.w_full + at.w.index, at.w.phase);
    ptx::mbarrier_wait(smem.x_full + at.x.index, at.x.phase);
    const uint32_t w = w0 + at.w.index * (smem.w_stage >> 4), x = x0 + at.x.index * (T::x_stage >> 4);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)
      ptx::Wgmma<T::rows>::bf16_ss(acc, ptx::swizzled_desc(w + 2 * k), ptx::swizzled_desc(x + 2 * k), 1);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (last_w >= 0) {
      release(smem.w_empty + last_w);
      release(smem.x_empty + last_x);
    }
    last_w = at.w.index, last_x = at.x.index;
    at.w.next(smem.w_stages);
    at.x.next(smem.x_stages);
  }
  ptx::wgmma_wait<0>();
  if (last_w >= 0) {
    release(smem.w_empty + last_w);
    release(smem.x_empty + last_x);
  }
}

// Partial sums of 128 of K, of all rows or in parts of them: both sums at once would not fit in registers.
template <class T>
__device__ __forceinline__ void multiply_batch_fp8(float (&acc)[T::rows / 2], const BatchShared<T>& smem,
                                                   const BatchPart& part, BatchReader& at) {
  static_assert(T::w_k_blocks == 1);
  constexpr int kParts = T::rows > 128 ? 2 : 1, kPartRows = T::rows / kParts;
  const int wg = threadIdx.x >> 7;
  const uint32_t w0 = ptx::swizzled_desc_low(ptx::smem_address(smem.ws) + wg * 8192);
  const uint32_t x0 = ptx::swizzled_desc_low(ptx::smem_address(smem.xs));
  float sums[kPartRows / 2];
#pragma unroll 1
  for (int k_block = part.begin; k_block < part.end; ++k_block) {
    ptx::mbarrier_wait(smem.w_full + at.w.index, at.w.phase);
    ptx::mbarrier_wait(smem.x_full + at.x.index, at.x.phase);
    const uint32_t w = w0 + at.w.index * (smem.w_stage >> 4), x = x0 + at.x.index * (T::x_stage >> 4);
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k)
        ptx::Wgmma<kPartRows>::e4m3_ss(sums, ptx::swizzled_desc(w + 2 * k),
                                       ptx::swizzled_desc(x + (p * kPartRows * 128 >> 4) + 2 * k), k != 0);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < kPartRows / 2; ++i) ptx::pin(sums[i]);
      if (p == kParts - 1) {
        release(smem.w_empty + at.w.index);
        if (!block_scaled(T::op)) release(smem.x_empty + at.x.index);
      }
      if constexpr (block_scaled(T::op)) {
        const float* scales = smem.x_scales(at.x.index);
        promote_sums<kPartRows>(acc + p * (kPartRows / 2), sums, scales + p * kPartRows, scales[T::rows]);
        if (p == kParts - 1) {
          __syncwarp();
          release(smem.x_empty + at.x.index);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kPartRows / 2; ++i) acc[p * (kPartRows / 2) + i] += sums[i];
      }
    }
    at.w.next(smem.w_stages);
    at.x.next(smem.x_stages);
  }
}

// Packed weights are decoded to bf16 registers, one k-block after the other: FP8 block, which has sums of 128 of K
// besides (those are a copy of weights), and tiles that have no registers for two. The codes of the next k-block are
// read while the tensor cores run.
template <class T>
__device__ __forceinline__ void multiply_batch_decoded(float (&acc)[T::rows / 2], const BatchShared<T>& smem,
                                                       const BatchPart& part, BatchReader& at) {
  using D = Decode<T::op>;
  const int wg = threadIdx.x >> 7, thread = threadIdx.x & 127;
  const uint32_t x0 = ptx::swizzled_desc_low(ptx::smem_address(smem.xs));
  constexpr bool kBlocks = block_scaled(T::op);
  static_assert(!kBlocks || T::w_k_blocks == k_blocks_per_scale(T::op));
  float sums[kBlocks ? T::rows / 2 : 1];
  typename D::Packed packed;
  // Parts of K begin at a whole stage.
  const auto begins_copy = [&](int k_block) { return (k_block - part.begin) % T::w_k_blocks == 0; };
  const auto fetch = [&](int k_block) {
    const int i = (k_block - part.begin) % T::w_k_blocks;
    if (i == 0) ptx::mbarrier_wait(smem.w_full + at.w.index, at.w.phase);
    packed = D::fetch(smem.w(at.w.index) + i * k_block_bytes(T::op), wg, thread);
    if (i == T::w_k_blocks - 1 || k_block == part.end - 1) {
      __syncwarp();
      release(smem.w_empty + at.w.index);
      at.w.next(smem.w_stages);
    }
  };
  if (part.begin < part.end) fetch(part.begin);
#pragma unroll 1
  for (int k_block = part.begin; k_block < part.end; ++k_block) {
    uint32_t registers[16];
    D::expand(packed, registers);
    ptx::mbarrier_wait(smem.x_full + at.x.index, at.x.phase);
    const uint64_t x = ptx::swizzled_desc(x0 + at.x.index * (T::x_stage >> 4));
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if constexpr (kBlocks)
        ptx::Wgmma<T::rows>::bf16_rs(sums, registers + 4 * k, x + 2 * k, k != 0 || !begins_copy(k_block));
      else
        ptx::Wgmma<T::rows>::bf16_rs(acc, registers + 4 * k, x + 2 * k, 1);
    ptx::wgmma_commit();
    if (k_block + 1 < part.end) fetch(k_block + 1);
    ptx::wgmma_wait<0>();
    if constexpr (kBlocks) {
      if (k_block + 1 == part.end || begins_copy(k_block + 1)) {
#pragma unroll
        for (int i = 0; i < T::rows / 2; ++i) ptx::pin(sums[i]);
        const float* scales = smem.x_scales(at.x.index);
        promote_sums<T::rows>(acc, sums, scales, scales[T::rows]);
      }
      __syncwarp();
    }
    release(smem.x_empty + at.x.index);
    at.x.next(smem.x_stages);
  }
}

// Whether a k-block is decoded while the products of the one before are in flight. Two blocks of 64 rows have 96
// registers per thread, with which the second k-block spilled.
template <class T>
inline constexpr bool kDecodesAhead = decodes(T::op) && !block_scaled(T::op) &&
                                      (T::rows <= 32 || T::blocks_per_sm == 1);

// Packed weights that are decoded so. [10304, 2688] x 64 rows, NVFP4: 20.6 us one after the other, 17.5 so.
template <class T>
__device__ __forceinline__ void multiply_batch_ahead(float (&acc)[T::rows / 2], const BatchShared<T>& smem,
                                                     const BatchPart& part, BatchReader& at) {
  using D = Decode<T::op>;
  const int wg = threadIdx.x >> 7, thread = threadIdx.x & 127;
  const uint32_t x0 = ptx::swizzled_desc_low(ptx::smem_address(smem.xs));
  typename D::Packed packed;
  const auto fetch = [&](int i) { packed = D::fetch(smem.w(at.w.index) + i * k_block_bytes(T::op), wg, thread); };
  // The low word of the descriptor of a k-block's rows, in a uniform register (chain_descs() says why).
  const auto wait_for_rows = [&] {
    ptx::mbarrier_wait(smem.x_full + at.x.index, at.x.phase);
    return x0 + __shfl_sync(0xffffffffu, at.x.index, 0) * (T::x_stage >> 4);
  };
  const auto multiply_k_block = [&](uint32_t x, uint32_t(&registers)[16]) {
#pragma unroll
    for (int r = 0; r < 16; ++r) ptx::pin(registers[r]);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) ptx::Wgmma<T::rows>::bf16_rs(acc, registers + 4 * k, ptx::swizzled_desc(x + 2 * k), 1);
    ptx::wgmma_commit();
  };
  // The tensor cores read one while the other is written. Whole stages have no branch, and the registers are pinned
  // before the products: else ptxas waits for each product (its message C7513).
  uint32_t registers[2][16];
  int last = -1, k_block = part.begin;
#pragma unroll 1
  for (; k_block + T::w_k_blocks <= part.end; k_block += T::w_k_blocks) {
    ptx::mbarrier_wait(smem.w_full + at.w.index, at.w.phase);
    fetch(0);
#pragma unroll
    for (int i = 0; i < T::w_k_blocks; ++i) {
      const uint32_t x = wait_for_rows();
      D::expand(packed, registers[i % 2]);
      if (i + 1 < T::w_k_blocks) fetch(i + 1);
      multiply_k_block(x, registers[i % 2]);
      ptx::wgmma_wait<1>();
      if (i > 0 || last >= 0) release(smem.x_empty + last);
      last = at.x.index;
      at.x.next(smem.x_stages);
    }
    __syncwarp();
    release(smem.w_empty + at.w.index);
    at.w.next(smem.w_stages);
  }
  ptx::wgmma_wait<0>();
  if (last >= 0) release(smem.x_empty + last);
  if (k_block == part.end) return;
  ptx::mbarrier_wait(smem.w_full + at.w.index, at.w.phase);
#pragma unroll 1
  for (int i = 0; k_block + i < part.end; ++i) {
    fetch(i);
    const uint32_t x = wait_for_rows();
    D::expand(packed, registers[0]);
    multiply_k_block(x, registers[0]);
    ptx::wgmma_wait<0>();
    release(smem.x_empty + at.x.index);
    at.x.next(smem.x_stages);
  }
  __syncwarp();
  release(smem.w_empty + at.w.index);
  at.w.next(smem.w_stages);
}

// What a warpgroup does in a task that is a part of an M-tile without its weight rows.
template <class T>
__device__ __forceinline__ void pass_task(const BatchShared<T>& smem, const BatchPart& part, BatchReader& at) {
  static_assert(!cuts_m_tiles(T::op) || T::w_k_blocks == 1);
#pragma unroll 1
  for (int k_block = part.begin; k_block < part.end; ++k_block) {
    ptx::mbarrier_wait(smem.w_full + at.w.index, at.w.phase);
    ptx::mbarrier_wait(smem.x_full + at.x.index, at.x.phase);
    release(smem.w_empty + at.w.index);
    release(smem.x_empty + at.x.index);
    at.w.next(smem.w_stages);
    at.x.next(smem.x_stages);
  }
}

template <class T>
__device__ __forceinline__ void multiply_task(float (&acc)[T::rows / 2], const BatchShared<T>& smem,
                                              const BatchPart& part, BatchReader& at) {
#pragma unroll
  for (int i = 0; i < T::rows / 2; ++i) acc[i] = 0.0f;
  if constexpr (T::op == WeightOperand::bf16)
    multiply_batch_bf16<T>(acc, smem, part, at);
  else if constexpr (is_fp8(T::op))
    multiply_batch_fp8<T>(acc, smem, part, at);
  else if constexpr (kDecodesAhead<T>)
    multiply_batch_ahead<T>(acc, smem, part, at);
  else
    multiply_batch_decoded<T>(acc, smem, part, at);
#pragma unroll
  for (int i = 0; i < T::rows / 2; ++i) ptx::pin(acc[i]);
}

}  // namespace sluice::sm90
