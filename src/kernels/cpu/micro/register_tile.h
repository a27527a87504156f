// SPDX-License-Identifier: Apache-2.0
// The register tile: up to 8 input rows by up to 2 panels, over a range of k. This is the inner loop of every GEMM
// whose products are floating point, written once over a vector policy V and a source S of weights (vector_policy.h).
//
// Every output is one chain of fused multiply-adds over k ascending. With block scales, each group of k has such a
// chain, and the group sums are added in ascending order. The order does not depend on the number of rows, the tile or
// the chunk, so a token's result does not depend on its batch. Speculative decoding relies on that to reproduce plain
// decoding byte for byte.
#pragma once

#include "kernels/cpu/micro/prefetch.h"
#include "kernels/cpu/micro/vector_policy.h"

namespace sluice::kernels::cpu {
namespace {

inline constexpr int kChunkK = 128;  // k that are decoded to L1 at a time; a multiple of every group

struct RegisterTile {
  // Weights of kPanels panels, packed or decoded. Strides are bytes from one block or group to the same panel's next.
  const uint8_t* codes;
  int64_t block_stride;
  const uint8_t* scales;
  int64_t scale_stride;
  int64_t k;  // of this chunk; a multiple of 32

  // Inputs: [kM] rows at the chunk's first k, and for fp8_block their group scales at the chunk's first group.
  const uint8_t* const* x;
  const float* const* x_group;

  float* out;      // [kM][kNTile]
  bool from_zero;  // the sums start at zero; otherwise they are added to `out`

  PrefetchStream stream;
  SharedPrefetch shared;  // packed source only
  // Decoded source only: this tile prefetches what line_ahead() gives for the packed lines [ahead, ahead_end) to L2.
  const uint8_t *ahead, *ahead_end;
};

inline constexpr int kStepsPerPrefetch = 4;  // steps of a decoded source per prefetched line

// sum += one 64-byte block of weights per panel, times the inputs from byte `at` of the rows on.
template <class V, class S, int kM, int kPanels, int kStep>
SLUICE_INLINE void multiply_block(typename V::F (&sum)[kM][kPanels], const typename S::Raw (&raw)[kPanels],
                                  const uint8_t* const (&x)[kM], int64_t at) {
  if constexpr (kStep < S::kSteps) {
    typename V::W w[kPanels];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) w[p] = S::template weights<kStep>(raw[p]);
#pragma GCC unroll 16
    for (int m = 0; m < kM; ++m) {
      const typename V::X b = V::broadcast_x(x[m] + at + 4 * kStep);
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) sum[m][p] = V::multiply_add(w[p], b, sum[m][p]);
    }
    multiply_block<V, S, kM, kPanels, kStep + 1>(sum, raw, x, at);
  }
}

template <class V, class S, int kM, int kPanels>
static void run_tile(const RegisterTile& t) {
  using F = typename V::F;
  // With block scales every output needs two sums: the group's and the whole. Beyond a few rows the whole one lives in
  // `out` (L1) between groups.
  constexpr bool kInRegisters = S::kGroup == 0 || kM * kPanels <= (decodes_in_every_tile<V>() ? 12 : 8);
  const uint8_t* x[kM];
#pragma GCC unroll 16
  for (int m = 0; m < kM; ++m) x[m] = t.x[m];
  F acc[kM][kPanels];
#pragma GCC unroll 16
  for (int m = 0; m < kM; ++m)
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      if (kInRegisters) acc[m][p] = t.from_zero ? V::zero() : V::load(t.out + m * kNTile + kPanelN * p);
      if (!kInRegisters && t.from_zero) V::store(t.out + m * kNTile + kPanelN * p, V::zero());
    }

  const uint8_t* codes = t.codes;
  const uint8_t* ahead = t.ahead;
  [[maybe_unused]] SharedPrefetch shared = t.shared;  // a copy, because any store might change `t`
  int64_t at = 0;
  const auto block = [&](F(&sum)[kM][kPanels]) __attribute__((always_inline)) {
    typename S::Raw raw[kPanels];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      raw[p] = S::load(codes + 64 * p);
    }
    if constexpr (!S::kDecoded) {
      // Not for 4-bit weights: reading them takes a third of the time of their dots, and the shared prefetch made 8
      // rows take 1.1 times as long.
      if (decodes_in_every_tile<V>() && S::kBits > 4 && shared.num_tiles > 1)
        prefetch_shared_block<V, kPanels>(codes, shared);
      else
        prefetch_block<V, kPanels>(codes, t.stream);
    }
    multiply_block<V, S, kM, kPanels, 0>(sum, raw, x, at);
    codes += t.block_stride;
    at += 4 * S::kSteps;
  };

  // Before several unrolled blocks of decoded weights. Without it, GCC 12 keeps an address per row and block and spills
  // most of them. With it, the blocks are constant distances from one address per row (AVX2, 512 tokens: -3 %).
  const auto fix_addresses = [&]() __attribute__((always_inline)) {
    if constexpr (S::kDecoded) __asm__("" : "+r"(at));
  };
  const auto prefetch_next = [&]() __attribute__((always_inline)) {
    if (S::kDecoded && ahead < t.ahead_end) {
      V::prefetch_far(stream_address(line_ahead<V>(ahead), t.stream));
      ahead += 64;
    }
  };

  const int64_t blocks = t.k / S::kBlockK;
  if constexpr (S::kGroup == 0) {
    constexpr int kUnroll = S::kDecoded ? kStepsPerPrefetch : 2;  // K' and chunks are multiples of 32
    for (int64_t b = 0; b < blocks; b += kUnroll) {
      prefetch_next();
      fix_addresses();
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) block(acc);
    }
  } else {
    constexpr int64_t kGroupBlocks = S::kGroup / S::kBlockK;
    const uint8_t* scales = t.scales;
    for (int64_t b = 0, g = 0; b < blocks; b += kGroupBlocks, ++g) {
      F part[kM][kPanels];
#pragma GCC unroll 16
      for (int m = 0; m < kM; ++m)
#pragma GCC unroll 8
        for (int p = 0; p < kPanels; ++p) part[m][p] = V::zero();
      const int64_t end = S::kGroup < kChunkK || blocks - b > kGroupBlocks ? kGroupBlocks : blocks - b;
      if constexpr (S::kDecoded) {
        for (int64_t i = 0; i < end; i += kStepsPerPrefetch) {
          prefetch_next();
          fix_addresses();
#pragma GCC unroll 4
          for (int u = 0; u < kStepsPerPrefetch; ++u) block(part);
        }
      } else {
        V::prefetch_near(scales + kScalesPrefetchBytes);
        if constexpr (decodes_in_every_tile<V>() && S::kGroup < kChunkK) {
#pragma GCC unroll 4
          for (int64_t i = 0; i < kGroupBlocks; ++i) block(part);
        } else {
#pragma GCC unroll 1
          for (int64_t i = 0; i < end; ++i) block(part);
        }
      }
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) {
        const F ws = S::scale(scales + p * S::kScaleBytes);
#pragma GCC unroll 16
        for (int m = 0; m < kM; ++m) {
          F s = ws;
          if constexpr (S::kGroup == 128) s = V::multiply(ws, V::broadcast_f32(t.x_group[m] + g));
          if constexpr (kInRegisters) {
            acc[m][p] = V::multiply_add_f32(part[m][p], s, acc[m][p]);
          } else {
            float* out = t.out + m * kNTile + kPanelN * p;
            V::store(out, V::multiply_add_f32(part[m][p], s, V::load(out)));
          }
        }
      }
      scales += t.scale_stride;
    }
  }
  if constexpr (kInRegisters) {
#pragma GCC unroll 16
    for (int m = 0; m < kM; ++m)
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) V::store(t.out + m * kNTile + kPanelN * p, acc[m][p]);
  }
}

// The most input rows of a register tile with kPanels panels.
template <class V, int kPanels>
constexpr int tile_m() {
  return kPanels > V::kTilePanels ? V::kTwoPanelM : V::kTileM;
}

// Runs the tile with kM = rows.
template <class V, class S, int kPanels>
static void dispatch_m(const RegisterTile& t, int rows) {
  constexpr int kMax = tile_m<V, kPanels>();
  static_assert(kMax <= 8);
  switch (rows) {
#define SLUICE_CASE(n)                                             \
  case n:                                                          \
    if constexpr (n <= kMax) return run_tile<V, S, n, kPanels>(t); \
    break;
    SLUICE_CASE(1)
    SLUICE_CASE(2)
    SLUICE_CASE(3)
    SLUICE_CASE(4)
    SLUICE_CASE(5)
    SLUICE_CASE(6)
    SLUICE_CASE(7)
    SLUICE_CASE(8)
#undef SLUICE_CASE
    default:
      break;
  }
}

// Input rows [0, m) in tiles of nearly equal size, at most `most`: 9 rows are 5 + 4, not 8 + 1.
template <class V>
struct RowTiles {
  int m, tiles;
  explicit RowTiles(int rows, int most = V::kTileM) : m(rows), tiles((rows + most - 1) / most) {}
  int begin(int i) const { return static_cast<int>(static_cast<int64_t>(m) * i / tiles); }
};

}  // namespace
}  // namespace sluice::kernels::cpu
