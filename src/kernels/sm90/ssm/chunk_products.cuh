// SPDX-License-Identifier: Apache-2.0
// The matrix products of a chunk, on tensor cores, all transposed: a warp has 16 columns of the head. Each begins here
// and runs while its caller goes on.
#pragma once

#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/ptx/wgmma_rows.cuh"
#include "kernels/sm90/ssm/chunk.cuh"

namespace sluice::sm90 {

// The A operand of the transposed panel: columns [column, column + 16), rows [16 k, 16 k + 16).
__device__ __forceinline__ void load_transposed_a(uint32_t (&r)[4], uint32_t panel, int k, int column) {
  const int lane = threadIdx.x & 31;
  ptx::ldmatrix_x4_trans(r, piece_at(panel, 16 * k + lane / 16 * 8 + (lane & 7), column / 8 + (lane / 8 & 1)));
}

__device__ __forceinline__ void load_x(uint32_t (&x)[kScanChunk / 16][4], uint32_t stage, int column) {
#pragma unroll
  for (int k = 0; k < kScanChunk / 16; ++k) load_transposed_a(x[k], stage + kPanelX, k, column);
}

// A step of 16 columns over two panels.
__device__ __forceinline__ uint64_t columns_desc(uint32_t panels, int k) {
  return ptx::swizzled_desc(ptx::swizzled_desc_low(panels) + k / 4 * (kPanel >> 4) + 2 * (k % 4));
}

template <int kCount>
__device__ __forceinline__ void pin_all(float (&tiles)[kCount][4]) {
#pragma unroll
  for (int n = 0; n < kCount; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) ptx::pin(tiles[n][i]);
}

// Begins g = C B^T.
__device__ __forceinline__ void begin_keys(uint32_t stage, float (&g)[kRowTiles][4]) {
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kScanState / 16; ++k)
    ptx::Wgmma<64>::bf16_ss(&g[0][0], columns_desc(stage + kPanelC, k), columns_desc(stage + kPanelB, k), k > 0);
  ptx::wgmma_commit();
}

// Half of the operand of S C: that of all would not leave enough registers.
struct HalfState {
  static constexpr int kSteps = kScanState / 32;
  uint32_t high[kSteps][4], low[kSteps][4];

  template <int kHalf>
  __device__ __forceinline__ void split(const float (&state)[kStateTiles][4]) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) split_state(state, kHalf * kSteps + k, high[k], low[k]);
  }
  // Begins y (+)= S C of it.
  template <int kHalf>
  __device__ __forceinline__ void begin(uint32_t stage, float (&y)[kRowTiles][4]) const {
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const uint64_t c = columns_desc(stage + kPanelC, kHalf * kSteps + k);
      ptx::Wgmma<64>::bf16_rs(&y[0][0], high[k], c, kHalf + k > 0);
      ptx::Wgmma<64>::bf16_rs(&y[0][0], low[k], c, 1);
    }
    ptx::wgmma_commit();
  }
};

// Begins y += x^T scores^T. All rows take part: their scores of later rows are zeros. (Products with
// fewer rows would have to wait for each other.)
__device__ __forceinline__ void begin_scores(const uint32_t (&x)[kScanChunk / 16][4], uint32_t smem,
                                             float (&y)[kRowTiles][4]) {
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kScanChunk / 16; ++k) {
    ptx::Wgmma<64>::bf16_rs(&y[0][0], x[k], columns_desc(smem + kScoresHigh, k), 1);
    ptx::Wgmma<64>::bf16_rs(&y[0][0], x[k], columns_desc(smem + kScoresLow, k), 1);
  }
  ptx::wgmma_commit();
}

__device__ __forceinline__ void begin_update(const uint32_t (&x)[kScanChunk / 16][4], uint32_t stage,
                                             const ChunkSteps& steps, float (&state)[kStateTiles][4]) {
  uint32_t high[kScanChunk / 16][4], low[kScanChunk / 16][4];
#pragma unroll
  for (int k = 0; k < kScanChunk / 16; ++k) split_weighted(x[k], steps, k, high[k], low[k]);
  scale_state(steps, state);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kScanChunk / 16; ++k)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint64_t desc = ptx::swizzled_desc(ptx::rows_desc_low(stage + kPanelB + half * kPanel) + k * 128);
      ptx::wgmma_m64n64k16_bf16_rows(&state[8 * half][0], high[k], desc);
      ptx::wgmma_m64n64k16_bf16_rows(&state[8 * half][0], low[k], desc);
    }
  ptx::wgmma_commit();
}

}  // namespace sluice::sm90
