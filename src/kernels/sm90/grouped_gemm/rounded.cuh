// SPDX-License-Identifier: Apache-2.0
// The rows of GEMM1, activated and rounded in registers, where up and gate of a column meet, and stored as
// store_results does. The float32 staging of store_segments takes 3500 cycles for 32 tokens.
//
// Block scales need the largest value of 16, 32 or 128 columns of a token. Columns are spread over the lanes of a warp
// (lane / 4) and over warps. Lanes reduce by exchanging halves. Warps that share a group of columns write their maxima
// to shared memory and synchronise once; then each makes the scales that it needs.
#pragma once

#include "kernels/sm90/grouped_gemm/store.cuh"

namespace sluice::sm90 {

// Whether activate_sums knows the activation.
__device__ inline bool activates_in_registers(const GemmArgs& g) {
  const bool parameters = g.epilogue.activation.bias != nullptr || g.epilogue.activation.alpha != nullptr ||
                          g.epilogue.activation.beta != nullptr || g.epilogue.activation.limit != nullptr ||
                          g.epilogue.pair_weight != nullptr;
  return rounds_in_registers(g.epilogue.act, parameters);
}
template <class T>
__device__ inline bool rounds_in_registers(const GemmArgs& g) {
  const bool rows =
      g.epilogue.store == Store::rows &&
      (T::op == WeightOperand::fp8_f32 ? g.epilogue.round == Round::fp8_static
                                       : g.epilogue.round == Round::plain || group_columns(g.epilogue.round) != 0);
  const bool codes = g.epilogue.store == Store::rows_e4m3 && g.epilogue.round == Round::fp8_static;
  return (rows || codes || g.epilogue.store == Store::rows_group) && activates_in_registers(g);
}

template <class T, bool kGated>
struct RoundingShape {
  static constexpr int tokens = T::turn_tokens;
  static constexpr int pieces = tokens / 8;  // of 8 tokens
  static constexpr int warp_columns = kGated ? 8 : 16;
  static constexpr bool codes = is_fp8(T::op);
  static constexpr bool static_scale = T::op == WeightOperand::fp8 || T::op == WeightOperand::fp8_f32;
  static constexpr bool block_scales = T::block_scaled || (decodes(T::op) && !static_scale);
  static constexpr int joint = T::block_scaled && kGated ? T::m_tiles : 1;

  // Maxima of a warp [tokens], in two buffers: of this exchange and of the one before.
  __device__ static uint32_t* maxima(const Shared<T>& smem, int group, int warp, int exchange) {
    return reinterpret_cast<uint32_t*>(smem.staging + group * T::group_staging + 4096 +
                                       ((exchange & 1) * 4 + warp) * 256);
  }
  // What values are multiplied by, and the scale, of a warp's columns [tokens].
  __device__ static float2* scales(const Shared<T>& smem, const Warpgroup& group) {
    return reinterpret_cast<float2*>(smem.staging + group.index * T::group_staging + 6144 + group.warp * 512);
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
__device__ __forceinline__ void activate_sums(float* sums, const float (&scale)[2], const DecodeFactors<T>& factors,
                                              int first) {
#pragma unroll
  for (int j = 0; j < RoundingShape<T, kGated>::pieces; ++j) {
    const float2 f = factors(first + j * 8);
    float* v = sums + 4 * j;
    const float a0 = v[0] * (scale[0] * f.x), a1 = v[1] * (scale[0] * f.y);
    const float b0 = v[2] * (scale[1] * f.x), b1 = v[3] * (scale[1] * f.y);
    if constexpr (kGated) {
      // SwiGLU without parameters
      v[0] = gated_by_sigmoid(b0, 1.0f) * a0, v[1] = gated_by_sigmoid(b1, 1.0f) * a1;
    } else {
      using activation::Relu2;
      const activation::Params params;
      v[0] = Relu2::apply(a0, 0.0f, params), v[1] = Relu2::apply(a1, 0.0f, params);
      v[2] = Relu2::apply(b0, 0.0f, params), v[3] = Relu2::apply(b1, 0.0f, params);
    }
  }
}

// Waits for the warps that share a group of columns: one, two, a warpgroup, or both of them.
template <class T>
__device__ __forceinline__ void sync_group(int warps, const Warpgroup& group) {
  if constexpr (T::block_scaled)
    Warpgroup::sync_both();
  else if (warps == 4)
    group.sync();
  else if (warps == 2)
    ptx::bar_sync(4 + group.index * 2 + (group.warp >> 1), 64);
  else
    __syncwarp();
}

// The scale of this warp's columns for every token: what values are multiplied by, and the scale; of fp8_group the
// scale alone, which is also stored.
template <class T, bool kGated>
__device__ __forceinline__ void make_scales(const GemmArgs& g, const EpilogueParams<T>& params, int first_token,
                                            int m_tile, int warps, int exchange, const Shared<T>& smem,
                                            const Warpgroup& group) {
  using R = RoundingShape<T, kGated>;
  const int first_warp = group.warp & ~(warps - 1);
#pragma unroll
  for (int i = 0; i < (R::tokens + 31) / 32; ++i) {
    const int token = 32 * i + group.lane;
    if (R::tokens % 32 != 0 && token >= R::tokens) break;
    uint32_t bits = 0;
    for (int w = 0; w < warps; ++w) {
      bits = max(bits, R::maxima(smem, group.index, first_warp + w, exchange)[token]);
      if constexpr (T::block_scaled) bits = max(bits, R::maxima(smem, group.index ^ 1, w, exchange)[token]);
    }
    float2 s;
    if constexpr (T::block_scaled) {
      s = {group_scale(bits), 0.0f};
      const int n = first_token + token, run = m_tile * (kGated ? 64 : 128) >> 7;
      const int runs = scale_runs(T::op, g.epilogue.out_k_blocks);
      if (group.index == 0 && group.warp == 0 && n < params.tile.padded && run < runs)
        g.epilogue.out_block_scale[static_cast<int64_t>(params.tile.row_base) * runs +
                                   static_cast<int64_t>(run) * params.tile.padded + n] = s.x;
    } else if (g.epilogue.round == Round::mxfp8) {
      const uint8_t code = format::mxfp8_scale(format::amax_value(bits));
      s = {format::e8m0_inverse(code), format::e8m0_to_float(code)};
    } else {
      const float scale = block_scale(bits, params.out_scale.global);
      s = {block_inverse(scale, params.out_scale.global), scale};
    }
    R::scales(smem, group)[token] = s;
  }
}

// Two columns' or one column's values of two tokens, in place; s: inverse and scale of each.
template <class T>
__device__ __forceinline__ void round_pair(Round round, float& a, float& b, const float4& s) {
  if constexpr (T::block_scaled) {
    a = ptx::divide(a, s.x), b = ptx::divide(b, s.z);
    if constexpr (decodes(T::op)) ptx::cvt_f32x2_f16x2(ptx::cvt_f16x2_e4m3x2(ptx::cvt_e4m3x2_f32(b, a)), a, b);
  } else if (round == Round::mxfp8) {
    ptx::cvt_f32x2_f16x2(ptx::cvt_f16x2_e4m3x2(ptx::cvt_e4m3x2_f32(b * s.z, a * s.x)), a, b);
    a *= s.y, b *= s.w;
  } else {
    a = e2m1_value(a * s.x) * s.y, b = e2m1_value(b * s.z) * s.w;
  }
}

// From one exchange's activated sums of kJoint M-tiles to sums that the operand of GEMM2 holds exactly (codes for FP8).
template <class T, bool kGated, int kJoint>
__device__ __forceinline__ void round_sums(const GemmArgs& g, const EpilogueParams<T>& params,
                                           float* const (&sums)[kJoint], int first_token, int m_tile, int exchange,
                                           const Shared<T>& smem, const Warpgroup& group) {
  using R = RoundingShape<T, kGated>;
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
  *reinterpret_cast<uint2*>(R::maxima(smem, group.index, group.warp, exchange) + piece * 8 + token) = {top[0], top[1]};
  const int warps =
      T::block_scaled ? 4 : group_columns(g.epilogue.round) / R::warp_columns;  // of this warpgroup, in a group
  // A warp that has passed here has read the maxima of the exchange before, so two buffers do.
  sync_group<T>(warps, group);
  make_scales<T, kGated>(g, params, first_token, m_tile, warps, exchange, smem, group);
  __syncwarp();
  const float2* scales = R::scales(smem, group) + token;
#pragma unroll
  for (int i = 0; i < R::pieces; ++i) {
    const float4 s = *reinterpret_cast<const float4*>(scales + 8 * i);
#pragma unroll
    for (int j = 0; j < kJoint; ++j)
#pragma unroll
      for (int k = 0; k < kPerPiece; k += 2)
        round_pair<T>(g.epilogue.round, sums[j][4 * i + k], sums[j][4 * i + k + 1], s);
  }
}

// Through stmatrix to rows of 128 bytes, of which a warp has 8 columns (gated) or 16. e4m3 codes travel as halves,
// which hold them exactly.
template <class T, bool kGated>
__device__ __forceinline__ void store_sums(const GemmArgs& g, const EpilogueParams<T>& params, const float* sums,
                                           int first_token, int m_tile, const Shared<T>& smem, const Warpgroup& group) {
  using R = RoundingShape<T, kGated>;
  constexpr int kTokens = kGated || R::tokens < 32 ? R::tokens : 32;  // that fit into a warp's staging
  constexpr int kLanes = kGated ? 1 : 2;                              // per token
  const int lane = group.lane, half = kGated ? 0 : lane & 1;
  const int column = kGated ? m_tile * 64 + group.index * 32 + group.warp * 8
                            : m_tile * kMTileRows + group.index * 64 + group.warp * 16 + half * 8;
  constexpr int kKBlockColumns = R::codes ? 128 : 64, kPiece = R::codes ? 16 : 8;
  const int k_block = column / kKBlockColumns, piece = column % kKBlockColumns / kPiece, padded = params.tile.padded;
  const bool kept = k_block < g.epilogue.out_k_blocks;
  uint8_t* out =
      static_cast<uint8_t*>(g.epilogue.out) +
      (static_cast<int64_t>(params.tile.row_base) * g.epilogue.out_k_blocks + static_cast<int64_t>(k_block) * padded) *
          128 +
      (R::codes ? column & 8 : 0);
  uint8_t* staging = warp_values(smem, group);
  const float inverse = R::static_scale ? params.out_scale.inverse : 1.0f;
  const auto word = [&](float low, float high) {
    if constexpr (!R::codes && !R::static_scale) return ptx::cvt_bf16x2_f32(high, low);
    const uint32_t halves = ptx::cvt_f16x2_e4m3x2(ptx::cvt_e4m3x2_f32(high * inverse, low * inverse));
    if constexpr (R::codes) return halves;
    ptx::cvt_f32x2_f16x2(halves, low, high);
    return ptx::cvt_bf16x2_f32(high, low);
  };
  // Lane i addresses row i % 8 of matrix i / 8, which are 8 columns of 8 tokens: of four pieces, or both halves of two.
  uint8_t* to = kGated ? staging + lane * 16 : staging + pair_of_halves((lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);
#pragma unroll
  for (int first = 0; first < R::tokens; first += kTokens) {
    __syncwarp();  // the last tokens have left the staging
    uint32_t words[4] = {};
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      const float* v = sums + 4 * (first / 8 + j);
      if constexpr (kGated) {
        words[j % 4] = word(v[0], v[1]);
        if (j % 4 == 3 || j + 1 == kTokens / 8)
          ptx::stmatrix_x4_trans(to + j / 4 * 512, words[0], words[1], words[2], words[3]);
      } else {
        words[j % 2 * 2] = word(v[0], v[1]);
        words[j % 2 * 2 + 1] = word(v[2], v[3]);
        if (j % 2 == 1) ptx::stmatrix_x4_trans(to + j / 2 * 512, words[0], words[1], words[2], words[3]);
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < (kTokens * kLanes + 31) / 32; ++i) {
      const int token = (32 * i + lane) / kLanes, n = first_token + first + token;
      const uint4 v = *reinterpret_cast<const uint4*>(staging + (kGated ? token * 16 : pair_of_halves(token, half)));
      if (kept && token < kTokens && n < padded) {
        uint8_t* at = out + swizzled(static_cast<uint32_t>(n), static_cast<uint32_t>(piece));
        if constexpr (R::codes)
          *reinterpret_cast<uint2*>(at) = {static_cast<uint32_t>(ptx::cvt_e4m3x2_f16x2(v.x)) |
                                               static_cast<uint32_t>(ptx::cvt_e4m3x2_f16x2(v.y)) << 16,
                                           static_cast<uint32_t>(ptx::cvt_e4m3x2_f16x2(v.z)) |
                                               static_cast<uint32_t>(ptx::cvt_e4m3x2_f16x2(v.w)) << 16};
        else
          *reinterpret_cast<uint4*>(at) = v;
      }
    }
  }
}

template <class T, bool kGated>
__device__ __forceinline__ void store_rounded(const GemmArgs& g, const EpilogueParams<T>& params, Accumulators<T>& acc,
                                              const Shared<T>& smem, const Warpgroup& group, int& exchange) {
  static_assert(!kGated || T::rounds_gated);
  using R = RoundingShape<T, kGated>;
  const DecodeFactors<T> factors(g, params, group);
  const int padded = params.tile.padded;
#pragma unroll
  for (int m = 0; m < T::m_tiles; m += R::joint) {
    const int m_tile = params.task.m_group * T::m_tiles + m;
    if (m_tile >= g.m_tiles) break;
    const float* row_scale = params.row_scale + m * kMTileRows + group.index * 64 + group.warp * 16 + (group.lane >> 2);
    const float scale[2] = {row_scale[0], row_scale[8]};
#pragma unroll
    for (int first = 0; first < T::max_n; first += R::tokens) {
      if (first < padded) {
        float* sums[R::joint];
#pragma unroll
        for (int j = 0; j < R::joint; ++j) {
          sums[j] = acc[m + j] + first / 2;
          activate_sums<T, kGated>(sums[j], scale, factors, first);
        }
        if constexpr (R::block_scales)
          if (T::block_scaled || g.epilogue.round != Round::plain)
            round_sums<T, kGated>(g, params, sums, first, m_tile, exchange++, smem, group);
#pragma unroll
        for (int j = 0; j < R::joint; ++j)
          if (j == 0 || m_tile + j < g.m_tiles)
            store_sums<T, kGated>(g, params, sums[j], first, m_tile + j, smem, group);
      }
    }
  }
}

template <class T>
__device__ __forceinline__ void store_rounded(const GemmArgs& g, const EpilogueParams<T>& params, Accumulators<T>& acc,
                                              const Shared<T>& smem, const Warpgroup& group, int& exchange) {
  if constexpr (T::rounds_gated)
    if (g.epilogue.gated) return store_rounded<T, true>(g, params, acc, smem, group, exchange);
  store_rounded<T, false>(g, params, acc, smem, group, exchange);
}

// float32 [row, columns] for the kernel that rounds whole rows: eight lanes have eight neighbouring columns of a token,
// 32 bytes, so the sums go to memory as they lie.
template <class T, bool kGated>
__device__ __forceinline__ void store_activated(const GemmArgs& g, const EpilogueParams<T>& params,
                                                Accumulators<T>& acc, const Warpgroup& group) {
  using R = RoundingShape<T, kGated>;
  const DecodeFactors<T> factors(g, params, group);
  const int padded = params.tile.padded, count = params.tile.count, token = 2 * (group.lane & 3);
#pragma unroll
  for (int m = 0; m < T::m_tiles; ++m) {
    const int m_tile = params.task.m_group * T::m_tiles + m,
              row = group.index * 64 + group.warp * 16 + (group.lane >> 2);
    if (m_tile >= g.m_tiles) break;
    const float scale[2] = {params.row_scale[m * kMTileRows + row], params.row_scale[m * kMTileRows + row + 8]};
    const int column = kGated ? m_tile * 64 + gated_column(row) : m_tile * kMTileRows + row;
    float* out =
        static_cast<float*>(g.epilogue.out) + static_cast<int64_t>(params.tile.row_base) * g.epilogue.columns + column;
#pragma unroll
    for (int first = 0; first < T::max_n; first += R::tokens) {
      if (first < padded) {
        float* sums = acc[m] + first / 2;
        activate_sums<T, kGated>(sums, scale, factors, first);
#pragma unroll
        for (int j = 0; j < R::pieces; ++j)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int n = first + 8 * j + token + i;
            float* at = out + static_cast<int64_t>(n) * g.epilogue.columns;
            if (n < count && column < g.epilogue.columns) at[0] = sums[4 * j + i];
            if (!kGated && n < count && column + 8 < g.epilogue.columns) at[8] = sums[4 * j + 2 + i];
          }
      }
    }
  }
}

}  // namespace sluice::sm90
