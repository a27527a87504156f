// SPDX-License-Identifier: Apache-2.0
// 16 weight rows by one k-block as the left operand of mma m16n8k16, straight from the layout of the grouped GEMM, and
// the token's columns as the right one. All eight columns of the right operand are the same token, so lanes of a row
// hold the same sums. Which columns of K meet in a step is free: where rows are stored row by row, a lane's 16 bytes
// are four steps of its own.
#pragma once

#include "kernels/ptx/mma.cuh"
#include "kernels/sm90/grouped_gemm/operand.cuh"
#include "kernels/sm90/one_token/config.h"

namespace sluice::sm90 {

// Where the words of eight neighbouring columns go so that lanes read theirs together. The columns are piece `piece` of
// a k-block; i: 0 to 3.
template <WeightOperand op>
HD constexpr int token_word(int piece, int i) {
  if (is_fp8(op)) {  // 16 columns of 16 bytes; a lane's words of step (half, code word) are neighbours
    const int word = 2 * piece + (i >> 1);
    return ((word >> 2) & 3) * 16 + ((word >> 4) * 4 + (word & 3)) * 2 + (i & 1);
  }
  const int word = 4 * piece + i;
  if (op == WeightOperand::bf16) return ((word >> 2) & 3) * 8 + 2 * (word & 3) + (word >> 4);
  return (word & 3) * 8 + 2 * (word >> 3) + ((word >> 2) & 1);
}

// The row of eight that a lane's row of the product is. Where rows are stored row by row, neighbours would be in the
// same banks of shared memory: of the swizzled pieces rows r and r + 4 have different halves of 128 bytes.
template <WeightOperand op>
HD constexpr int fragment_row(int row) {
  return decodes(op) ? row : row / 2 + row % 2 * 4;
}

template <WeightOperand op>
struct Fragment {
  uint4 v[4];  // rows lane / 4 and + 8 at 16 bytes lane % 4, then at lane % 4 + 4
  // read(piece, offset): 16 bytes of the piece.
  template <class Read>
  __device__ __forceinline__ void load(Read&& read, int lane) {
    const int row = fragment_row<op>(lane >> 2), q = lane & 3;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = row + 8 * (i & 1), piece = q + 4 * (i >> 1);
      v[i] = read.template operator()<uint4>(0, static_cast<int>(swizzled(r, piece)));
    }
  }
  // x: the lane's words of the k-block, in shared memory.
  __device__ __forceinline__ void multiply(const uint32_t* x, float (&c)[2][4]) const {
    const uint32_t* from[4] = {&v[0].x, &v[1].x, &v[2].x, &v[3].x};
    if constexpr (op == WeightOperand::bf16) {
      const uint4 x0 = *reinterpret_cast<const uint4*>(x), x1 = *reinterpret_cast<const uint4*>(x + 4);
      const uint32_t b[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
#pragma unroll
      for (int j = 0; j < 4; ++j)
        ptx::mma_m16n8k16_bf16(c[j & 1], {from[0][j], from[1][j], from[2][j], from[3][j]}, b[2 * j], b[2 * j + 1]);
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 x0 = *reinterpret_cast<const uint4*>(x + 8 * half),
                    x1 = *reinterpret_cast<const uint4*>(x + 8 * half + 4);
        const uint32_t b[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint32_t lower = from[2 * half][j], upper = from[2 * half + 1][j];
          ptx::mma_m16n8k16_f16(
              c[j & 1],
              {ptx::cvt_f16x2_e4m3x2(static_cast<uint16_t>(lower)), ptx::cvt_f16x2_e4m3x2(static_cast<uint16_t>(upper)),
               ptx::cvt_f16x2_e4m3x2(static_cast<uint16_t>(lower >> 16)),
               ptx::cvt_f16x2_e4m3x2(static_cast<uint16_t>(upper >> 16))},
              b[2 * j], b[2 * j + 1]);
        }
      }
    }
  }
};

template <WeightOperand op>
requires(decodes(op)) struct Fragment<op> {
  typename Decode<op>::Packed packed;
  template <class Read>
  __device__ __forceinline__ void load(Read&& read, int lane) {
    if constexpr (decodes_e4m3(op)) {
      packed.w0 = read.template operator()<uint4>(0, lane * 16);
      packed.w1 = read.template operator()<uint4>(1, lane * 16);
      packed.s = read.template operator()<uint32_t>(2, (lane >> 2) * 4);
    } else {
      packed.w = read.template operator()<uint4>(0, lane * 16);
      using Scales = decltype(packed.s);
      packed.s = read.template operator()<Scales>(1, (lane >> 2) * static_cast<int>(sizeof(Scales)));
    }
  }
  __device__ __forceinline__ void multiply(const uint32_t* x, float (&c)[2][4]) const {
    uint32_t a[16];
    Decode<op>::expand(packed, a);
    const uint4 x0 = *reinterpret_cast<const uint4*>(x), x1 = *reinterpret_cast<const uint4*>(x + 4);
    const uint32_t b[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
#pragma unroll
    for (int s = 0; s < 4; ++s)
      ptx::mma_m16n8k16_bf16(c[s & 1], {a[4 * s], a[4 * s + 1], a[4 * s + 2], a[4 * s + 3]}, b[2 * s], b[2 * s + 1]);
  }
};

}  // namespace sluice::sm90
