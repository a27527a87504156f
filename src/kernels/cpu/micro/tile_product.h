// SPDX-License-Identifier: Apache-2.0
// The product of two small float32 matrices that are in the cache, for attention. Every output is one chain of fused
// multiply-adds over k ascending, whatever the tile, so a row's result does not depend on the other rows.
#pragma once

#include "kernels/cpu/micro/gemm_args.h"
#include "kernels/cpu/micro/row_args.h"
#include "kernels/cpu/micro/vector_policy.h"

namespace sluice::kernels::cpu {
namespace {

template <class V, int kM, int kPanels>
SLUICE_INLINE void multiply_tile(const TileProductArgs& a, int64_t m, int64_t n) {
  using F = typename V::F;
  F sum[kM][kPanels];
#pragma GCC unroll 8
  for (int i = 0; i < kM; ++i)
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p)
      sum[i][p] = a.keep == nullptr ? V::zero()
                                    : V::multiply(V::broadcast_f32(a.keep + m + i),
                                                  V::load(a.out + (m + i) * a.out_stride + n + kPanelN * p));
  const float* b = a.b + n;
  for (int64_t k = 0; k < a.k; ++k, b += a.b_stride) {
    F w[kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) w[p] = V::load(b + kPanelN * p);
#pragma GCC unroll 8
    for (int i = 0; i < kM; ++i) {
      const F x = V::broadcast_f32(a.a + (m + i) * a.a_stride + k);
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) sum[i][p] = V::multiply_add_f32(w[p], x, sum[i][p]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kM; ++i)
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) V::store(a.out + (m + i) * a.out_stride + n + kPanelN * p, sum[i][p]);
}

// Rows from `m` on, in tiles of kM, then of half as many.
template <class V, int kM, int kPanels>
static void multiply_rows(const TileProductArgs& a, int64_t m, int64_t n) {
  for (; m + kM <= a.m; m += kM) multiply_tile<V, kM, kPanels>(a, m, n);
  if constexpr (kM > 1) {
    if (m < a.m) multiply_rows<V, kM / 2, kPanels>(a, m, n);
  }
}

template <class V>
static void tile_product(const TileProductArgs& a) {
  // Columns outside, so that their part of b stays in L1 for all rows.
  int64_t n = 0;
  if constexpr (V::kTilePanels > 1)
    for (; n + kPanelN * V::kTilePanels <= a.n; n += kPanelN * V::kTilePanels)
      multiply_rows<V, V::kTileM, V::kTilePanels>(a, 0, n);
  for (; n < a.n; n += kPanelN) multiply_rows<V, V::kTileM, 1>(a, 0, n);
}

}  // namespace
}  // namespace sluice::kernels::cpu
