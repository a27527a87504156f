// SPDX-License-Identifier: Apache-2.0
// Rounding one row into the rows layout, by a whole block.
#pragma once

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

__device__ inline void store_codes8(const Target& t, int column, const uint2& codes) {
  uint8_t* k_block = t.tile + static_cast<int64_t>(column >> 7) * t.padded * 128;
  *reinterpret_cast<uint2*>(k_block + swizzled(t.n, (column & 127) >> 4) + (column & 8)) = codes;
}
__device__ inline void store8(const RowsArgs& a, const Target& t, int column, const uint4& bf16, const uint2& codes,
                              float group_scale, bool first_of_group) {
  if (a.out.e4m3) {
    store_codes8(t, column, codes);
    if (a.out.round == Round::fp8_group && first_of_group) store_scale(t, column, group_scale);
  } else {
    uint8_t* k_block = t.tile + static_cast<int64_t>(column >> 6) * t.padded * 128;
    *reinterpret_cast<uint4*>(k_block + swizzled(t.n, (column & 63) >> 3)) = bf16;
  }
}

// What all pieces of one row are rounded with.
struct RowRounding {
  format::Nvfp4Global global;
  float divisor;    // fp8_static: the factor
  float row_scale;  // the decode factor of the row
};
__device__ inline RowRounding row_rounding(const RowsArgs& a, float row_amax) {
  RowRounding f{a.out.static_scale->global, a.out.static_scale->inverse, 1.0f};
  if (a.out.round == Round::fp8_token) f.row_scale = f.divisor = group_scale(__float_as_uint(row_amax));
  if (a.out.round == Round::nvfp4_token) {
    f.global = format::nvfp4_row_global(row_amax);
    f.row_scale = f.global.decode;
  }
  return f;
}

// Eight columns as they are stored: bf16, or codes if RowDestination::e4m3.
struct Rounded8 {
  uint4 bf16;
  uint2 codes;
  float scale;  // of 128 columns (fp8_group)
};
// amax: of v's group, where the format has groups.
__device__ inline Rounded8 round8(const RowsArgs& a, const RowRounding& f, const float (&v)[8], uint32_t amax) {
  Rounded8 r{{}, {}, 1.0f};
  if (a.out.e4m3) {
    float d = f.divisor;
    if (a.out.round == Round::fp8_group) d = r.scale = group_scale(amax);
    r.codes = rounded_e4m3(a.out.round, v, d);
  } else {
    const bool grouped = a.out.round == Round::fp8_group;
    if (grouped) r.scale = group_scale(amax);
    r.bf16 = rounded_bf16(a.out.round, v, amax, f.global, f.divisor, grouped ? r.scale : f.row_scale);
  }
  return r;
}

// Rounds one row, 8 columns per thread and step, and hands every piece to store(column, piece, first of a group).
// Blocks with the same row and another `part` share its columns.
template <int kThreads, class Load, class Store8>
__device__ inline void round_row(const RowsArgs& a, const RowRounding& factors, int part, int parts, Load&& load,
                                 Store8&& store) {
  const int group = group_columns(a.out.round);
  const int padded_columns = a.out.k_blocks * (a.out.e4m3 ? 128 : 64);
  for (int base = part * 8 * kThreads; base < padded_columns; base += parts * 8 * kThreads) {
    const int column = base + 8 * static_cast<int>(threadIdx.x);
    float v[8];
    load(column, v);
    uint32_t amax = 0;
    if (group != 0) amax = amax_lanes(amax8(v), group / 8);
    if (column >= padded_columns) continue;
    store(column, round8(a, factors, v, amax), (column & 127) == 0);
  }
}

// A token to the rows of its local experts.
template <int kThreads>
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
  const RowRounding factors = row_rounding(a, row_amax);
  round_row<kThreads>(a, factors, part, parts, load, [&](int column, const Rounded8& piece, bool first) {
    for (int i = 0; i < num_targets; ++i) store8(a, targets[i], column, piece.bf16, piece.codes, piece.scale, first);
    if (!a.out.e4m3 && a.out.round == Round::fp8_group && first)
      for (int i = 0; i < num_targets; ++i) store_scale(targets[i], column, piece.scale);
  });
  if (a.out.row_scale != nullptr && part == 0 && static_cast<int>(threadIdx.x) < num_targets)
    a.out.row_scale[targets[threadIdx.x].row] = factors.row_scale;
}

// Not finalized: the result rows of a token's absent pairs are zero.
template <int kThreads>
__device__ inline void clear_row(const RowsArgs& a, int64_t pair) {
  auto* out = reinterpret_cast<uint16_t*>(static_cast<uint8_t*>(a.gather.zero_absent) + pair * a.gather.result_bytes);
  for (int i = threadIdx.x; i < a.gather.result_bytes / 2; i += kThreads) out[i] = 0;
}

}  // namespace sluice::sm90
