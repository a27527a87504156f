// SPDX-License-Identifier: Apache-2.0
// FP8 block if experts have many rows: tokens are the M side of the products (64 per warpgroup), weights the N side.
//
// Each partial sum of 128 columns of K is multiplied by the scale of its token and the scale of its weight block. With
// weights as M a thread has two weight rows and a quarter of all tokens: that takes a product of two scales per sum and
// a read of shared memory per four sums. Here a thread has two tokens, and four products of scales do for 64 sums. Four
// lanes share a token and make the scale of its columns, so warps never synchronise.
//
// Lane 4 * r + q of warp w has, of tokens 16 * w + r and 8 more (h = 0, 1), weight rows 8 * j + 2 * q + {0, 1} of row
// tile m: acc[m][4 * j + 2 * h + {0, 1}]. Of a gated tile even j are up, odd j the gate of the same columns.
#pragma once

#include "kernels/sm90/grouped_gemm/rounded.cuh"

namespace sluice::sm90 {

__device__ inline bool has_tokens(int group, int padded) { return group * 64 < padded; }

// The position of the ring, the trip count and the warpgroup are the same in every lane. A shuffle from lane 0 tells
// the compiler so. It then keeps descriptors in uniform registers and issues products back to back: Qwen3-30B-A3B, 8192
// tokens, 898 -> 853 us.
__device__ inline int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

template <class T>
__device__ __forceinline__ void multiply_tokens(Accumulators<T>& acc, const Shared<T>& smem, Ring<T>& ring,
                                                int k_blocks, bool gated, int padded) {
  static_assert(T::k_blocks == 1 && T::m_tiles == 2 && T::max_n == 128);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
  const int group = uniform(static_cast<int>(threadIdx.x >> 7));
  k_blocks = uniform(k_blocks), gated = uniform(gated) != 0, padded = uniform(padded);
  ring.unify();
  if (!has_tokens(group, padded)) {
#pragma unroll 1
    for (; k_blocks > 0; --k_blocks) {
      ptx::mbarrier_wait(smem.full + ring.stage(), ring.phase());
      release_stage(smem, ring.stage(), lane);
      ring.next();
    }
    return;
  }
#pragma unroll
  for (int m = 0; m < T::m_tiles; ++m)
#pragma unroll
    for (int i = 0; i < 64; ++i) acc[m][i] = 0.0f;
  const uint32_t w0 = ptx::swizzled_desc_low(ptx::smem_address(smem.w(0)));
  const uint32_t x0 = ptx::swizzled_desc_low(ptx::smem_address(smem.x(0)) + group * 8192);
  const int token = group * 64 + warp * 16 + (lane >> 2);
  float part[64];
#pragma unroll 1
  for (; k_blocks > 0; --k_blocks) {
    const int stage = ring.stage(), at = stage * (T::stage_bytes >> 4);
    ptx::mbarrier_wait(smem.full + stage, ring.phase());
    const float* xs = smem.x_scale(stage) + token;
    const float x_scale[2] = {xs[0], xs[8]};
#pragma unroll
    for (int m = 0; m < T::m_tiles; ++m) {
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k)
        ptx::Wgmma<128>::e4m3_ss(part, ptx::swizzled_desc(x0 + at + 2 * k),
                                 ptx::swizzled_desc(w0 + at + (m * 16384 >> 4) + 2 * k), k != 0);
      ptx::wgmma_commit();
      const float* ws = smem.w_scale(stage) + m * 4;
      const float w_scale[2] = {ws[0], gated ? ws[1] : ws[0]};
      float scale[2][2];  // of token h, up and gate
#pragma unroll
      for (int h = 0; h < 2; ++h) scale[h][0] = x_scale[h] * w_scale[0], scale[h][1] = x_scale[h] * w_scale[1];
      ptx::wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < 64; ++i) ptx::pin(part[i]);
      if (m + 1 == T::m_tiles) release_stage(smem, stage, lane);
#pragma unroll
      for (int i = 0; i < 64; ++i) acc[m][i] = fmaf(part[i], scale[i >> 1 & 1][i >> 2 & 1], acc[m][i]);
    }
    ring.next();
  }
#pragma unroll
  for (int m = 0; m < T::m_tiles; ++m)
#pragma unroll
    for (int i = 0; i < 64; ++i) ptx::pin(acc[m][i]);
}

// A warp's 16 rows of 128 bytes on their way to memory, swizzled.
template <class T>
__device__ inline uint8_t* warp_rows(const Shared<T>& smem, const Warpgroup& group) {
  static_assert(T::group_staging >= 4 * 2048);
  return smem.staging + group.index * T::group_staging + group.warp * 2048;
}

// bf16 results, 128 bytes of a token at once. columns % 8 == 0, no bias.
template <class T>
__device__ __forceinline__ void store_token_results(const GemmArgs& g, const EpilogueParams<T>& params,
                                                    Accumulators<T>& acc, const Shared<T>& smem,
                                                    const Warpgroup& group) {
  uint8_t* staging = warp_rows(smem, group);
  const int r = group.lane >> 2, q = group.lane & 3, first = group.index * 64 + group.warp * 16,
            count = params.tile.count;
  const float factor = params.row_factor[0];
  uint16_t* out[4];  // of the tokens that this lane stores
  const int piece = group.lane & 7;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    out[i] = static_cast<uint16_t*>(g.epilogue.out) +
             static_cast<int64_t>(params.row_pair[first + 4 * i + (group.lane >> 3)]) * g.epilogue.columns;
#pragma unroll
  for (int m = 0; m < T::m_tiles; ++m) {
    const int m_tile = params.task.m_group * T::m_tiles + m;
    if (m_tile >= g.m_tiles) break;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      __syncwarp();  // the last rows have left the staging
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float* v = acc[m] + 4 * (8 * c + j) + 2 * h;
          *reinterpret_cast<uint32_t*>(staging + swizzled(r + 8 * h, j) + 4 * q) =
              ptx::cvt_bf16x2_f32(v[1] * factor, v[0] * factor);
        }
      __syncwarp();
      const int column = m_tile * kMTileRows + 64 * c + 8 * piece;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = 4 * i + (group.lane >> 3);
        const uint4 v = *reinterpret_cast<const uint4*>(staging + swizzled(token, piece));
        if (first + token < count && column < g.epilogue.columns) *reinterpret_cast<uint4*>(out[i] + column) = v;
      }
    }
  }
}

// GEMM1's rows: activated, a scale for the 128 columns of a token, codes. Rows of padding are stored as well.
template <class T, bool kGated>
__device__ __forceinline__ void store_token_codes(const GemmArgs& g, const EpilogueParams<T>& params,
                                                  Accumulators<T>& acc, const Shared<T>& smem, const Warpgroup& group) {
  constexpr int kJoint = kGated ? 2 : 1;  // M-tiles of one scale
  uint8_t* staging = warp_rows(smem, group);
  const int r = group.lane >> 2, q = group.lane & 3, first = group.index * 64 + group.warp * 16;
  const int padded = params.tile.padded, runs = g.epilogue.out_k_blocks;
  const float factor = params.row_factor[0];
#pragma unroll
  for (int m = 0; m < T::m_tiles; m += kJoint) {
    const int m_tile = params.task.m_group * T::m_tiles + m, run = kGated ? m_tile / 2 : m_tile;
    if (m_tile >= g.m_tiles || run >= runs) break;
    __syncwarp();  // the last rows have left the staging
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t top = 0;
#pragma unroll
      for (int n = 0; n < kJoint; ++n)
#pragma unroll
        for (int j = 0; j < 16; j += kJoint)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& v = acc[m + n][4 * j + 2 * h + e];
            if constexpr (kGated)  // swiglu without parameters
              v = gated_by_sigmoid(acc[m + n][4 * (j + 1) + 2 * h + e] * factor, 1.0f) * (v * factor);
            else
              v = activation::Relu2::apply(v * factor, 0.0f, activation::Params());
            top = format::amax_bits(top, v);
          }
      const float scale = group_scale(amax_lanes(top, 4));
      // Words of two columns of 8 and the same two of the next 8.
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int n = kGated ? i / 4 : 0, j = kGated ? i % 4 * 4 : 2 * i;
        const float *low = acc[m + n] + 4 * j + 2 * h, *high = low + 4 * kJoint;
        const uint32_t codes =
            static_cast<uint32_t>(ptx::cvt_e4m3x2_f32(ptx::divide(low[1], scale), ptx::divide(low[0], scale))) |
            static_cast<uint32_t>(ptx::cvt_e4m3x2_f32(ptx::divide(high[1], scale), ptx::divide(high[0], scale))) << 16;
        *reinterpret_cast<uint32_t*>(staging + swizzled(r + 8 * h, i) + 4 * q) = codes;
      }
      if (q == 0)
        g.epilogue.out_block_scale[static_cast<int64_t>(params.tile.row_base) * runs +
                                   static_cast<int64_t>(run) * padded + first + r + 8 * h] = scale;
    }
    __syncwarp();
    // The staging is as the rows' layout wants it but for the order of columns in 16.
    uint8_t* out =
        static_cast<uint8_t*>(g.epilogue.out) + (static_cast<int64_t>(params.tile.row_base) * g.epilogue.out_k_blocks +
                                                 static_cast<int64_t>(run) * padded + first) *
                                                    128;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = i * 512 + group.lane * 16;
      const uint4 v = *reinterpret_cast<const uint4*>(staging + at);
      *reinterpret_cast<uint4*>(out + at) = {__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.z, v.w, 0x5410),
                                             __byte_perm(v.x, v.y, 0x7632), __byte_perm(v.z, v.w, 0x7632)};
    }
  }
}

// What the two functions above do not do: float32 staging, 8 tokens of a warp at once, four lanes per token.
template <class T>
__device__ __forceinline__ void store_token_pieces(const GemmArgs& g, const EpilogueParams<T>& params,
                                                   Accumulators<T>& acc, const Shared<T>& smem,
                                                   const Warpgroup& group) {
  const RowTile tile = params.tile;
  float* staging =
      reinterpret_cast<float*>(smem.staging + group.index * T::group_staging) + group.warp * 8 * T::float_pitch;
  const int r = group.lane >> 2, q = group.lane & 3;
  float* to = staging + r * T::float_pitch;
#pragma unroll 1
  for (int part = 0; part < 4 * T::m_tiles; ++part) {
    const int m_tile = params.task.m_group * T::m_tiles + part / 4, c = part / 2 % 2, h = part % 2;
    if (m_tile >= g.m_tiles) break;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < T::m_tiles; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (part == 4 * m + i)
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const float* v = acc[m] + 4 * (i / 2 * 8 + j) + 2 * (i % 2);
            *reinterpret_cast<float2*>(to + 8 * j + 2 * q) = {v[0], v[1]};
          }
    __syncwarp();
    const int n = group.index * 64 + group.warp * 16 + 8 * h + r, known = n < tile.count ? n : 0;
    store_segment(RowSegment{g, tile, n, 4 * c + q, m_tile, params.row_pair[known], params.row_factor[known]},
                  to + q * 16);
  }
}

template <class T>
__device__ __forceinline__ void store_tokens(const GemmArgs& g, const EpilogueParams<T>& params, Accumulators<T>& acc,
                                             const Shared<T>& smem, const Warpgroup& group) {
  if (g.epilogue.store == Store::result && !g.epilogue.out_f32 && g.epilogue.columns % 8 == 0 &&
      g.epilogue.activation.bias == nullptr)
    store_token_results<T>(g, params, acc, smem, group);
  else if (g.epilogue.store == Store::rows_group && activates_in_registers(g))
    g.epilogue.gated ? store_token_codes<T, true>(g, params, acc, smem, group)
                     : store_token_codes<T, false>(g, params, acc, smem, group);
  else
    store_token_pieces<T>(g, params, acc, smem, group);
}

}  // namespace sluice::sm90
