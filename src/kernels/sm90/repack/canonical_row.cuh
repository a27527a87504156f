// SPDX-License-Identifier: Apache-2.0
// Where a row of an M-tile comes from in the canonical weights, and its bytes.
#pragma once

#include "kernels/sm90/repack/repack.h"

namespace sluice::sm90 {

constexpr int kRepackThreads = 256;

// The canonical row that becomes row r of an M-tile; row < 0: padding.
struct CanonicalRow {
  const CanonicalStack* stack;
  int64_t row;  // [experts * rows]
};
__device__ inline CanonicalRow canonical_row(const RepackArgs& a, int64_t expert, int m_tile, int r) {
  const bool gate = a.shape.gated && is_gate(r);
  const int64_t row = a.shape.gated ? static_cast<int64_t>(m_tile) * 64 + gated_column(r)
                                    : static_cast<int64_t>(m_tile) * kMTileRows + r;
  return {gate ? &a.gate : &a.up, row < a.shape.rows ? expert * a.shape.rows + row : -1};
}

// 16 bytes from byte `at` of a row, zero beyond its end, whatever the alignment.
__device__ inline uint4 row_bytes16(const uint8_t* row, int at, int row_bytes) {
  uint4 w{};
#pragma unroll 1
  for (int i = 15; i >= 0; --i) {  // bytes enter below and move up
    w.w = __funnelshift_l(w.z, w.w, 8);
    w.z = __funnelshift_l(w.y, w.z, 8);
    w.y = __funnelshift_l(w.x, w.y, 8);
    w.x = w.x << 8 | (at + i < row_bytes ? row[at + i] : 0u);
  }
  return w;
}

// Writes the float factors of the 128 rows of an M-tile, for formats that have one per row or per expert. The block
// with the first k-blocks of these rows does it.
__device__ inline void write_row_scales(const RepackArgs& a, int64_t expert, int m_tile) {
  for (int r = static_cast<int>(threadIdx.x); r < kMTileRows; r += kRepackThreads) {
    const CanonicalRow s = canonical_row(a, expert, m_tile, r);
    float scale = 1.0f;
    if (s.row >= 0) {
      if (a.format == format::Format::nvfp4)
        scale = s.stack->global[expert] * 256.0f;
      else
        scale = static_cast<const float*>(s.stack->scales)[a.format == format::Format::fp8_tensor ? expert : s.row];
    }
    a.row_scale[(expert * a.shape.m_tiles() + m_tile) * kMTileRows + r] = scale;
  }
}

}  // namespace sluice::sm90
