// SPDX-License-Identifier: Apache-2.0
// The product of a normed row and a small matrix, shared out to the warps of a cluster. The matrix is read before the
// kernels ahead have finished, so that the product adds little more than the sum over the lanes.
#pragma once

#include "kernels/sm90/elements.cuh"
#include "kernels/sm90/norm/row_product.h"

namespace sluice::sm90 {

// kPieces: of 16 bytes of a matrix row that a lane has. kWarps: of a block.
template <int kPieces, int kWarps>
struct RowProduct {
  static constexpr int kRows = kMTileRows / (kRowProductBlocks * kWarps);  // of the matrix, for a warp
  uint4 w[kRows][kPieces];

  static __device__ __forceinline__ int row(int rank, int i) {
    return (rank * kWarps + static_cast<int>(threadIdx.x) / 32) * kRows + i;
  }
  // Nothing that runs beside this kernel writes the matrix.
  __device__ __forceinline__ void read(const RowProductArgs& a, int cols, int rank) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        const int piece = lane + 32 * p, r = row(rank, i);
        const uint8_t* at = a.weights + int64_t{piece / 8} * k_block_bytes(WeightOperand::bf16) +
                            swizzled(static_cast<uint32_t>(r), static_cast<uint32_t>(piece % 8));
        w[i][p] = piece * 8 < cols ? __ldg(reinterpret_cast<const uint4*>(at)) : uint4{};
      }
  }
  // x: the row in shared memory, bf16; columns beyond cols are not read.
  __device__ __forceinline__ void multiply(const RowProductArgs& a, int cols, int rank, int64_t y_row,
                                           const uint4* x) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float sums[kRows] = {};
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int piece = lane + 32 * p;
      if (piece * 8 >= cols) continue;
      float v[8];
      load_elements<8>(reinterpret_cast<const bf16_t*>(x + piece), v);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        float m[8];
        load_elements<8>(reinterpret_cast<const bf16_t*>(&w[i][p]), m);
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[i] = fmaf(v[j], m[j], sums[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float sum = lanes_sum(sums[i]);
      if (lane != 0 || row(rank, i) >= a.outputs) continue;
      const int64_t at = y_row * a.y.stride + row(rank, i);
      if (a.y.f32)
        static_cast<float*>(a.y.data)[at] = sum;
      else
        static_cast<bf16_t*>(a.y.data)[at] = from_float<bf16_t>(sum);
    }
  }
};

}  // namespace sluice::sm90
