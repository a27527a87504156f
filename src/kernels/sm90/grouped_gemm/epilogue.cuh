// SPDX-License-Identifier: Apache-2.0
// What one warpgroup does with 32 tokens x 64 weight rows after the products: scales, bias, activation, rounding,
// store. Four neighbouring lanes share a token.
#pragma once

#include "activation/activations.h"
#include "kernels/ptx/exp.cuh"
#include "kernels/sm90/grouped_gemm/args.h"
#include "kernels/sm90/quantize/round.cuh"

namespace sluice::sm90 {

__device__ inline void load8(const float* p, float (&v)[8]) {
  const float4 a = *reinterpret_cast<const float4*>(p), b = *reinterpret_cast<const float4*>(p + 4);
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// x / (1 + exp(-s * x)) in six instructions; with expf and a division it was 16 of the 25 that a value takes, and the
// IEEE division's subroutine made the compiler serialise the tensor cores.
__device__ inline float gated_by_sigmoid(float x, float s) {
  return x * ptx::reciprocal_approx(1.0f + ptx::exp_approx(-s * x));
}
// activation/swiglu.h, silu.h and gelu.h with it.
__device__ inline float swiglu(float up, float gate, const activation::Params& p) {
  const float g = gate > p.limit ? p.limit : gate;
  const float u = up > p.limit ? p.limit : up < -p.limit ? -p.limit : up;
  return gated_by_sigmoid(g, p.alpha) * (u + p.beta);
}
__device__ inline float gelu_tanh(float x) {
  return gated_by_sigmoid(x, 2.0f * 0.7978845608028654f * (1.0f + 0.044715f * (x * x)));
}

template <int kCount>
__device__ inline void activate(activation::Activation act, float (&up)[kCount], const float (&gate)[kCount],
                                const activation::Params& params) {
  using namespace activation;
  switch (act) {
    case Activation::swiglu:
#pragma unroll
      for (int i = 0; i < kCount; ++i) up[i] = swiglu(up[i], gate[i], params);
      break;
    case Activation::relu2:
#pragma unroll
      for (int i = 0; i < kCount; ++i) up[i] = Relu2::apply(up[i], 0.0f, params);
      break;
    case Activation::silu:
#pragma unroll
      for (int i = 0; i < kCount; ++i) up[i] = gated_by_sigmoid(up[i], 1.0f);
      break;
    case Activation::geglu:
#pragma unroll
      for (int i = 0; i < kCount; ++i) up[i] = Geglu::apply(up[i], gate[i], params);
      break;
    case Activation::geglu_tanh:
#pragma unroll
      for (int i = 0; i < kCount; ++i) up[i] *= sm90::gelu_tanh(gate[i]);
      break;
    case Activation::gelu:
#pragma unroll
      for (int i = 0; i < kCount; ++i) up[i] = Gelu::apply(up[i], 0.0f, params);
      break;
    case Activation::identity:
      break;
  }
}

// A row of the output, within a tile.
struct OutputRow {
  const GemmArgs& g;
  RowTile tile;
  int n;       // row within the tile
  bool valid;  // n < tile.padded
  __device__ int64_t row() const { return static_cast<int64_t>(tile.row_base) + n; }
};

__device__ inline void add_bias8(const float* bias, int64_t base, int column, int columns, float (&v)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (column + i < columns) v[i] += bias[base + column + i];
}

__device__ inline void store_rows_bf16(const OutputRow& s, int column, uint4 packed) {
  const int k_block = column >> 6;
  if (!s.valid || k_block >= s.g.epilogue.out_k_blocks) return;
  uint8_t* base = static_cast<uint8_t*>(s.g.epilogue.out) +
                  static_cast<int64_t>(s.tile.row_base) * s.g.epilogue.out_k_blocks * 128 +
                  static_cast<int64_t>(k_block) * s.tile.padded * 128;
  *reinterpret_cast<uint4*>(base + swizzled(s.n, (column & 63) >> 3)) = packed;
}
__device__ inline void store_rows_e4m3(const OutputRow& s, int column, uint2 packed) {
  const int k_block = column >> 7;
  if (!s.valid || k_block >= s.g.epilogue.out_k_blocks) return;
  uint8_t* base = static_cast<uint8_t*>(s.g.epilogue.out) +
                  static_cast<int64_t>(s.tile.row_base) * s.g.epilogue.out_k_blocks * 128 +
                  static_cast<int64_t>(k_block) * s.tile.padded * 128;
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

// 16 weight rows of one token, which one thread stores.
struct RowSegment {
  const GemmArgs& g;
  const RowTile& tile;
  int n;  // row of the tile
  int q;  // which 16 of the M-tile's 128 weight rows
  int m_tile;
  int pair;
  float factor;  // of the row's decode, the static one included
  __device__ bool valid() const { return n < tile.padded; }
  __device__ bool real() const { return n < tile.count; }
  // 8 columns when gated, else two neighbouring times 8.
  __device__ int column() const { return g.epilogue.gated ? m_tile * 64 + q * 8 : m_tile * kMTileRows + q * 16; }
};

// v: scaled sums with their bias; up and gate, or two times 8 columns.
__device__ inline void load_sums(const RowSegment& p, const float* sums, float (&v)[2][8]) {
  const GemmArgs& g = p.g;
  const int64_t scale_base = (static_cast<int64_t>(p.tile.expert) * g.m_tiles + p.m_tile) * kMTileRows;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    load8(sums + h * 8, v[h]);
    if (g.weights.row_scale != nullptr) {
      float rs[8];
      load8(g.weights.row_scale + scale_base + p.q * 16 + h * 8, rs);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[h][i] *= rs[i] * p.factor;
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[h][i] *= p.factor;
    }
  }
  if (g.epilogue.activation.bias == nullptr || g.epilogue.store == Store::raw) return;
  const int64_t bias_base = static_cast<int64_t>(p.tile.expert) * g.epilogue.columns;
  add_bias8(g.epilogue.activation.bias, bias_base, p.column(), g.epilogue.columns, v[0]);
  if (g.epilogue.gated)
    add_bias8(g.epilogue.activation.bias_gate, bias_base, p.column(), g.epilogue.columns, v[1]);
  else
    add_bias8(g.epilogue.activation.bias, bias_base, p.column() + 8, g.epilogue.columns, v[1]);
}

__device__ inline void activate_segment(const RowSegment& p, float (&v)[2][8]) {
  const GemmArgs& g = p.g;
  if (g.epilogue.pair_weight != nullptr && p.real()) {
    const float w = g.epilogue.pair_weight[p.pair];
#pragma unroll
    for (int i = 0; i < 8; ++i) v[0][i] *= w, v[1][i] *= w;
  }
  activation::Params params;
  if (g.epilogue.activation.alpha != nullptr) params.alpha = g.epilogue.activation.alpha[p.tile.expert];
  if (g.epilogue.activation.beta != nullptr) params.beta = g.epilogue.activation.beta[p.tile.expert];
  if (g.epilogue.activation.limit != nullptr) params.limit = g.epilogue.activation.limit[p.tile.expert];
  activate(g.epilogue.act, v[0], v[1], params);
  if (!g.epilogue.gated) activate(g.epilogue.act, v[1], v[1], params);
}

__device__ inline uint32_t amax_segment(const RowSegment& p, const float (&v)[2][8]) {
  const uint32_t amax = amax8(v[0]);
  if (p.g.epilogue.gated) return amax;
  const uint32_t other = amax8(v[1]);
  return other > amax ? other : amax;
}

// sums: this thread's 16 values.
__device__ inline void store_segment(const RowSegment& p, const float* sums) {
  const GemmArgs& g = p.g;
  const int first = p.column();
  float v[2][8];
  load_sums(p, sums, v);
  if (g.epilogue.store == Store::raw) {
    if (!p.real()) return;
    float* out = static_cast<float*>(g.epilogue.out) +
                 (static_cast<int64_t>(p.tile.row_base) + p.n) * (g.epilogue.gated ? 2 : 1) * g.epilogue.columns;
    store_linear(out, 0, true, first, g.epilogue.columns, v[0]);
    store_linear(out, g.epilogue.gated ? g.epilogue.columns : 0, true, g.epilogue.gated ? first : first + 8,
                 g.epilogue.columns, v[1]);
    return;
  }
  if (g.epilogue.store == Store::result) {
    if (!p.real()) return;
    const int64_t offset = static_cast<int64_t>(p.pair) * g.epilogue.columns;
    store_linear(g.epilogue.out, offset, g.epilogue.out_f32, first, g.epilogue.columns, v[0]);
    store_linear(g.epilogue.out, offset, g.epilogue.out_f32, first + 8, g.epilogue.columns, v[1]);
    return;
  }
  activate_segment(p, v);
  if (g.epilogue.store == Store::activated) {
    if (!p.real()) return;
    float* out =
        static_cast<float*>(g.epilogue.out) + (static_cast<int64_t>(p.tile.row_base) + p.n) * g.epilogue.columns;
    store_linear(out, 0, true, first, g.epilogue.columns, v[0]);
    if (!g.epilogue.gated) store_linear(out, 0, true, first + 8, g.epilogue.columns, v[1]);
    return;
  }
  const OutputRow s{g, p.tile, p.n, p.valid()};
  const float inverse = g.epilogue.out_scale->inverse;
  if (g.epilogue.store == Store::rows) {
    const int group = group_columns(g.epilogue.round);
    const uint32_t amax = group == 0 ? 0 : amax_lanes(amax_segment(p, v), group / (g.epilogue.gated ? 8 : 16));
    const format::Nvfp4Global global = g.epilogue.out_scale->global;
    store_rows_bf16(s, first, rounded_bf16(g.epilogue.round, v[0], amax, global, inverse, 1.0f));
    if (!g.epilogue.gated)
      store_rows_bf16(s, first + 8, rounded_bf16(g.epilogue.round, v[1], amax, global, inverse, 1.0f));
  } else {
    store_rows_e4m3(s, first, rounded_e4m3(g.epilogue.round, v[0], inverse));
    if (!g.epilogue.gated) store_rows_e4m3(s, first + 8, rounded_e4m3(g.epilogue.round, v[1], inverse));
  }
}

}  // namespace sluice::sm90
