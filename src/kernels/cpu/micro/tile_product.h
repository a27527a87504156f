// SPDX-License-Identifier: Apache-2.0
// The product of two small matrices that are in the cache, for attention (docs/kernels/cpu_attention.md). Every output
// is one chain of multiply-adds over k, whatever the tile, so a row's result does not depend on the other rows.
#pragma once

#include "kernels/cpu/micro/gemm_args.h"
#include "kernels/cpu/micro/row_args.h"
#include "kernels/cpu/micro/vector_policy.h"

namespace sluice::kernels::cpu {
namespace {

// Whether a step of the sum over k takes two of them.
template <TileOperands kOperands>
constexpr bool sums_two() {
  return kOperands == TileOperands::bf16_columns || kOperands == TileOperands::bf16_pairs;
}

SLUICE_INLINE const uint8_t* words_at(const void* p, int64_t words) {
  return static_cast<const uint8_t*>(p) + 4 * words;
}

// Of each step of a sum, the bytes to prefetch.
struct NextBytes {
  const uint8_t* at;
  int64_t step;
};
// For the first rows of the columns [n, n + kPanels * kPanelN). Where there is nothing to fetch, b's first line: one
// load more is cheaper than a branch.
template <TileOperands kOperands, int kPanels>
SLUICE_INLINE NextBytes next_bytes(const TileProductArgs& a, bool first_rows, int64_t n) {
  if (!first_rows || a.next == nullptr || a.k == 0) return {static_cast<const uint8_t*>(a.b), 0};
  const int64_t steps = a.n * (sums_two<kOperands>() ? a.k / 2 : a.k),
                done = n * (sums_two<kOperands>() ? a.k / 2 : a.k);
  return {static_cast<const uint8_t*>(a.next) + a.next_bytes * done / steps, a.next_bytes * kPanels * kPanelN / steps};
}

// kM rows by kPanels panels from panel column `n` on. kHalf: of bf16_rows with one panel, which half of the words it
// is.
template <class V, TileOperands kOperands, int kM, int kPanels, int kHalf = 0>
SLUICE_INLINE void multiply_tile(const TileProductArgs& a, int64_t m, int64_t n, NextBytes next) {
  using F = typename V::F;
  constexpr bool kRows = kOperands == TileOperands::bf16_rows, kColumns = kOperands == TileOperands::bf16_columns;
  constexpr bool kPairs = kOperands == TileOperands::bf16_pairs;
  F sum[kM][kPanels];
#pragma GCC unroll 8
  for (int i = 0; i < kM; ++i)
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p)
      sum[i][p] = a.keep == nullptr ? V::zero()
                                    : V::multiply(V::broadcast_f32(a.keep + m + i),
                                                  V::load(a.out + (m + i) * a.out_stride + n + kPanelN * p));
  // Two panels of split columns are the 16 words of 32 columns.
  const uint8_t* b = words_at(a.b, kRows ? n / (2 * kPanelN) * kPanelN : n);
  const uint8_t* x = words_at(a.a, m * a.a_stride);
  for (int64_t k = 0; k < a.k; k += sums_two<kOperands>() ? 2 : 1, b += 4 * a.b_stride, x += kColumns ? 8 : 4) {
    // A step may be worth two lines.
    V::prefetch_far(next.at);
    V::prefetch_far(next.at + next.step / 2);
    next.at += next.step;
    if constexpr (kPairs) {
      typename V::W w[kPanels];
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) w[p] = V::load_weights(b + 64 * p);
#pragma GCC unroll 8
      for (int i = 0; i < kM; ++i) {
        const typename V::X v = V::broadcast_x(x + 4 * i * a.a_stride);
#pragma GCC unroll 4
        for (int p = 0; p < kPanels; ++p) sum[i][p] = V::multiply_add(w[p], v, sum[i][p]);
      }
    } else {
      F w[kColumns ? 2 : 1][kPanels];
      if constexpr (kRows && kPanels == 1) {
        w[0][0] = V::template decode<16, kHalf>(V::template load_codes<16>(b));
      } else if constexpr (kRows) {
#pragma GCC unroll 4
        for (int p = 0; p < kPanels; p += 2) {
          const auto raw = V::template load_codes<16>(b + 32 * p);
          w[0][p] = V::template decode<16, 0>(raw);
          w[0][p + 1] = V::template decode<16, 1>(raw);
        }
      } else if constexpr (kColumns) {
#pragma GCC unroll 4
        for (int p = 0; p < kPanels; ++p) {
          const auto raw = V::template load_codes<16>(b + 64 * p);
          w[0][p] = V::template decode<16, 0>(raw);
          w[1][p] = V::template decode<16, 1>(raw);
        }
      } else {
#pragma GCC unroll 4
        for (int p = 0; p < kPanels; ++p) w[0][p] = V::load(reinterpret_cast<const float*>(b) + kPanelN * p);
      }
#pragma GCC unroll 2
      for (int s = 0; s < (kColumns ? 2 : 1); ++s)
#pragma GCC unroll 8
        for (int i = 0; i < kM; ++i) {
          const F v = V::broadcast_f32(x + 4 * (i * a.a_stride + s));
#pragma GCC unroll 4
          for (int p = 0; p < kPanels; ++p) sum[i][p] = V::multiply_add_f32(w[s][p], v, sum[i][p]);
        }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kM; ++i)
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) V::store(a.out + (m + i) * a.out_stride + n + kPanelN * p, sum[i][p]);
}

// The rows [m, end), a multiple of kM of them. Columns outside, so that their part of b stays in L1 for all rows.
template <class V, TileOperands kOperands, int kM, int kPanels>
static void multiply_rows(const TileProductArgs& a, int64_t m, int64_t end) {
  int64_t n = 0;
  for (; n + kPanelN * kPanels <= a.n; n += kPanelN * kPanels)
    for (int64_t i = m; i < end; i += kM) {
      const NextBytes next = next_bytes<kOperands, kPanels>(a, i == 0, n);
      if constexpr (kPanels == 1 && kOperands == TileOperands::bf16_rows) {
        if (n / kPanelN % 2 == 1) {
          multiply_tile<V, kOperands, kM, kPanels, 1>(a, i, n, next);
          continue;
        }
      }
      multiply_tile<V, kOperands, kM, kPanels>(a, i, n, next);
    }
  // Split outputs have an even number of panels.
  if constexpr (kPanels == 4)
    for (; n + kPanelN * 2 <= a.n; n += kPanelN * 2)
      for (int64_t i = m; i < end; i += kM)
        multiply_tile<V, kOperands, kM, 2>(a, i, n, next_bytes<kOperands, 2>(a, i == 0, n));
  if constexpr (kPanels > 1 && kOperands != TileOperands::bf16_rows)
    for (; n < a.n; n += kPanelN)
      for (int64_t i = m; i < end; i += kM)
        multiply_tile<V, kOperands, kM, 1>(a, i, n, next_bytes<kOperands, 1>(a, i == 0, n));
}

// The last rows, in tiles that are half as high and, where there are registers, twice as wide: a tile of few chains
// would wait for each multiply-add.
template <class V, TileOperands kOperands, int kM, int kPanels>
static void multiply_last_rows(const TileProductArgs& a, int64_t m) {
  const int64_t end = a.m - (a.m - m) % kM;
  if (end > m) multiply_rows<V, kOperands, kM, kPanels>(a, m, end);
  if constexpr (kM > 1) {
    if (end < a.m) multiply_last_rows<V, kOperands, kM / 2, kPanels>(a, end);
  }
}

template <class V, TileOperands kOperands>
static void tile_product(const TileProductArgs& a) {
  const int64_t end = a.m - a.m % V::kTileM;
  if (end > 0) multiply_rows<V, kOperands, V::kTileM, V::kTilePanels>(a, 0, end);
  if (end < a.m) multiply_last_rows<V, kOperands, V::kTileM / 2, V::kTilePanels == 2 ? 4 : V::kTilePanels>(a, end);
}

}  // namespace
}  // namespace sluice::kernels::cpu
