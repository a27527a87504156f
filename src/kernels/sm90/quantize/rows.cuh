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

// Where the bytes of a row lie.
struct alignas(16) Place {
  uint8_t* row;      // the row's 128 bytes in the tile's first k-block
  unsigned k_block;  // bytes from there to those in the next k-block
  unsigned swizzle;  // XORed with a byte's number among the 128: it moves pieces of 16
  __device__ uint8_t* at(int block, int byte) const {
    return row + (static_cast<unsigned>(block) * k_block + (static_cast<unsigned>(byte) ^ swizzle));
  }
};

// Where one row of a tile goes.
struct Target {
  Place place;
  float* scales;  // of its first 128 columns; those of the next ones follow `padded` further on
  int padded;
  int padding;  // rows of the tile that follow its last one, if this is it: their scales are cleared
  int64_t row;
};

__device__ inline Target target_of(const RowsArgs& a, const RowTile& tile, int n) {
  const int64_t base = tile.row_base;
  return {{a.out.data + base * a.out.k_blocks * 128 + n * 128, static_cast<unsigned>(tile.padded) * 128u,
           static_cast<unsigned>(n & 7) << 4},
          a.out.block_scale + base * a.out.scale_runs + n,
          tile.padded,
          n + 1 == tile.count ? tile.padded - tile.count : 0,
          base + n};
}

// Of k-block `k_block`, from `byte` on, in every target.
template <class Piece>
__device__ inline void store_piece(const Target* targets, int num_targets, int k_block, int byte, const Piece& piece) {
  constexpr int kBatch = 4;  // read together: a store could change the next one, for all that the compiler knows
  for (int first = 0; first < num_targets; first += kBatch) {
    Place place[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) place[i] = targets[min(first + i, num_targets - 1)].place;
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (first + i < num_targets) *reinterpret_cast<Piece*>(place[i].at(k_block, byte)) = piece;
  }
}

// Of 128 columns from `column` on.
__device__ inline void store_scale(const Target& t, int column, float scale) {
  float* at = t.scales + static_cast<int64_t>(column >> 7) * t.padded;
  at[0] = scale;
  for (int i = 1; i <= t.padding; ++i) at[i] = 0.0f;
}

__device__ inline void store_codes8(const Target& t, int column, const uint2& codes) {
  *reinterpret_cast<uint2*>(t.place.at(column >> 7, column & 127)) = codes;
}
__device__ inline void store8(const RowsArgs& a, const Target& t, int column, const uint4& bf16, const uint2& codes,
                              float group_scale, bool first_of_group) {
  if (a.out.e4m3) {
    store_codes8(t, column, codes);
    if (a.out.round == Round::fp8_group && first_of_group) store_scale(t, column, group_scale);
  } else {
    *reinterpret_cast<uint4*>(t.place.at(column >> 6, (column & 63) * 2)) = bf16;
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

// The scale of each 128 columns of a warp's, from its lanes to the row's targets. A lane has one of the scales and
// every kTurn-th target. first: the warp's first column.
template <int kScales>
__device__ inline void store_scales(const Target* targets, int num_targets, int first, int columns, float scale) {
  constexpr int kTurn = 32 / kScales;
  const int lane = static_cast<int>(threadIdx.x) & 31, column = first + lane % kScales * 128;
  const float own = __shfl_sync(0xffffffffu, scale, lane % kScales * kTurn);
  if (column < columns)
    for (int i = lane / kScales; i < num_targets; i += kTurn) store_scale(targets[i], column, own);
}

// A token to the rows of its local experts, 8 kPieces columns per thread and step. Codes are stored 16 bytes at a time
// with two pieces. Blocks with the same token and another `part` share its columns.
template <int kThreads, int kPieces = 1>
__device__ inline void write_token(const RowsArgs& a, int64_t token, const Target* targets, int num_targets, int part,
                                   int parts, uint32_t* shared) {
  constexpr int kColumns = 8 * kPieces, kStep = kColumns * kThreads;
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
  const int group = group_columns(a.out.round), columns = a.out.k_blocks * (a.out.e4m3 ? 128 : 64);
  for (int base = part * kStep; base < columns; base += parts * kStep) {
    const int column = base + kColumns * static_cast<int>(threadIdx.x);
    float v[kPieces][8];
    uint32_t amax[kPieces] = {};
#pragma unroll
    for (int p = 0; p < kPieces; ++p) load(column + 8 * p, v[p]);
    if (group != 0) {
#pragma unroll
      for (int p = 0; p < kPieces; ++p) amax[p] = amax8(v[p]);
      if (kPieces == 2 && group >= kColumns) amax[0] = amax[1] = max(amax[0], amax[kPieces - 1]);
#pragma unroll
      for (int p = 0; p < kPieces; ++p) amax[p] = amax_lanes(amax[p], max(group / kColumns, 1));
    }
    Rounded8 r[kPieces];
#pragma unroll
    for (int p = 0; p < kPieces; ++p) r[p] = round8(a, factors, v[p], amax[p]);
    if (column < columns) {
      if (!a.out.e4m3) {
#pragma unroll
        for (int p = 0; p < kPieces; ++p)
          store_piece(targets, num_targets, (column + 8 * p) >> 6, ((column + 8 * p) & 63) * 2, r[p].bf16);
      } else if constexpr (kPieces == 2) {
        store_piece(targets, num_targets, column >> 7, column & 127,
                    uint4{r[0].codes.x, r[0].codes.y, r[1].codes.x, r[1].codes.y});
      } else {
        store_piece(targets, num_targets, column >> 7, column & 127, r[0].codes);
      }
    }
    if (a.out.round != Round::fp8_group) continue;
    if (a.out.token_scale == nullptr)
      store_scales<2 * kPieces>(targets, num_targets, column & ~(32 * kColumns - 1), columns, r[0].scale);
    else if (column < columns && (column & 127) == 0)
      a.out.token_scale[token * token_scale_stride(a.out.scale_runs) + (column >> 7)] = r[0].scale;
  }
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
