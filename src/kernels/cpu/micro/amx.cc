// SPDX-License-Identifier: Apache-2.0
// The level `amx` (Sapphire Rapids and later): 16 input rows by 16 outputs by 32 k in one instruction. It shares the
// packed layout and the decoding with avx512_bf16: 16 decoded registers of bf16 pairs [16 weight rows][2 k] are an AMX
// tile B.
//
// Block scales of 16 and 32 k are multiplied into the weights, which is exact in bf16. For 128x128 blocks the sum stops
// every 128 k and is scaled. The order of a row's sum does not depend on the number of rows.
//
// "Tile" in this file is a tile register; an N-tile is two panels of weights, as everywhere.
#include <immintrin.h>

#include <utility>

#include "kernels/cpu/micro/kernel_table.h"

// GCC 12 warns inside its own intrinsics (bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx512bf16")
#pragma GCC target("amx-tile,amx-bf16,prefer-vector-width=512")

#include "kernels/cpu/micro/amx_decode.h"
#include "kernels/cpu/micro/amx_mxfp4_single_row.h"
#include "kernels/cpu/micro/amx_tile_product.h"
#include "kernels/cpu/micro/amx_tiles.h"
#include "kernels/cpu/micro/avx512_softmax.h"

namespace sluice::kernels::cpu {
namespace {

// k that are decoded at a time for more than 32 rows: 16 KiB for two panels, and as many bytes for 32 input rows.
constexpr int kAmxChunkK = 256;
static_assert(kAmxChunkK / kAmxK * kAmxTileBytes * 2 <= kScratchBytes);

// Tiles 0-3: sums [row tile][panel]; 4, 5: input rows; 6, 7: weights of the two panels.
template <int kRowTiles, int kPanels>
SLUICE_INLINE void clear_sums() {
  _tile_zero(0);
  if constexpr (kPanels > 1) _tile_zero(1);
  if constexpr (kRowTiles > 1) _tile_zero(2);
  if constexpr (kRowTiles > 1 && kPanels > 1) _tile_zero(3);
}

constexpr int kOutStride = kNTile * 4;

template <int kRowTiles, int kPanels>
SLUICE_INLINE void load_sums(const float* out) {
  _tile_loadd(0, out, kOutStride);
  if constexpr (kPanels > 1) _tile_loadd(1, out + 16, kOutStride);
  if constexpr (kRowTiles > 1) _tile_loadd(2, out + 16 * kNTile, kOutStride);
  if constexpr (kRowTiles > 1 && kPanels > 1) _tile_loadd(3, out + 16 * kNTile + 16, kOutStride);
}

template <int kRowTiles, int kPanels>
SLUICE_INLINE void store_sums(float* out) {
  _tile_stored(0, out, kOutStride);
  if constexpr (kPanels > 1) _tile_stored(1, out + 16, kOutStride);
  if constexpr (kRowTiles > 1) _tile_stored(2, out + 16 * kNTile, kOutStride);
  if constexpr (kRowTiles > 1 && kPanels > 1) _tile_stored(3, out + 16 * kNTile + 16, kOutStride);
}

// Weights as tiles of 32 k by one panel. Bytes from a panel to the next one, from a row of a tile to the next one, and
// from a tile to the same panel's next 32 k.
struct AmxWeightTiles {
  const uint8_t* base;
  int64_t panel_stride, row_stride, k_stride;
};

// Adds the products of k inputs to the sums.
template <int kRowTiles, int kPanels, bool kPrefetch>
SLUICE_INLINE void multiply_chunk(const AmxWeightTiles& w, const uint8_t* x, int64_t x_stride, int64_t k) {
  const uint8_t* b = w.base;
  for (int64_t at = 0; at < k; at += kAmxK, b += w.k_stride) {
    if constexpr (kPrefetch)
#pragma GCC unroll 4
      for (int64_t i = 0; i < kAmxTileBytes * kPanels; i += 64) Avx512::prefetch_near(b + kBf16PrefetchBytes + i);
    _tile_loadd(6, b, w.row_stride);
    if constexpr (kPanels > 1) _tile_loadd(7, b + w.panel_stride, w.row_stride);
    _tile_loadd(4, x + 2 * at, x_stride);
    if constexpr (kRowTiles > 1) _tile_loadd(5, x + 16 * x_stride + 2 * at, x_stride);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kPanels > 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (kRowTiles > 1) _tile_dpbf16ps(2, 5, 6);
    if constexpr (kRowTiles > 1 && kPanels > 1) _tile_dpbf16ps(3, 5, 7);
  }
}

// For 128 k of fp8_block: out = before + sums * (weight scale * input scale), where `before` is `out`, or zero if
// `first`. sums and out: [16 * kRowTiles][kNTile].
template <int kRowTiles, int kPanels>
static void add_scaled(const GemmArgs& a, int row, int64_t group, const float* sums, float* out, bool first) {
  for (int i = 0; i < 16 * kRowTiles && row + i < a.x.m; ++i) {
    const __m512 xs = _mm512_set1_ps(a.x.group_scale[packed_row(a.x, row + i) * a.x.group_stride + group]);
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      const __m512 ws = Avx512::broadcast_f32(a.w.scales + (group * kPanels + p) * 4);
      float* to = out + i * kNTile + 16 * p;
      const __m512 before = first ? _mm512_setzero_ps() : _mm512_loadu_ps(to);
      _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_loadu_ps(sums + i * kNTile + 16 * p), _mm512_mul_ps(ws, xs), before));
    }
  }
}

// Up to 16 * kRowTiles input rows from `row` on, over the k of a chunk at k0.
template <class C, int kRowTiles, int kPanels>
static void multiply_rows(const GemmArgs& a, const AmxWeightTiles& w, int row, int64_t k0, int64_t k) {
  const uint8_t* x = a.x.data + row * a.x.stride + 2 * k0;
  float* out = a.out + static_cast<int64_t>(row) * kNTile;
  before_tile_loads();
  if constexpr (C::kGroup == 128) {
    alignas(64) float sums[16 * kRowTiles * kNTile];
    for (int64_t at = 0; at < k; at += 128) {
      AmxWeightTiles part = w;
      part.base += at / kAmxK * w.k_stride;
      clear_sums<kRowTiles, kPanels>();
      multiply_chunk<kRowTiles, kPanels, false>(part, x + 2 * at, a.x.stride, k - at < 128 ? k - at : 128);
      store_sums<kRowTiles, kPanels>(sums);
      add_scaled<kRowTiles, kPanels>(a, row, (k0 + at) / 128, sums, out, k0 + at == 0);
    }
  } else {
    if (k0 == 0)
      clear_sums<kRowTiles, kPanels>();
    else
      load_sums<kRowTiles, kPanels>(out);
    multiply_chunk<kRowTiles, kPanels, C::kBits == 16>(w, x, a.x.stride, k);
    store_sums<kRowTiles, kPanels>(out);
  }
}

// Up to 32 input rows. While the tiles of 32 k multiply, the next 32 k are decoded, also those of the next N-tile, so
// that reading codes does not pause. The loop does two steps per iteration: its end is then predicted up to a K' of
// about 2048, and a misprediction takes 100 cycles here.
template <class C, int kRowTiles, int kPanels>
static void decode_and_multiply(const GemmArgs& a) {
  constexpr int kSlotBytes = kAmxTileBytes * kPanels;
  alignas(64) float sums[16 * kRowTiles * kNTile];
  GemmArgs n_tile = a;
  uint8_t *now = a.scratch, *next = a.scratch + kSlotBytes;
  const auto multiply = [&](int64_t k, uint8_t * from) __attribute__((always_inline)) {
    before_tile_loads();
    multiply_chunk<kRowTiles, kPanels, false>({from, kAmxTileBytes, 64, kSlotBytes}, n_tile.x.data + 2 * k,
                                              n_tile.x.stride, kAmxK);
  };
  const auto end_group = [&](int64_t k) __attribute__((always_inline)) {
    if constexpr (C::kGroup == 128) {
      store_sums<kRowTiles, kPanels>(sums);
      add_scaled<kRowTiles, kPanels>(n_tile, 0, k / 128, sums, n_tile.out, k < 128);
      clear_sums<kRowTiles, kPanels>();
    }
  };
  constexpr int kUnroll = C::kGroup == 128 ? 4 : 2;
  decode_step<C, kPanels>(n_tile, 0, now);
  for (int t = 0; t < a.w.n_tiles; ++t) {
    clear_sums<kRowTiles, kPanels>();
    int64_t k = 0;
    for (; k + kUnroll * kAmxK < a.w.k; k += kUnroll * kAmxK) {
#pragma GCC unroll 4
      for (int i = 0; i < kUnroll; ++i) {
        decode_step<C, kPanels>(n_tile, k + (i + 1) * kAmxK, i % 2 == 0 ? next : now);
        multiply(k + i * kAmxK, i % 2 == 0 ? now : next);
      }
      end_group(k);
    }
    for (; k + kAmxK < a.w.k; k += kAmxK) {
      decode_step<C, kPanels>(n_tile, k + kAmxK, next);
      multiply(k, now);
      std::swap(now, next);
    }
    const GemmArgs after = next_n_tile(n_tile);
    if (t + 1 < a.w.n_tiles) decode_step<C, kPanels>(after, 0, next);
    multiply(k, now);
    std::swap(now, next);
    end_group(k);
    if constexpr (C::kGroup != 128) store_sums<kRowTiles, kPanels>(n_tile.out);
    n_tile = after;
  }
}

// More than 32 input rows: blocks of 32 rows use the decoded weights of a chunk one after the other.
template <class C, int kPanels>
static void run_chunks(const GemmArgs& a) {
  for (int64_t k0 = 0; k0 < a.w.k; k0 += kAmxChunkK) {
    const int64_t k = a.w.k - k0 < kAmxChunkK ? a.w.k - k0 : kAmxChunkK;
    AmxWeightTiles w;
    if constexpr (C::kBits == 16) {  // the packed layout is that of tiles
      w = {a.w.codes + k0 / 2 * 64 * kPanels, 64, 64 * kPanels, kAmxTileBytes * kPanels};
    } else {
      for (int64_t at = 0; at < k; at += kAmxK)
        decode_step<C, kPanels>(a, k0 + at, a.scratch + at / kAmxK * kAmxTileBytes * kPanels);
      w = {a.scratch, kAmxTileBytes, 64, kAmxTileBytes * kPanels};
    }
    const int whole = a.x.m / 32 * 32, remainder = a.x.m - whole;
    if (whole > 0 && (k0 == 0 || remainder > 0)) configure(32);
    for (int row = 0; row < whole; row += 32) multiply_rows<C, 2, kPanels>(a, w, row, k0, k);
    if (remainder > 0 && (k0 == 0 || whole > 0)) configure(remainder);
    if (remainder > 16)
      multiply_rows<C, 2, kPanels>(a, w, whole, k0, k);
    else if (remainder > 0)
      multiply_rows<C, 1, kPanels>(a, w, whole, k0, k);
  }
}

// All N-tiles of a call.
template <class C, int kPanels>
static void run_amx_n_tiles(const GemmArgs& a) {
  if (C::kBits == 4 && C::kScales == Scales::e8m0 && a.x.m == 1) return run_mxfp4_single_row<kPanels>(a);
  if (a.x.m <= 32) {
    if (a.task.first_call) configure(a.x.m);
    if constexpr (C::kBits != 16)
      return a.x.m > 16 ? decode_and_multiply<C, 2, kPanels>(a) : decode_and_multiply<C, 1, kPanels>(a);
  }
  GemmArgs n_tile = a;
  for (int t = 0; t < a.w.n_tiles; ++t) {
    if (a.x.m > 32) {
      run_chunks<C, kPanels>(n_tile);
    } else {
      const AmxWeightTiles w = {n_tile.w.codes, 64, 64 * kPanels, kAmxTileBytes * kPanels};
      a.x.m > 16 ? multiply_rows<C, 2, kPanels>(n_tile, w, 0, 0, a.w.k)
                 : multiply_rows<C, 1, kPanels>(n_tile, w, 0, 0, a.w.k);
    }
    n_tile = next_n_tile(n_tile);
  }
}

// A GemmFn.
template <class C>
static void gemm_amx(const GemmArgs& a) {
  prefetch_row_scales<Avx512>(a.w);
  a.w.panels == 2 ? run_amx_n_tiles<C, 2>(a) : run_amx_n_tiles<C, 1>(a);
  if (a.task.last_call) _tile_release();
  scale_outputs<Avx512>(a);
}

// A DotProbeFn.
static double amx_probe(int64_t steps) {
  alignas(64) static constexpr uint8_t kZeros[kAmxTileBytes] = {};
  configure(32);
  clear_sums<2, 2>();
  _tile_loadd(4, kZeros, 64);
  _tile_loadd(5, kZeros, 64);
  _tile_loadd(6, kZeros, 64);
  _tile_loadd(7, kZeros, 64);
  for (int64_t s = 0; s < steps; ++s) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return static_cast<double>(steps) * 4 * 16 * 16 * kAmxK * 2;
}

}  // namespace

const KernelTable kAmxKernels = {
    .gemm = {gemm_amx<Bf16Coding>, gemm_amx<E4m3Coding>, gemm_amx<E4m3BlockCoding>, gemm_amx<E4m3MxCoding>,
             gemm_amx<E2m1NvCoding>, gemm_amx<E2m1MxCoding>},
    .tile_product = {nullptr, nullptr, nullptr, nullptr, tile_product_amx},
    .softmax_parts = softmax_parts_avx512,
    .dot_probe = amx_probe,
};

}  // namespace sluice::kernels::cpu
