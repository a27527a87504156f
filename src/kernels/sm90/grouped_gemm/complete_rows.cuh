// SPDX-License-Identifier: Apache-2.0
// FP8 per token: the scale of a row of GEMM2 needs all of the columns that GEMM1 makes, in float32. The warpgroup that
// stores the last part of a tile's rows rounds them, while the copying warps fill the block's stages. Then both GEMMs
// are one launch.
#pragma once

#include "kernels/sm90/grouped_gemm/store.cuh"
#include "kernels/sm90/quantize/token_rows.cuh"

namespace sluice::sm90 {

// The rows of a tile, several at a time: a thread holds kCompletedPieces pieces of eight columns, which are one, two or
// four of a row. So each value is read once. Reads go past the L1 cache, because other multiprocessors wrote the rows.
// maxima: [2][kCompletedPieces][4 warps], in turns.
template <class T>
__device__ __forceinline__ void round_token_rows(const GroupedGemmArgs& args, const RowTile& tile, uint32_t* maxima,
                                                 const Warpgroup& group) {
  constexpr int kThreads = 128, kWarps = kThreads / 32, kHeld = kCompletedPieces;
  static_assert(kHeld == 4);
  const int columns = args.gemm[0].epilogue.columns, k_blocks = args.gemm[1].k_blocks;
  const int padded_columns = k_blocks * k_block_columns(T::op);
  // Logarithm of the pieces that a thread has of a row.
  const int shift = padded_columns <= 8 * kThreads ? 0 : padded_columns <= 2 * 8 * kThreads ? 1 : 2;
  const float* from = static_cast<const float*>(args.gemm[0].epilogue.out) + int64_t{tile.row_base} * columns;
  // What GEMM2 reads is made in this launch.
  uint8_t* to = const_cast<uint8_t*>(args.gemm[1].x.data) + int64_t{tile.row_base} * k_blocks * 128;
  const auto row_of = [&](int base, int p) { return base + (p >> shift); };
  const auto column_of = [&](int p) { return 8 * ((p & ((1 << shift) - 1)) * kThreads + group.thread); };
  for (int base = 0, turn = 0; base < tile.count; base += kHeld >> shift, turn ^= 1) {
    float v[kHeld][8];
#pragma unroll
    for (int p = 0; p < kHeld; ++p) {
      float4 a{}, b{};
      if (row_of(base, p) < tile.count && column_of(p) < columns) {
        const auto* at = reinterpret_cast<const float4*>(from + int64_t{row_of(base, p)} * columns + column_of(p));
        a = __ldcg(at), b = __ldcg(at + 1);
      }
      v[p][0] = a.x, v[p][1] = a.y, v[p][2] = a.z, v[p][3] = a.w;
      v[p][4] = b.x, v[p][5] = b.y, v[p][6] = b.z, v[p][7] = b.w;
    }
    uint32_t* exchanged = maxima + turn * kHeld * kWarps;
#pragma unroll
    for (int p = 0; p < kHeld; ++p) {
      const uint32_t bits = __reduce_max_sync(0xffffffffu, amax8(v[p]));
      if (group.lane == 0) exchanged[p * kWarps + group.warp] = bits;
    }
    group.sync();  // a warp that has passed here has read the maxima of the rows before
    uint32_t top[kHeld];
#pragma unroll
    for (int p = 0; p < kHeld; ++p) {
      const uint4 of_warps = *reinterpret_cast<const uint4*>(exchanged + p * kWarps);
      top[p] = max(max(of_warps.x, of_warps.y), max(of_warps.z, of_warps.w));
    }
    if (shift > 0) top[0] = top[1] = max(top[0], top[1]), top[2] = top[3] = max(top[2], top[3]);
    if (shift > 1) top[0] = top[1] = top[2] = top[3] = max(top[0], top[2]);
#pragma unroll
    for (int p = 0; p < kHeld; ++p) {
      const int n = row_of(base, p), column = column_of(p);
      if (n < tile.count && column < padded_columns) {
        const float scale = group_scale(top[p]);
        const PlacedRow row{to, n, tile.padded};
        if constexpr (is_fp8(T::op))
          *reinterpret_cast<uint2*>(reinterpret_cast<uint8_t*>(row.piece(column >> 4)) + (column & 8)) =
              rounded_e4m3(Round::fp8_token, v[p], scale);
        else
          *row.piece(column >> 3) = rounded_bf16(Round::fp8_token, v[p], 0, {}, 1.0f, scale);
        if (column == 0) args.token_scale[tile.row_base + n] = scale;
      }
    }
  }
}

// Called by a warpgroup that has stored its part of the rows and met. If it is the last one, it rounds them and
// publishes them. The copy engine reads them next, perhaps that of another block.
template <class T>
__device__ __forceinline__ void complete_rows(const GroupedGemmArgs& args, const EpilogueParams<T>& params,
                                              const Shared<T>& smem, const Warpgroup& group) {
  if (group.thread == 0) smem.flag[group.index] = ptx::atom_add_acq_rel(args.ready + params.task.tile, 1) + 1;
  group.sync();
  if (smem.flag[group.index] < stored_parts<T>(args)) return;
  static_assert(T::group_staging >= 2 * kCompletedPieces * 4 * 4 && T::group_staging % 16 == 0);
  round_token_rows<T>(args, params.tile, reinterpret_cast<uint32_t*>(smem.staging + group.index * T::group_staging),
                      group);
  ptx::fence_proxy_async();
  group.sync();
  if (group.thread == 0) ptx::red_add_release(args.ready + params.task.tile, 1);
}

}  // namespace sluice::sm90
