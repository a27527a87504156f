// SPDX-License-Identifier: Apache-2.0
// AMX (Sapphire Rapids and later): 16 rows by 16 columns by 32 k in one instruction. Shares the packed layout and the
// decoding with avx512_bf16: 16 decoded registers of bf16 pairs [16 weight rows][2 k] ARE a B tile.
//
// Block scales of 16 and 32 k are multiplied into the weights (exact in bf16); 128x128 blocks stop the sum every 128 k.
// Every row's sum has the same order whatever the number of rows.
#include <immintrin.h>

#include <utility>

#include "kernels/cpu/micro/micro.h"

// GCC 12 warns inside its own intrinsics (bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx512bf16")
#pragma GCC target("amx-tile,amx-bf16,prefer-vector-width=512")

#include "kernels/cpu/micro/amx_decode.h"
#include "kernels/cpu/micro/amx_mxfp4_row.h"

namespace sluice::kernels::cpu {
namespace {

// k decoded at a time for more than 32 rows: 16 KiB for two panels, as many bytes as 32 input rows.
constexpr int kAmxChunk = 256;
static_assert(kAmxChunk / kTileK * kTileBytes * 2 <= kScratchBytes);

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Row tiles of `rows` <= 32 input rows: the first takes 16 of them, the second the rest. A tile instruction takes about
// as many cycles as it has input rows, and rows that do not exist are not read.
SLUICE_INLINE void configure(int rows) {
  TileConfig c;
  const int first = rows < 16 ? rows : 16, second = rows > 16 ? rows - 16 : 16;
  c.rows[0] = c.rows[1] = c.rows[4] = static_cast<uint8_t>(first);
  c.rows[2] = c.rows[3] = c.rows[5] = static_cast<uint8_t>(second);
  // Not _tile_loadconfig: GCC 12's names only the first 8 bytes as read, and stores to the others were dropped.
  __asm__ volatile("ldtilecfg %0" : : "m"(c));
}

// GCC 12's tile loads do not say that they read memory: nothing written before this is written after it.
SLUICE_INLINE void before_tile_loads() { __asm__ volatile("" : : : "memory"); }

// Tiles 0-3: sums [row tile][panel]; 4, 5: input rows; 6, 7: weights of the two panels.
template <int kRowTiles, int kPanels>
SLUICE_INLINE void clear_sums() {
  _tile_zero(0);
  if constexpr (kPanels > 1) _tile_zero(1);
  if constexpr (kRowTiles > 1) _tile_zero(2);
  if constexpr (kRowTiles > 1 && kPanels > 1) _tile_zero(3);
}

constexpr int kOutStride = kTileCols * 4;

template <int kRowTiles, int kPanels>
SLUICE_INLINE void load_sums(const float* out) {
  _tile_loadd(0, out, kOutStride);
  if constexpr (kPanels > 1) _tile_loadd(1, out + 16, kOutStride);
  if constexpr (kRowTiles > 1) _tile_loadd(2, out + 16 * kTileCols, kOutStride);
  if constexpr (kRowTiles > 1 && kPanels > 1) _tile_loadd(3, out + 16 * kTileCols + 16, kOutStride);
}

template <int kRowTiles, int kPanels>
SLUICE_INLINE void store_sums(float* out) {
  _tile_stored(0, out, kOutStride);
  if constexpr (kPanels > 1) _tile_stored(1, out + 16, kOutStride);
  if constexpr (kRowTiles > 1) _tile_stored(2, out + 16 * kTileCols, kOutStride);
  if constexpr (kRowTiles > 1 && kPanels > 1) _tile_stored(3, out + 16 * kTileCols + 16, kOutStride);
}

// Weights of a chunk as tiles: panel p's next 32 k lie `step` bytes further, its rows `stride` bytes apart.
struct WeightTiles {
  const uint8_t* base;
  int64_t panel, stride, step;
};

template <int kRowTiles, int kPanels, bool kPrefetch>
SLUICE_INLINE void multiply_chunk(const WeightTiles& w, const uint8_t* x, int64_t x_stride, int64_t k) {
  const uint8_t* b = w.base;
  for (int64_t at = 0; at < k; at += kTileK, b += w.step) {
    if constexpr (kPrefetch)
#pragma GCC unroll 4
      for (int64_t i = 0; i < kTileBytes * kPanels; i += 64) Avx512::prefetch_near(b + kAheadBytes + i);
    _tile_loadd(6, b, w.stride);
    if constexpr (kPanels > 1) _tile_loadd(7, b + w.panel, w.stride);
    _tile_loadd(4, x + 2 * at, x_stride);
    if constexpr (kRowTiles > 1) _tile_loadd(5, x + 16 * x_stride + 2 * at, x_stride);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kPanels > 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (kRowTiles > 1) _tile_dpbf16ps(2, 5, 6);
    if constexpr (kRowTiles > 1 && kPanels > 1) _tile_dpbf16ps(3, 5, 7);
  }
}

// 128 k of fp8_block: `sums` [16 * kRowTiles][kTileCols] times (weight scale * input scale), added to `out`.
template <int kRowTiles, int kPanels>
static void add_scaled(const GemmArgs& a, int row, int64_t group, const float* sums, float* out, bool first) {
  for (int i = 0; i < 16 * kRowTiles && row + i < a.m; ++i) {
    const int64_t operand_row = a.x_rows != nullptr ? a.x_rows[row + i] : row + i;
    const __m512 xs = _mm512_set1_ps(a.x_group[operand_row * a.x_group_stride + group]);
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      const __m512 ws = Avx512::broadcast_f32(a.scales + (group * kPanels + p) * 4);
      float* to = out + i * kTileCols + 16 * p;
      const __m512 before = first ? _mm512_setzero_ps() : _mm512_loadu_ps(to);
      _mm512_storeu_ps(to,
                       _mm512_fmadd_ps(_mm512_loadu_ps(sums + i * kTileCols + 16 * p), _mm512_mul_ps(ws, xs), before));
    }
  }
}

template <class C, int kRowTiles, int kPanels>
static void multiply_rows(const GemmArgs& a, const WeightTiles& w, int row, int64_t k0, int64_t k) {
  const uint8_t* x = a.x + row * a.x_stride + 2 * k0;
  float* out = a.out + static_cast<int64_t>(row) * kTileCols;
  before_tile_loads();
  if constexpr (C::kGroup == 128) {
    alignas(64) float sums[16 * kRowTiles * kTileCols];
    for (int64_t at = 0; at < k; at += 128) {
      WeightTiles part = w;
      part.base += at / kTileK * w.step;
      clear_sums<kRowTiles, kPanels>();
      multiply_chunk<kRowTiles, kPanels, false>(part, x + 2 * at, a.x_stride, k - at < 128 ? k - at : 128);
      store_sums<kRowTiles, kPanels>(sums);
      add_scaled<kRowTiles, kPanels>(a, row, (k0 + at) / 128, sums, out, k0 + at == 0);
    }
  } else {
    if (k0 == 0)
      clear_sums<kRowTiles, kPanels>();
    else
      load_sums<kRowTiles, kPanels>(out);
    multiply_chunk<kRowTiles, kPanels, C::kBits == 16>(w, x, a.x_stride, k);
    store_sums<kRowTiles, kPanels>(out);
  }
}

// Up to 32 rows: while the tiles of 32 k multiply, the next 32 k are decoded, those of the next unit included, so that
// reading codes does not pause. The loop takes two steps a turn: its end is then foreseen up to K' of 2048 or so (a
// wrong guess takes 100 cycles here).
template <class C, int kRowTiles, int kPanels>
static void decode_and_multiply(const GemmArgs& a) {
  constexpr int kStep = kTileBytes * kPanels;
  alignas(64) float sums[16 * kRowTiles * kTileCols];
  GemmArgs unit = a;
  uint8_t *now = a.scratch, *next = a.scratch + kStep;
  const auto multiply = [&](int64_t k, uint8_t * from) __attribute__((always_inline)) {
    before_tile_loads();
    multiply_chunk<kRowTiles, kPanels, false>({from, kTileBytes, 64, kStep}, unit.x + 2 * k, unit.x_stride, kTileK);
  };
  const auto end_group = [&](int64_t k) __attribute__((always_inline)) {
    if constexpr (C::kGroup == 128) {
      store_sums<kRowTiles, kPanels>(sums);
      add_scaled<kRowTiles, kPanels>(unit, 0, k / 128, sums, unit.out, k < 128);
      clear_sums<kRowTiles, kPanels>();
    }
  };
  constexpr int kUnroll = C::kGroup == 128 ? 4 : 2;
  decode_step<C, kPanels>(unit, 0, now);
  for (int u = 0; u < a.units; ++u) {
    clear_sums<kRowTiles, kPanels>();
    int64_t k = 0;
    for (; k + kUnroll * kTileK < a.k; k += kUnroll * kTileK) {
#pragma GCC unroll 4
      for (int i = 0; i < kUnroll; ++i) {
        decode_step<C, kPanels>(unit, k + (i + 1) * kTileK, i % 2 == 0 ? next : now);
        multiply(k + i * kTileK, i % 2 == 0 ? now : next);
      }
      end_group(k);
    }
    for (; k + kTileK < a.k; k += kTileK) {
      decode_step<C, kPanels>(unit, k + kTileK, next);
      multiply(k, now);
      std::swap(now, next);
    }
    const GemmArgs after = unit_after(unit);
    if (u + 1 < a.units) decode_step<C, kPanels>(after, 0, next);
    multiply(k, now);
    std::swap(now, next);
    end_group(k);
    if constexpr (C::kGroup != 128) store_sums<kRowTiles, kPanels>(unit.out);
    unit = after;
  }
}

// More rows: they take turns at the weights of a chunk.
template <class C, int kPanels>
static void run_chunks(const GemmArgs& a) {
  for (int64_t k0 = 0; k0 < a.k; k0 += kAmxChunk) {
    const int64_t k = a.k - k0 < kAmxChunk ? a.k - k0 : kAmxChunk;
    WeightTiles w;
    if constexpr (C::kBits == 16) {  // tiles as they lie
      w = {a.codes + k0 / 2 * 64 * kPanels, 64, 64 * kPanels, kTileBytes * kPanels};
    } else {
      for (int64_t at = 0; at < k; at += kTileK)
        decode_step<C, kPanels>(a, k0 + at, a.scratch + at / kTileK * kTileBytes * kPanels);
      w = {a.scratch, kTileBytes, 64, kTileBytes * kPanels};
    }
    const int whole = a.m / 32 * 32, rest = a.m - whole;
    if (whole > 0 && (k0 == 0 || rest > 0)) configure(32);
    for (int row = 0; row < whole; row += 32) multiply_rows<C, 2, kPanels>(a, w, row, k0, k);
    if (rest > 0 && (k0 == 0 || whole > 0)) configure(rest);
    if (rest > 16)
      multiply_rows<C, 2, kPanels>(a, w, whole, k0, k);
    else if (rest > 0)
      multiply_rows<C, 1, kPanels>(a, w, whole, k0, k);
  }
}

template <class C, int kPanels>
static void run_amx_units(const GemmArgs& a) {
  if (C::kBits == 4 && C::kScales == Scales::e8m0 && a.m == 1) return run_mxfp4_row<kPanels>(a);
  if (a.m <= 32) {
    if (a.first) configure(a.m);
    if constexpr (C::kBits != 16)
      return a.m > 16 ? decode_and_multiply<C, 2, kPanels>(a) : decode_and_multiply<C, 1, kPanels>(a);
  }
  GemmArgs unit = a;
  for (int u = 0; u < a.units; ++u) {
    if (a.m > 32) {
      run_chunks<C, kPanels>(unit);
    } else {
      const WeightTiles w = {unit.codes, 64, 64 * kPanels, kTileBytes * kPanels};
      a.m > 16 ? multiply_rows<C, 2, kPanels>(unit, w, 0, 0, a.k) : multiply_rows<C, 1, kPanels>(unit, w, 0, 0, a.k);
    }
    unit = unit_after(unit);
  }
}

template <class C>
static void gemm_amx(const GemmArgs& a) {
  prefetch_row_scales<Avx512>(a);
  a.panels == 2 ? run_amx_units<C, 2>(a) : run_amx_units<C, 1>(a);
  if (a.last) _tile_release();
  scale_outputs<Avx512>(a);
}

static double amx_probe(int64_t steps) {
  alignas(64) static constexpr uint8_t kZeros[kTileBytes] = {};
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
  return static_cast<double>(steps) * 4 * 16 * 16 * kTileK * 2;
}

}  // namespace

const Micro kAmx = {{gemm_amx<Bf16Coding>, gemm_amx<E4m3Coding>, gemm_amx<E4m3BlockCoding>, gemm_amx<E4m3MxCoding>,
                     gemm_amx<E2m1NvCoding>, gemm_amx<E2m1MxCoding>},
                    nullptr,
                    nullptr,
                    nullptr,
                    nullptr,
                    nullptr,
                    nullptr,
                    amx_probe,
                    nullptr};

}  // namespace sluice::kernels::cpu
