// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/quantize/tensor.h"

#include "format/quantize.h"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/quantize/rows.cuh"
#include "kernels/sm90/quantize/tensor.cuh"

namespace sluice::sm90 {

namespace {

// Eight values of one group to codes. `factor` multiplies or, for scales in float32, divides.
__device__ inline uint2 e4m3_codes8(const float (&v)[8], float factor, bool divide) {
  float r[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) r[i] = divide ? v[i] / factor : v[i] * factor;
  return {e4m3_codes4(r), e4m3_codes4(r + 4)};
}
__device__ inline uint32_t e2m1_codes8(const float (&v)[8], float inverse) {
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) word |= static_cast<uint32_t>(format::float_to_e2m1(v[i] * inverse)) << (4 * i);
  return word;
}

struct Coded {
  uint2 codes;  // four-bit: only x
  float scale;  // fp8_group
  uint8_t byte;
};

// What all groups of a row are coded with.
struct RowFactors {
  format::Nvfp4Global global;  // nvfp4, nvfp4_token
  float row_scale = 1.0f;      // fp8_token, nvfp4_token
  float inverse = 1.0f;        // fp8_static
};
// load(column, v): eight columns of the row. By whole blocks. Stores the scale of a row that has one.
template <class Load>
__device__ __forceinline__ RowFactors row_factors(const QuantizeArgs& a, int64_t row, Load&& load, uint32_t* shared) {
  RowFactors f;
  if (a.coding == Coding::fp8_static) f.inverse = format::fp8_static_inverse(*a.input_scale);
  if (a.coding == Coding::nvfp4)
    f.global = a.encodes ? format::nvfp4_encode(*a.input_scale) : format::nvfp4_global(*a.input_scale);
  if (a.coding != Coding::fp8_token && a.coding != Coding::nvfp4_token) return f;
  uint32_t bits = 0;
  for (int column = 8 * static_cast<int>(threadIdx.x); column < a.cols; column += 8 * kQuantizeThreads) {
    float v[8];
    load(column, v);
    bits = max(bits, amax8(v));
  }
  const float amax = block_max_bits<kQuantizeThreads>(bits, shared);
  if (a.coding == Coding::fp8_token) {
    f.row_scale = format::fp8_scale(amax);
  } else {
    f.global = format::nvfp4_row_global(amax);
    f.row_scale = f.global.decode;
  }
  if (threadIdx.x == 0) a.row_scales[row] = f.row_scale;
  return f;
}

__device__ inline Coded code8(Coding c, const float (&v)[8], uint32_t amax_bits, const RowFactors& f) {
  const float amax = format::amax_value(amax_bits);
  switch (c) {
    case Coding::fp8_static:
      return {e4m3_codes8(v, f.inverse, false), 1.0f, 0};
    case Coding::fp8_token:
      return {e4m3_codes8(v, f.row_scale, true), 1.0f, 0};
    case Coding::fp8_group: {
      const float scale = format::fp8_scale(amax);
      return {e4m3_codes8(v, scale, true), scale, 0};
    }
    case Coding::mxfp8: {
      const uint8_t byte = format::mxfp8_scale(amax);
      return {e4m3_codes8(v, format::e8m0_inverse(byte), false), 1.0f, byte};
    }
    case Coding::mxfp4: {
      const uint8_t byte = format::mxfp4_scale(amax);
      return {{e2m1_codes8(v, format::e8m0_inverse(byte)), 0}, 1.0f, byte};
    }
    default: {
      const uint8_t byte = format::nvfp4_scale(amax, f.global);
      return {{e2m1_codes8(v, format::nvfp4_inverse(byte, f.global)), 0}, 1.0f, byte};
    }
  }
}

// One block per row, including the padding rows of the scale layout.
__global__ void __launch_bounds__(kQuantizeThreads)
    quantize_kernel(const __grid_constant__ QuantizeArgs a, int64_t padded_rows) {
  __shared__ uint32_t shared[kQuantizeThreads / 32];
  ptx::griddepcontrol_wait();
  const int group = coding_group(a.coding);
  const int64_t groups = group > 0 ? ceil_div(a.cols, group) : 0;
  const int64_t padded = padded_groups(a, groups);
  for (int64_t row = blockIdx.x; row < padded_rows; row += gridDim.x) {
    clear_padding(a, row, groups, padded);
    if (row >= a.rows) continue;

    const auto load = [&](int column, float(&v)[8]) { load_columns8(a, row, column, v); };
    const RowFactors factors = row_factors(a, row, load, shared);
    for (int base = 0; base < a.cols; base += 8 * kQuantizeThreads) {
      const int column = base + 8 * static_cast<int>(threadIdx.x);
      float v[8];
      load(column, v);
      const uint32_t amax = group > 0 ? amax_lanes(amax8(v), group / 8) : 0;
      if (column >= a.cols) continue;
      const Coded coded = code8(a.coding, v, amax, factors);
      store_codes(a, row, column, coded.codes);
      if (group > 0 && column % group == 0) store_scale(a, row, column / group, groups, coded.byte, coded.scale);
    }
  }
  ptx::griddepcontrol_launch_dependents();
}

}  // namespace

void launch_quantize(const QuantizeArgs& args, Stream stream, bool pdl) {
  if (args.rows == 0 || args.cols == 0) return;
  const QuantizeGrid grid = quantize_grid(args);
  launch(quantize_kernel, grid.blocks, kQuantizeThreads, 0, stream, pdl, args, grid.padded_rows);
}

}  // namespace sluice::sm90
