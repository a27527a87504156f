// SPDX-License-Identifier: Apache-2.0
// TileOperands::bf16_parts by tile instructions. An output's sums depend neither on the number of rows nor on the other
// rows.
#pragma once

#include "kernels/cpu/micro/amx_tiles.h"
#include "kernels/cpu/micro/avx512_vector.h"
#include "kernels/cpu/micro/row_args.h"

namespace sluice::kernels::cpu {
namespace {

constexpr int64_t kProductK = 32;        // k of one tile instruction
constexpr int64_t kProductRows = 16;     // rows of one tile
constexpr int64_t kProductColumns = 32;  // columns of two tiles

// Lines to prefetch, as many with every step. A step is kProductK by kProductColumns of one block of rows.
struct NextLines {
  const uint8_t *at = nullptr, *end = nullptr;
  int64_t per_step = 0;
  explicit NextLines(const TileProductArgs& a) {
    const int64_t steps = (a.m + kProductRows - 1) / kProductRows * (a.n / kProductColumns) * (a.k / kProductK);
    if (a.next == nullptr || steps == 0) return;
    at = static_cast<const uint8_t*>(a.next), end = at + a.next_bytes;
    per_step = ((a.next_bytes + 63) / 64 + steps - 1) / steps;
  }
  inline __attribute__((always_inline)) void step() {
    for (int64_t i = 0; i < per_step && at < end; ++i, at += 64) Avx512::prefetch_far(at);
  }
};

// kProductK of the 32 columns at b, into the tiles 0 and 1 or 2 and 3. b's tiles serve all parts of x.
template <int kPair>
SLUICE_INLINE void multiply_pair(const TileProductArgs& a, const uint8_t* x, const uint8_t* b) {
  _tile_loadd(6, b, 4 * a.b_stride);
  _tile_loadd(7, b + 64, 4 * a.b_stride);
  for (int part = 0; part < a.parts; ++part, x += 4 * a.part_stride) {
    _tile_loadd(4, x, 4 * a.a_stride);
    if constexpr (kPair == 0) {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
    } else {
      _tile_dpbf16ps(2, 4, 6);
      _tile_dpbf16ps(3, 4, 7);
    }
  }
}

// Up to 16 rows from m on by kPairs * 32 columns from n on.
template <int kPairs>
SLUICE_INLINE void multiply_block(const TileProductArgs& a, int64_t m, int64_t n, NextLines& next) {
  float* out = a.out + m * a.out_stride + n;
  const int64_t out_bytes = 4 * a.out_stride;
  if (a.keep == nullptr) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kPairs > 1) {
      _tile_zero(2);
      _tile_zero(3);
    }
  } else {
    _tile_loadd(0, out, out_bytes);
    _tile_loadd(1, out + 16, out_bytes);
    if constexpr (kPairs > 1) {
      _tile_loadd(2, out + 32, out_bytes);
      _tile_loadd(3, out + 48, out_bytes);
    }
  }
  const uint8_t* x = static_cast<const uint8_t*>(a.a) + 4 * m * a.a_stride;
  const uint8_t* b = static_cast<const uint8_t*>(a.b) + 4 * n;
  for (int64_t k = 0; k < a.k; k += kProductK, x += 2 * kProductK, b += 2 * kProductK * a.b_stride) {
    next.step();
    multiply_pair<0>(a, x, b);
    if constexpr (kPairs > 1) {
      next.step();
      multiply_pair<1>(a, x, b + 4 * kProductColumns);
    }
  }
  _tile_stored(0, out, out_bytes);
  _tile_stored(1, out + 16, out_bytes);
  if constexpr (kPairs > 1) {
    _tile_stored(2, out + 32, out_bytes);
    _tile_stored(3, out + 48, out_bytes);
  }
}

// Multiplies the outputs of up to 16 rows from m on by `keep`. Most rows of a long sequence keep what they have: 1
// changes no bit.
SLUICE_INLINE void shrink_rows(const TileProductArgs& a, int64_t m) {
  if (a.keep == nullptr || m >= a.m) return;
  const auto rows = static_cast<__mmask16>(a.m - m < kProductRows ? (1u << (a.m - m)) - 1 : 0xffff);
  const __m512 keep = _mm512_maskz_loadu_ps(rows, a.keep + m);
  // One loop over those that shrink: a branch for each row could not be predicted.
  for (uint32_t left = _mm512_mask_cmp_ps_mask(rows, keep, _mm512_set1_ps(1.0f), _CMP_NEQ_UQ); left != 0;
       left &= left - 1) {
    const int64_t i = m + __builtin_ctz(left);
    const __m512 factor = _mm512_set1_ps(a.keep[i]);
    float* out = a.out + i * a.out_stride;
    for (int64_t j = 0; j < a.n; j += 16) _mm512_storeu_ps(out + j, _mm512_mul_ps(factor, _mm512_loadu_ps(out + j)));
  }
}

// Four tiles of sums where there are as many columns: the next instruction on a tile waits for the one before.
static void tile_product_amx(const TileProductArgs& a) {
  NextLines next(a);
  shrink_rows(a, 0);
  for (int64_t m = 0; m < a.m; m += kProductRows) {
    const int rows = static_cast<int>(a.m - m < kProductRows ? a.m - m : kProductRows);
    if (*a.tile_rows != rows) configure(*a.tile_rows = rows);
    shrink_rows(a, m + kProductRows);  // ahead: a tile load waits for stores to the same lines
    before_tile_loads();
    int64_t n = 0;
    for (; n + 2 * kProductColumns <= a.n; n += 2 * kProductColumns) multiply_block<2>(a, m, n, next);
    if (n < a.n) multiply_block<1>(a, m, n, next);
  }
  if (a.m == 0) {
    _tile_release();
    *a.tile_rows = 0;
  }
}

}  // namespace
}  // namespace sluice::kernels::cpu
