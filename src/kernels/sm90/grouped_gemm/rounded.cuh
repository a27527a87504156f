// SPDX-License-Identifier: Apache-2.0
// GEMM1's rows like store_results: activated and rounded in registers, where up and gate of a column meet. The float32
// staging of store_pieces takes 3500 cycles for 32 tokens.
//
// Block scales need the largest value of 16, 32 or 128 columns of a token. Columns are spread over the lanes of a warp
// (lane / 4) and over warps: lanes reduce by exchanging halves, warps leave their maxima in shared memory, and one
// thread makes the scale of a token and group for all.
#pragma once

#include "kernels/sm90/grouped_gemm/finish.cuh"

namespace sluice::sm90 {

__device__ inline bool rounds_in_registers(const Gemm& g) {
  const bool rows = g.store == Store::rows && (g.round == Round::plain || group_columns(g.round) != 0);
  const bool codes = g.store == Store::rows_e4m3 && g.round == Round::fp8_static;
  const bool parameters =
      g.bias != nullptr || g.alpha != nullptr || g.beta != nullptr || g.limit != nullptr || g.pair_weight != nullptr;
  return (rows || codes || g.store == Store::rows_group) && rounds_in_registers(g.act, parameters);
}

template <class T, bool kGated>
struct Rounding {
  static constexpr int tokens = T::max_n < T::half_tokens ? T::max_n : T::half_tokens;  // at once
  static constexpr int pieces = tokens / 8;                                             // of 8 tokens
  static constexpr int warp_columns = kGated ? 8 : 16;
  static constexpr bool codes = is_fp8(T::op);
  // A gated group of 128 columns is two row tiles.
  static constexpr int joint = T::block_scaled && kGated ? T::m_tiles : 1;
  static_assert(!T::block_scaled || !kGated || T::m_tiles == 2);

  // Both lie in the warpgroup's staging, before values do.
  __device__ static uint32_t* amax(const Shared<T>& smem, int group) {
    return reinterpret_cast<uint32_t*>(smem.staging + group * T::group_staging);  // [4 warps][tokens]
  }
  __device__ static float2* scales(const Shared<T>& smem, int group) {  // [groups of columns][tokens] inverse, scale
    return reinterpret_cast<float2*>(smem.staging + group * T::group_staging + 16 * tokens);
  }
};

// Largest of each value over the 8 lanes of equal lane % 4. Lanes exchange halves, so that 16 values take 14 shuffles:
// left are v[0] and v[1] of piece `piece`.
template <int kValues>
__device__ __forceinline__ void reduce_columns(uint32_t (&v)[kValues], int lane, int& piece) {
  piece = 0;
  int n = kValues;
#pragma unroll
  for (int step = 16; step >= 4; step /= 2) {
    if (n > 2) {
      n /= 2;
      const bool upper = (lane & step) != 0;
#pragma unroll
      for (int k = 0; k < kValues / 2; ++k) {
        if (k < n) {
          const uint32_t mine = upper ? v[k + n] : v[k], other = upper ? v[k] : v[k + n];
          v[k] = max(mine, __shfl_xor_sync(0xffffffffu, other, step));
        }
      }
      if (upper) piece += n / 2;
    } else {
#pragma unroll
      for (int k = 0; k < 2; ++k) v[k] = max(v[k], __shfl_xor_sync(0xffffffffu, v[k], step));
    }
  }
}

// Scaled and activated in place; v[0], v[1] hold the activated columns when gated, else all four.
template <class T, bool kGated>
__device__ __forceinline__ void activate_sums(float* sums, const float (&scale)[2], const float* factors) {
  const activation::Params params;
#pragma unroll
  for (int j = 0; j < Rounding<T, kGated>::pieces; ++j) {
    const float2 f = *reinterpret_cast<const float2*>(factors + j * 8);
    float* v = sums + 4 * j;
    const float a0 = v[0] * (scale[0] * f.x), a1 = v[1] * (scale[0] * f.y);
    const float b0 = v[2] * (scale[1] * f.x), b1 = v[3] * (scale[1] * f.y);
    if constexpr (kGated) {
      v[0] = swiglu(a0, b0, params), v[1] = swiglu(a1, b1, params);
    } else {
      using activation::Relu2;
      v[0] = Relu2::apply(a0, 0.0f, params), v[1] = Relu2::apply(a1, 0.0f, params);
      v[2] = Relu2::apply(b0, 0.0f, params), v[3] = Relu2::apply(b1, 0.0f, params);
    }
  }
}

// The scale of every group of columns of every token: what values are multiplied by, and their scale; of fp8_group the
// scale alone, which is also stored.
template <class T, bool kGated>
__device__ __forceinline__ void make_scales(const Gemm& g, const Tile& tile, int first_token, int row_tile,
                                            const Shared<T>& smem, const Group& group) {
  using R = Rounding<T, kGated>;
  const int warps = T::block_scaled ? 4 : group_columns(g.round) / R::warp_columns;  // that share a group
  const int groups = 4 / warps;
  for (int i = group.thread; i < groups * R::tokens; i += 128) {
    const int token = i % R::tokens, first_warp = i / R::tokens * warps;
    uint32_t bits = 0;
    for (int w = 0; w < warps; ++w) {
      bits = max(bits, R::amax(smem, group.index)[(first_warp + w) * R::tokens + token]);
      if constexpr (T::block_scaled) bits = max(bits, R::amax(smem, group.index ^ 1)[w * R::tokens + token]);
    }
    float2 s;
    if constexpr (T::block_scaled) {
      s = {group_scale(bits), 0.0f};
      const int n = first_token + token, slab = row_tile * (kGated ? 64 : 128) >> 7;
      if (group.index == 0 && n < tile.padded && slab < g.out_slabs)
        g.out_block_scale[static_cast<int64_t>(tile.row_base) * g.out_slabs + static_cast<int64_t>(slab) * tile.padded +
                          n] = s.x;
    } else if (g.round == Round::mxfp8) {
      const uint8_t b = format::mxfp8_scale(format::amax_value(bits));
      s = {format::e8m0_inverse(b), format::e8m0_to_float(b)};
    } else {
      const uint8_t b = format::nvfp4_scale(format::amax_value(bits), g.out_scale->global);
      s = {block_inverse(b, g.out_scale->global), format::e4m3_to_float(b)};
    }
    R::scales(smem, group.index)[i] = s;
  }
}

// Two columns' or one column's values of two tokens, in place; s: inverse and scale of each.
template <class T>
__device__ __forceinline__ void round_pair(Round round, float& a, float& b, const float4& s) {
  if constexpr (T::block_scaled) {
    a = ptx::divide(a, s.x), b = ptx::divide(b, s.z);
  } else if (round == Round::mxfp8) {
    ptx::cvt_f32x2_f16x2(ptx::cvt_f16x2_e4m3x2(ptx::cvt_e4m3x2_f32(b * s.z, a * s.x)), a, b);
    a *= s.y, b *= s.w;
  } else {
    a = e2m1_value(a * s.x) * s.y, b = e2m1_value(b * s.z) * s.w;
  }
}

// From `chunk`'s activated sums of kJoint row tiles to sums that the operand of GEMM2 holds exactly (codes for FP8).
template <class T, bool kGated, int kJoint>
__device__ __forceinline__ void round_sums(const Gemm& g, const Tile& tile, float* const (&sums)[kJoint],
                                           int first_token, int row_tile, const Shared<T>& smem, const Group& group) {
  using R = Rounding<T, kGated>;
  constexpr int kPerPiece = kGated ? 2 : 4;
  uint32_t top[2 * R::pieces] = {};
#pragma unroll
  for (int j = 0; j < kJoint; ++j)
#pragma unroll
    for (int i = 0; i < R::pieces; ++i)
#pragma unroll
      for (int k = 0; k < kPerPiece; ++k)
        top[2 * i + k % 2] = format::amax_bits(top[2 * i + k % 2], sums[j][4 * i + k]);
  int piece;
  reduce_columns(top, group.lane, piece);
  const int token = 2 * (group.lane & 3);
  const auto meet = [&] { T::block_scaled ? Group::sync_both() : group.sync(); };
  meet();  // the last chunk has left the staging
  *reinterpret_cast<uint2*>(R::amax(smem, group.index) + group.warp * R::tokens + piece * 8 + token) = {top[0], top[1]};
  meet();
  make_scales<T, kGated>(g, tile, first_token, row_tile, smem, group);
  meet();
  const int columns = T::block_scaled ? 128 : group_columns(g.round);
  const int column_group = T::block_scaled ? 0 : group.warp * R::warp_columns / columns;
  const float2* scales = R::scales(smem, group.index) + column_group * R::tokens + token;
#pragma unroll
  for (int i = 0; i < R::pieces; ++i) {
    const float4 s = *reinterpret_cast<const float4*>(scales + 8 * i);
#pragma unroll
    for (int j = 0; j < kJoint; ++j)
#pragma unroll
      for (int k = 0; k < kPerPiece; k += 2) round_pair<T>(g.round, sums[j][4 * i + k], sums[j][4 * i + k + 1], s);
  }
}

// Through stmatrix to rows of 128 bytes. e4m3 codes travel as halves, which hold them exactly.
template <class T, bool kGated>
__device__ __forceinline__ void store_sums(const Gemm& g, const Tile& tile, const float* sums, int first_token,
                                           int row_tile, const Shared<T>& smem, const Group& group) {
  using R = Rounding<T, kGated>;
  constexpr int kColumns = kGated ? 32 : 64, kPitch = 2 * kColumns + 16, kLanes = kColumns / 8;
  uint8_t* staging = smem.staging + group.index * T::group_staging;
  const float inverse = R::codes && !T::block_scaled ? g.out_scale->inverse : 1.0f;
  const auto word = [&](float low, float high) {
    return R::codes ? ptx::cvt_f16x2_e4m3x2(ptx::cvt_e4m3x2_f32(high * inverse, low * inverse))
                    : ptx::cvt_bf16x2_f32(high, low);
  };
  group.sync();
  uint32_t words[4];
#pragma unroll
  for (int j = 0; j < R::pieces; ++j) {
    const float* v = sums + 4 * j;
    if constexpr (kGated) {
      // Matrices are 8 columns of 8 tokens each.
      words[j % 4] = word(v[0], v[1]);
      if (j % 4 == 3 || j + 1 == R::pieces)
        ptx::stmatrix_x4_trans(
            staging + ((j / 4 * 4 + (group.lane >> 3)) * 8 + (group.lane & 7)) * kPitch + group.warp * 16, words[0],
            words[1], words[2], words[3]);
    } else {
      words[j % 2 * 2] = word(v[0], v[1]);
      words[j % 2 * 2 + 1] = word(v[2], v[3]);
      if (j % 2 == 1)
        ptx::stmatrix_x4_trans(staging + ((j / 2 * 2 + (group.lane >> 4)) * 8 + (group.lane & 7)) * kPitch +
                                   group.warp * 32 + (group.lane >> 3 & 1) * 16,
                               words[0], words[1], words[2], words[3]);
    }
  }
  group.sync();
  const int piece = group.thread % kLanes;
  const int column = row_tile * (kGated ? 64 : 128) + group.index * kColumns + piece * 8;
#pragma unroll
  for (int token = group.thread / kLanes; token < R::tokens; token += 128 / kLanes) {
    const int n = first_token + token;
    const uint4 v = *reinterpret_cast<const uint4*>(staging + token * kPitch + piece * 16);
    const Spot s{g, tile, n, n < tile.padded};
    if constexpr (R::codes)
      store_rows_e4m3(
          s, column,
          {static_cast<uint32_t>(ptx::cvt_e4m3x2_f16x2(v.x)) | static_cast<uint32_t>(ptx::cvt_e4m3x2_f16x2(v.y)) << 16,
           static_cast<uint32_t>(ptx::cvt_e4m3x2_f16x2(v.z)) | static_cast<uint32_t>(ptx::cvt_e4m3x2_f16x2(v.w))
                                                                   << 16});
    else
      store_rows_bf16(s, column, v);
  }
}

template <class T, bool kGated>
__device__ __forceinline__ void store_rounded(const Gemm& g, const Task& t, const Tile& tile, Accumulators<T>& acc,
                                              const Shared<T>& smem, const Group& group) {
  using R = Rounding<T, kGated>;
  const float* factors = smem.row_factor + group.index * T::max_n + 2 * (group.lane & 3);
#pragma unroll
  for (int m = 0; m < T::m_tiles; m += R::joint) {
    const int row_tile = t.unit * T::m_tiles + m;
    if (row_tile >= g.row_tiles) break;
    float scale[2] = {1.0f, 1.0f};
    if (g.row_scale != nullptr) {
      const int row = group.index * 64 + group.warp * 16 + (group.lane >> 2);
      const float* rs = g.row_scale + (static_cast<int64_t>(tile.expert) * g.row_tiles + row_tile) * kTileRows + row;
      scale[0] = rs[0], scale[1] = rs[8];
    }
#pragma unroll
    for (int first = 0; first < T::max_n; first += R::tokens) {
      if (first < tile.padded) {
        float* sums[R::joint];
#pragma unroll
        for (int j = 0; j < R::joint; ++j) {
          sums[j] = acc[m + j] + first / 2;
          activate_sums<T, kGated>(sums[j], scale, factors + first);
        }
        if constexpr (T::block_scaled)
          round_sums<T, kGated>(g, tile, sums, first, row_tile, smem, group);
        else if constexpr (!R::codes && T::op != Operand::bf16)
          if (g.round != Round::plain) round_sums<T, kGated>(g, tile, sums, first, row_tile, smem, group);
#pragma unroll
        for (int j = 0; j < R::joint; ++j)
          if (j == 0 || row_tile + j < g.row_tiles)
            store_sums<T, kGated>(g, tile, sums[j], first, row_tile + j, smem, group);
      }
    }
  }
}

}  // namespace sluice::sm90
