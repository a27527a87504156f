// SPDX-License-Identifier: Apache-2.0
// Rounding one row into the rows layout, by a whole block.
#pragma once

#include "activation/activations.h"
#include "base/bf16.h"
#include "kernels/sm90/grouped_gemm/epilogue.cuh"
#include "kernels/sm90/quantize/rows.h"

namespace sluice::sm90 {

template <int kThreads>
__device__ inline float block_max_bits(uint32_t bits, uint32_t* shared) {
  bits = amax_lanes(bits, 32);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = bits;
  __syncthreads();
  for (int i = 0; i < kThreads / 32; ++i) bits = shared[i] > bits ? shared[i] : bits;
  return format::amax_value(bits);
}

__device__ inline void load_token8(const RowsArgs& a, int64_t token, int column, float (&v)[8]) {
  const int64_t at = token * a.source.columns + column;
  if (column + 8 <= a.source.columns && a.source.columns % 8 == 0) {
    if (a.source.tokens_f32) {
      load8(static_cast<const float*>(a.source.tokens) + at, v);
    } else {
      const uint4 w = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(a.source.tokens) + at);
      const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[2 * i] = __uint_as_float(words[i] << 16);
        v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
    v[i] = column + i >= a.source.columns ? 0.0f
           : a.source.tokens_f32          ? static_cast<const float*>(a.source.tokens)[at + i]
                                          : bf16_to_float(static_cast<const uint16_t*>(a.source.tokens)[at + i]);
}

__device__ inline void load_row8(const float* row, int columns, int column, float (&v)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = column + i < columns ? row[column + i] : 0.0f;
}

// To e4m3 and back, 128 columns (16 neighbouring lanes) a scale.
__device__ inline void round_group128(float (&x)[8]) {
  const float s = format::fp8_scale(format::amax_value(amax_lanes(amax8(x), 16)));
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = format::e4m3_to_float(format::fp8_code(x[i], s)) * s;
}

// A row of GEMM1's float result. raw: its two halves, each rounded to e4m3 groups of 128 columns, then activated;
// all 128 threads must call it together (16 neighbouring lanes share a group).
__device__ inline void load_result8(const RowsArgs& a, int64_t row, int expert, int column, float (&v)[8]) {
  if (!a.source.raw) {
    load_row8(a.source.float_rows + row * a.source.columns, a.source.columns, column, v);
    return;
  }
  float gate[8] = {};
  const float* base = a.source.float_rows + row * (a.source.gated ? 2 : 1) * a.source.columns;
  load_row8(base, a.source.columns, column, v);
  if (a.source.gated) load_row8(base + a.source.columns, a.source.columns, column, gate);
  round_group128(v);
  if (a.source.gated) round_group128(gate);
  const int64_t bias_base = static_cast<int64_t>(expert) * a.source.columns;
  if (a.activation.bias != nullptr) add_bias8(a.activation.bias, bias_base, column, a.source.columns, v);
  if (a.activation.bias_gate != nullptr) add_bias8(a.activation.bias_gate, bias_base, column, a.source.columns, gate);
  activation::Params params;
  if (a.activation.alpha != nullptr) params.alpha = a.activation.alpha[expert];
  if (a.activation.beta != nullptr) params.beta = a.activation.beta[expert];
  if (a.activation.limit != nullptr) params.limit = a.activation.limit[expert];
  activate8(a.source.act, v, gate, params);
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (column + i >= a.source.columns) v[i] = 0.0f;
}

// Where one row of a tile goes.
struct Target {
  uint8_t* tile;  // the tile's first k-block
  float* scales;
  int padded, n;
  int64_t row;
  int padding;  // rows of the tile that follow its last one, if this is it: their scales are cleared
};

__device__ inline Target target_of(const RowsArgs& a, const RowTile& tile, int n) {
  const int64_t base = tile.row_base;
  return {a.out.data + base * a.out.k_blocks * 128,
          a.out.block_scale + base * a.out.scale_runs,
          tile.padded,
          n,
          base + n,
          n + 1 == tile.count ? tile.padded - tile.count : 0};
}

// Of 128 columns from `column` on.
__device__ inline void store_scale(const Target& t, int column, float scale) {
  float* scales = t.scales + static_cast<int64_t>(column >> 7) * t.padded + t.n;
  scales[0] = scale;
  for (int i = 1; i <= t.padding; ++i) scales[i] = 0.0f;
}

__device__ inline void store8(const RowsArgs& a, const Target& t, int column, const uint4& bf16, const uint2& codes,
                              float group_scale, bool first_of_group) {
  if (a.out.e4m3) {
    uint8_t* k_block = t.tile + static_cast<int64_t>(column >> 7) * t.padded * 128;
    *reinterpret_cast<uint2*>(k_block + swizzled(t.n, (column & 127) >> 4) + (column & 8)) = codes;
    if (a.out.round == Round::fp8_group && first_of_group) store_scale(t, column, group_scale);
  } else {
    uint8_t* k_block = t.tile + static_cast<int64_t>(column >> 6) * t.padded * 128;
    *reinterpret_cast<uint4*>(k_block + swizzled(t.n, (column & 63) >> 3)) = bf16;
  }
}

// Rounds one row, 8 columns per thread and step, and hands every piece to store(column, bf16, codes, scale, first).
// Blocks with the same row and another `part` share its columns. kGroups: also the bf16 rows of FP8 block with float32
// sums. The gather of other formats is compiled without it (with it: 60 us more for 8192 tokens of NVFP4).
template <int kThreads, bool kGroups = true, class Load, class Store8>
__device__ inline void round_row(const RowsArgs& a, float row_amax, float* row_scale_out, int part, int parts,
                                 Load&& load, Store8&& store) {
  format::Nvfp4Global global = a.out.static_scale->global;
  float divisor = a.out.static_scale->inverse;
  float row_scale = 1.0f;
  if (a.out.round == Round::fp8_token) row_scale = divisor = format::fp8_scale(row_amax);
  if (a.out.round == Round::nvfp4_token) {
    global = format::nvfp4_row_global(row_amax);
    row_scale = global.decode;
  }
  *row_scale_out = row_scale;
  const int group = group_columns(a.out.round);
  const int padded_columns = a.out.k_blocks * (a.out.e4m3 ? 128 : 64);
  for (int base = part * 8 * kThreads; base < padded_columns; base += parts * 8 * kThreads) {
    const int column = base + 8 * static_cast<int>(threadIdx.x);
    float v[8];
    load(column, v);
    uint32_t amax = 0;
    if (group != 0) amax = amax_lanes(amax8(v), group / 8);
    if (column >= padded_columns) continue;
    uint4 packed{};
    uint2 codes{};
    float scale = 1.0f;
    if (a.out.e4m3) {
      float d = divisor;
      if (a.out.round == Round::fp8_group) d = scale = format::fp8_scale(format::amax_value(amax));
      codes = rounded_e4m3(a.out.round, v, d);
    } else {
      const bool grouped = kGroups && a.out.round == Round::fp8_group;
      if (grouped) scale = group_scale(amax);
      packed = rounded_bf16(a.out.round, v, amax, global, divisor, grouped ? scale : row_scale);
    }
    store(column, packed, codes, scale, (column & 127) == 0);
  }
}

// A token to the rows of its local experts.
template <int kThreads, bool kGroups = true>
__device__ inline void write_token(const RowsArgs& a, int64_t token, const Target* targets, int num_targets, int part,
                                   int parts, uint32_t* shared) {
  const auto load = [&](int column, float(&v)[8]) {
    if (column < a.source.columns) {
      load_token8(a, token, column, v);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = 0.0f;
    }
  };
  float row_amax = 0.0f;
  if (a.out.row_scale != nullptr) {
    uint32_t bits = 0;
    for (int column = 8 * static_cast<int>(threadIdx.x); column < a.source.columns; column += 8 * kThreads) {
      float v[8];
      load(column, v);
      const uint32_t b = amax8(v);
      bits = b > bits ? b : bits;
    }
    row_amax = block_max_bits<kThreads>(bits, shared);
  }
  float row_scale;
  round_row<kThreads, kGroups>(a, row_amax, &row_scale, part, parts, load,
                               [&](int column, uint4 packed, uint2 codes, float scale, bool first) {
                                 for (int i = 0; i < num_targets; ++i)
                                   store8(a, targets[i], column, packed, codes, scale, first);
                                 if (kGroups && !a.out.e4m3 && a.out.round == Round::fp8_group && first)
                                   for (int i = 0; i < num_targets; ++i) store_scale(targets[i], column, scale);
                               });
  if (a.out.row_scale != nullptr && part == 0 && static_cast<int>(threadIdx.x) < num_targets)
    a.out.row_scale[targets[threadIdx.x].row] = row_scale;
}

// Not finalized: the result rows of a token's absent pairs are zero.
template <int kThreads>
__device__ inline void clear_row(const RowsArgs& a, int64_t pair) {
  auto* out = reinterpret_cast<uint16_t*>(static_cast<uint8_t*>(a.gather.zero_absent) + pair * a.gather.result_bytes);
  for (int i = threadIdx.x; i < a.gather.result_bytes / 2; i += kThreads) out[i] = 0;
}

}  // namespace sluice::sm90
