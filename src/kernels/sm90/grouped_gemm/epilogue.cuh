// SPDX-License-Identifier: Apache-2.0
// What happens to a chunk of 32 tokens x 128 weight rows after the products: scales, bias, activation, rounding, store.
// 256 threads; eight neighbouring lanes share a token, so a group's amax needs three shuffles at most.
#pragma once

#include "activation/activations.h"
#include "kernels/sm90/grouped_gemm/args.h"
#include "kernels/sm90/quantize/round.cuh"

namespace sluice::sm90 {

__device__ inline void load8(const float* p, float (&v)[8]) {
  const float4 a = *reinterpret_cast<const float4*>(p), b = *reinterpret_cast<const float4*>(p + 4);
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// activation/swiglu.h with a division of 2 ulp: the IEEE division was a third of this epilogue's instructions.
__device__ inline float swiglu(float up, float gate, const activation::Params& p) {
  const float g = gate > p.limit ? p.limit : gate;
  const float u = up > p.limit ? p.limit : up < -p.limit ? -p.limit : up;
  return __fdividef(g, 1.0f + expf(-p.alpha * g)) * (u + p.beta);
}

__device__ inline void activate8(activation::Activation act, float (&up)[8], const float (&gate)[8],
                                 const activation::Params& params) {
  using namespace activation;
  switch (act) {
    case Activation::swiglu:
#pragma unroll
      for (int i = 0; i < 8; ++i) up[i] = swiglu(up[i], gate[i], params);
      break;
    case Activation::relu2:
#pragma unroll
      for (int i = 0; i < 8; ++i) up[i] = Relu2::apply(up[i], 0.0f, params);
      break;
    case Activation::silu:
#pragma unroll
      for (int i = 0; i < 8; ++i) up[i] = Silu::apply(up[i], 0.0f, params);
      break;
    case Activation::geglu:
#pragma unroll
      for (int i = 0; i < 8; ++i) up[i] = Geglu::apply(up[i], gate[i], params);
      break;
    case Activation::geglu_tanh:
#pragma unroll
      for (int i = 0; i < 8; ++i) up[i] = GegluTanh::apply(up[i], gate[i], params);
      break;
    case Activation::gelu:
#pragma unroll
      for (int i = 0; i < 8; ++i) up[i] = Gelu::apply(up[i], 0.0f, params);
      break;
    case Activation::identity:
      break;
  }
}

// One thread's eight columns of one token, from column `column` of the matrix; `up` holds results.
struct Spot {
  const Gemm& g;
  Tile tile;
  int n;       // row within the tile
  bool valid;  // n < tile.padded
  __device__ int64_t row() const { return static_cast<int64_t>(tile.row_base) + n; }
};

__device__ inline void add_bias8(const float* bias, int64_t base, int column, int columns, float (&v)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (column + i < columns) v[i] += bias[base + column + i];
}

__device__ inline void store_rows_bf16(const Spot& s, int column, uint4 packed) {
  const int slab = column >> 6;
  if (!s.valid || slab >= s.g.out_slabs) return;
  uint8_t* base = static_cast<uint8_t*>(s.g.out) + static_cast<int64_t>(s.tile.row_base) * s.g.out_slabs * 128 +
                  static_cast<int64_t>(slab) * s.tile.padded * 128;
  *reinterpret_cast<uint4*>(base + swizzled(s.n, (column & 63) >> 3)) = packed;
}
__device__ inline void store_rows_e4m3(const Spot& s, int column, uint2 packed) {
  const int slab = column >> 7;
  if (!s.valid || slab >= s.g.out_slabs) return;
  uint8_t* base = static_cast<uint8_t*>(s.g.out) + static_cast<int64_t>(s.tile.row_base) * s.g.out_slabs * 128 +
                  static_cast<int64_t>(slab) * s.tile.padded * 128;
  *reinterpret_cast<uint2*>(base + swizzled(s.n, (column & 127) >> 4) + (column & 8)) = packed;
}

// float32 or bf16 row of `columns` values; the tail of a row that is not a multiple of 8 goes one by one.
__device__ inline void store_linear(void* out, int64_t offset, bool f32, int column, int columns, const float (&v)[8]) {
  if (column + 8 <= columns && columns % 8 == 0) {
    if (f32) {
      float4* p = reinterpret_cast<float4*>(static_cast<float*>(out) + offset + column);
      p[0] = {v[0], v[1], v[2], v[3]};
      p[1] = {v[4], v[5], v[6], v[7]};
    } else {
      *reinterpret_cast<uint4*>(static_cast<uint16_t*>(out) + offset + column) = {
          ptx::cvt_bf16x2_f32(v[1], v[0]), ptx::cvt_bf16x2_f32(v[3], v[2]), ptx::cvt_bf16x2_f32(v[5], v[4]),
          ptx::cvt_bf16x2_f32(v[7], v[6])};
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (column + i >= columns) break;
    if (f32)
      static_cast<float*>(out)[offset + column + i] = v[i];
    else
      static_cast<uint16_t*>(out)[offset + column + i] = static_cast<uint16_t>(ptx::cvt_bf16x2_f32(0.0f, v[i]));
  }
}

// What the epilogue needs of a tile's rows, in shared memory before the products are done.
struct RowInfo {
  int pair;
  float factor;  // of the row's decode, the static one included
};

// staging: [32 tokens][pitch] float32 sums of weight rows [128 * row_tile, + 128) for tokens chunk*32 ....
__device__ inline void finish_chunk(const Gemm& g, const Tile& tile, const RowInfo* rows, const float* staging,
                                    int pitch, int row_tile, int chunk, int thread) {
  const int token = thread >> 3, q = thread & 7;
  const Spot s{g, tile, chunk * 32 + token, chunk * 32 + token < tile.padded};
  const bool real = s.n < tile.count;
  const float* sums = staging + token * pitch;
  const RowInfo info = rows[real ? s.n : 0];
  const float factor = info.factor;
  const int64_t scale_base = (static_cast<int64_t>(tile.expert) * g.row_tiles + row_tile) * kTileRows;
  const int64_t bias_base = static_cast<int64_t>(tile.expert) * g.columns;

  // 8 columns a thread when gated, else two neighbouring times 8.
  float v[2][8];
  const int halves = g.gated ? 1 : 2;
  const int first = g.gated ? row_tile * 64 + q * 8 : row_tile * kTileRows + q * 16;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    load8(sums + q * 16 + h * 8, v[h]);
    if (g.row_scale != nullptr) {
      float rs[8];
      load8(g.row_scale + scale_base + q * 16 + h * 8, rs);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[h][i] *= rs[i] * factor;
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[h][i] *= factor;
    }
  }
  if (g.store == Store::raw) {
    if (!real) return;
    float* out = static_cast<float*>(g.out) + s.row() * (g.gated ? 2 : 1) * g.columns;
    store_linear(out, 0, true, first, g.columns, v[0]);
    store_linear(out, g.gated ? g.columns : 0, true, g.gated ? first : first + 8, g.columns, v[1]);
    return;
  }

  if (g.bias != nullptr) {
    add_bias8(g.bias, bias_base, first, g.columns, v[0]);
    if (g.gated)
      add_bias8(g.bias_gate, bias_base, first, g.columns, v[1]);
    else
      add_bias8(g.bias, bias_base, first + 8, g.columns, v[1]);
  }
  if (g.store == Store::result) {
    if (!real) return;
    const int64_t offset = static_cast<int64_t>(info.pair) * g.columns;
    store_linear(g.out, offset, g.out_f32, first, g.columns, v[0]);
    store_linear(g.out, offset, g.out_f32, first + 8, g.columns, v[1]);
    return;
  }

  if (g.pair_weight != nullptr && real) {
    const float w = g.pair_weight[info.pair];
#pragma unroll
    for (int i = 0; i < 8; ++i) v[0][i] *= w, v[1][i] *= w;
  }
  activation::Params params;
  if (g.alpha != nullptr) params.alpha = g.alpha[tile.expert];
  if (g.beta != nullptr) params.beta = g.beta[tile.expert];
  if (g.limit != nullptr) params.limit = g.limit[tile.expert];
  activate8(g.act, v[0], v[1], params);
  if (!g.gated) activate8(g.act, v[1], v[1], params);

  if (g.store == Store::activated) {
    if (!real) return;
    float* out = static_cast<float*>(g.out) + s.row() * g.columns;
    store_linear(out, 0, true, first, g.columns, v[0]);
    if (!g.gated) store_linear(out, 0, true, first + 8, g.columns, v[1]);
    return;
  }

  const int group = group_columns(g.round);
  uint32_t amax = 0;
  if (group != 0) {
    amax = amax8(v[0]);
    if (!g.gated) {
      const uint32_t other = amax8(v[1]);
      amax = other > amax ? other : amax;
    }
    amax = amax_lanes(amax, group / (8 * halves));
  }
  if (g.store == Store::rows) {
    const format::Nvfp4Global global = g.out_scale->global;
    const float inverse = g.out_scale->inverse;
    store_rows_bf16(s, first, rounded_bf16(g.round, v[0], amax, global, inverse, 1.0f));
    if (!g.gated) store_rows_bf16(s, first + 8, rounded_bf16(g.round, v[1], amax, global, inverse, 1.0f));
  } else {
    float divisor = g.out_scale->inverse;
    if (g.store == Store::rows_group) {
      divisor = format::fp8_scale(format::amax_value(amax));
      if (s.valid && (first & 127) == 0 && (first >> 7) < g.out_slabs)
        g.out_block_scale[static_cast<int64_t>(tile.row_base) * g.out_slabs +
                          static_cast<int64_t>(first >> 7) * tile.padded + s.n] = divisor;
    }
    store_rows_e4m3(s, first, rounded_e4m3(g.round, v[0], divisor));
    if (!g.gated) store_rows_e4m3(s, first + 8, rounded_e4m3(g.round, v[1], divisor));
  }
}

// The weighted sum of every token over its experts, k ascending, for columns [first, first + count): combine.h's
// arithmetic. 256 threads. Results come from other blocks: read past the L1 cache.
__device__ inline void combine_columns(const GroupedGemmArgs& args, const Gemm& g, int first, int count, int thread) {
  const int tokens = args.num_tokens != nullptr ? min(*args.num_tokens, args.tokens) : args.tokens;
  const int pieces = count / 8;
  for (int i = thread; i < tokens * pieces; i += 256) {
    const int token = i / pieces, column = first + i % pieces * 8;
    if (column >= g.columns) continue;
    float acc[8] = {};
#pragma unroll 4
    for (int k = 0; k < args.top_k; ++k) {
      const int64_t pair = static_cast<int64_t>(token) * args.top_k + k;
      if (args.pair_row[pair] < 0) continue;
      const float w = args.weights != nullptr ? args.weights[pair] : 1.0f;
      const int64_t at = pair * g.columns + column;
      if (g.out_f32) {
#pragma unroll
        for (int j = 0; j < 8; ++j) acc[j] = fmaf(w, __ldcg(static_cast<const float*>(g.out) + at + j), acc[j]);
      } else {
        const uint4 v = __ldcg(reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(g.out) + at));
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          acc[2 * j] = fmaf(w, __uint_as_float(words[j] << 16), acc[2 * j]);
          acc[2 * j + 1] = fmaf(w, __uint_as_float(words[j] & 0xffff0000u), acc[2 * j + 1]);
        }
      }
    }
    store_linear(args.output, static_cast<int64_t>(token) * g.columns, g.out_f32, column, g.columns, acc);
  }
}

}  // namespace sluice::sm90
