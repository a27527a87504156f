// SPDX-License-Identifier: Apache-2.0
// What the kernels behind tensor.h share: a block of kQuantizeThreads threads has a row of the tensor, reads eight
// columns per thread at once, and writes codes and block scales.
#pragma once

#include "kernels/sm90/elements.cuh"
#include "kernels/sm90/quantize/tensor.h"

namespace sluice::sm90 {

inline constexpr int kQuantizeThreads = 128;

// Eight neighbouring columns of a row, zeros beyond its end: in accesses of 16 bytes if rows consist of whole eights.
template <class X>
__device__ __forceinline__ void load_columns8(const X* row, int column, int columns, float (&v)[8]) {
  if (column < columns && columns % 8 == 0) return load_elements<8>(row + column, v);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = column + i < columns ? to_float(row[column + i]) : 0.0f;
}
__device__ __forceinline__ void load_columns8(const QuantizeArgs& a, int64_t row, int column, float (&v)[8]) {
  if (a.x_f32)
    load_columns8(static_cast<const float*>(a.x) + row * a.cols, column, a.cols, v);
  else
    load_columns8(static_cast<const bf16_t*>(a.x) + row * a.cols, column, a.cols, v);
}

// Bytes [at, at + count) of a row of codes; the tail of an odd row byte by byte.
__device__ inline void store_codes(const QuantizeArgs& a, int64_t row, int column, uint2 codes) {
  const int here = min(8, a.cols - column);
  if (is_four_bit(a.coding)) {
    uint8_t* to = a.codes + row * ceil_div(a.cols, 2) + column / 2;
    if (a.cols % 8 == 0) {
      *reinterpret_cast<uint32_t*>(to) = codes.x;
      return;
    }
    const uint32_t word = here < 8 ? codes.x & ((1u << (4 * here)) - 1u) : codes.x;
    for (int i = 0; i < ceil_div(here, 2); ++i) to[i] = static_cast<uint8_t>(word >> (8 * i));
    return;
  }
  uint8_t* to = a.codes + row * a.cols + column;
  if (a.cols % 8 == 0) {
    *reinterpret_cast<uint2*>(to) = codes;
    return;
  }
  for (int i = 0; i < here; ++i) to[i] = static_cast<uint8_t>((i < 4 ? codes.x : codes.y) >> (8 * (i % 4)));
}

// `byte`, or for fp8_group `value`.
__device__ inline void store_scale(const QuantizeArgs& a, int64_t row, int64_t g, int64_t groups, uint8_t byte,
                                   float value) {
  const int64_t at = format::scale_offset(a.layout, row, g, a.rows, groups);
  if (a.coding == Coding::fp8_group)
    static_cast<float*>(a.scales)[at] = value;
  else
    static_cast<uint8_t*>(a.scales)[at] = byte;
}

// Groups with the layout's padding.
__device__ inline int64_t padded_groups(const QuantizeArgs& a, int64_t groups) {
  const bool swizzled_scales =
      a.layout == format::ScaleLayout::swizzled_128x4 || a.layout == format::ScaleLayout::swizzled_8x4;
  return swizzled_scales ? round_up<int64_t>(groups, 4) : groups;
}
// Zeros in the layout's padding of a row; a padding row is nothing else.
__device__ inline void clear_padding(const QuantizeArgs& a, int64_t row, int64_t groups, int64_t padded) {
  const int64_t first_padding = row < a.rows ? groups : 0;
  for (int64_t g = first_padding + threadIdx.x; g < padded; g += kQuantizeThreads)
    store_scale(a, row, g, groups, 0, 0.0f);
}

// Rows with the padding rows of the scale layout, and blocks for them: each takes a row, and then the next that no
// block has.
struct QuantizeGrid {
  int64_t padded_rows;
  int blocks;
};
inline QuantizeGrid quantize_grid(const QuantizeArgs& a) {
  const int64_t rows = a.scales == nullptr                               ? a.rows
                       : a.layout == format::ScaleLayout::swizzled_128x4 ? round_up<int64_t>(a.rows, 128)
                       : a.layout == format::ScaleLayout::swizzled_8x4   ? round_up<int64_t>(a.rows, 8)
                                                                         : a.rows;
  return {rows, static_cast<int>(rows < 65536 ? rows : 65536)};
}

}  // namespace sluice::sm90
