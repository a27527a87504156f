// SPDX-License-Identifier: Apache-2.0
// AMX (Sapphire Rapids and later): 16 rows by 16 columns by 32 k in one instruction. Shares the packed layout and the
// decoding with avx512_bf16: 16 decoded registers of bf16 pairs [16 weight rows][2 k] ARE a B tile.
//
// Block scales of 16 and 32 k are multiplied into the weights (exact in bf16); 128x128 blocks stop the sum every 128 k.
// Tiles always take 16 input rows: operands are allocated with 15 rows to spare, and rows of no meaning give results
// that nobody reads. Every row's sum has the same order whatever the number of rows.
#include <immintrin.h>

#include "kernels/cpu/micro/micro.h"

// GCC 12 warns inside its own intrinsics (bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx512bf16")
#pragma GCC target("amx-tile,amx-bf16,prefer-vector-width=512")

#include "kernels/cpu/micro/tile.h"
//
#include "kernels/cpu/micro/avx512_vector.h"
//
#include "kernels/cpu/micro/bf16_decode.h"

namespace sluice::kernels::cpu {
namespace {

constexpr int kTileK = 32;  // k of one tile instruction
constexpr int kTileBytes = 1024;
constexpr int kAmxChunk = 512;  // k decoded at a time: 32 KiB for two panels
static_assert(kAmxChunk / kTileK * kTileBytes * 2 <= kScratchBytes);

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig kTileConfig{};

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

template <int kRowTiles, int kPanels>
SLUICE_INLINE void multiply_chunk(const WeightTiles& w, const uint8_t* x, int64_t x_stride, int64_t k) {
  const uint8_t* b = w.base;
  for (int64_t at = 0; at < k; at += kTileK, b += w.step) {
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

// bf16 pairs times a float a weight row; exact, so the product's lower halves are zero.
SLUICE_INLINE __m512i scale_pairs(__m512i pairs, __m512 scale) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  const __m512 even = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)), scale);
  const __m512 odd = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(pairs, upper)), scale);
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
  return _mm512_ternarylogic_epi32(low, _mm512_castps_si512(odd), upper, 0xf8);  // low | (odd & upper)
}

struct Bf16Pairs : Avx512 {
  static constexpr int kPair = 2;
  using W = __m512i;
  template <int kBits>
  using Raw = Bf16Raw<kBits>;
  template <int kBits>
  SLUICE_INLINE Raw<kBits> load_codes(const uint8_t* p) {
    return load_bf16_codes<kBits>(p);
  }
  template <int kBits, int kLane>
  SLUICE_INLINE W decode(const Raw<kBits>& raw) {
    return decode_bf16<kBits, kLane>(raw);
  }
};

template <class C, bool kScaled, int kLane>
SLUICE_INLINE void decode_block(const Bf16Raw<C::kBits>& raw, __m512 scale, uint8_t* out) {
  if constexpr (kLane < C::kBlockK / 2) {
    const __m512i pairs = decode_bf16<C::kBits, kLane>(raw);
    _mm512_store_si512(out + 64 * kLane, kScaled ? scale_pairs(pairs, scale) : pairs);
    decode_block<C, kScaled, kLane + 1>(raw, scale, out);
  }
}

// k codes of kPanels panels to tiles [k / 32][panel][1024 bytes].
template <class C, int kPanels>
static void decode_tiles(const GemmArgs& a, int64_t k0, int64_t k, uint8_t* out) {
  constexpr bool kScaled = C::kGroup == 16 || C::kGroup == 32;
  const uint8_t* codes = a.codes + k0 / C::kBlockK * 64 * kPanels;
  for (int64_t at = 0; at < k; at += C::kBlockK, codes += 64 * kPanels)
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      __m512 scale = _mm512_setzero_ps();
      if constexpr (kScaled)
        scale = PackedSource<Bf16Pairs, C>::scale(a.scales + ((k0 + at) / C::kGroup * kPanels + p) * C::kScaleBytes);
      Avx512::prefetch_near(codes + 64 * p + kAheadBytes);
      decode_block<C, kScaled, 0>(load_bf16_codes<C::kBits>(codes + 64 * p), scale,
                                  out + (at / kTileK * kPanels + p) * kTileBytes + at % kTileK / 2 * 64);
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
  if constexpr (C::kGroup == 128) {
    alignas(64) float sums[16 * kRowTiles * kTileCols];
    for (int64_t at = 0; at < k; at += 128) {
      WeightTiles part = w;
      part.base += at / kTileK * w.step;
      clear_sums<kRowTiles, kPanels>();
      multiply_chunk<kRowTiles, kPanels>(part, x + 2 * at, a.x_stride, k - at < 128 ? k - at : 128);
      store_sums<kRowTiles, kPanels>(sums);
      add_scaled<kRowTiles, kPanels>(a, row, (k0 + at) / 128, sums, out, k0 + at == 0);
    }
  } else {
    if (k0 == 0)
      clear_sums<kRowTiles, kPanels>();
    else
      load_sums<kRowTiles, kPanels>(out);
    multiply_chunk<kRowTiles, kPanels>(w, x, a.x_stride, k);
    store_sums<kRowTiles, kPanels>(out);
  }
}

template <class C, int kPanels>
static void run_amx_unit(const GemmArgs& a) {
  for (int64_t k0 = 0; k0 < a.k; k0 += kAmxChunk) {
    const int64_t k = a.k - k0 < kAmxChunk ? a.k - k0 : kAmxChunk;
    WeightTiles w;
    if constexpr (C::kBits == 16) {  // tiles as they lie
      w = {a.codes + k0 / 2 * 64 * kPanels, 64, 64 * kPanels, kTileBytes * kPanels};
    } else {
      decode_tiles<C, kPanels>(a, k0, k, a.scratch);
      w = {a.scratch, kTileBytes, 64, kTileBytes * kPanels};
    }
    int row = 0;
    for (; a.m - row > 16; row += 32) multiply_rows<C, 2, kPanels>(a, w, row, k0, k);
    if (row < a.m) multiply_rows<C, 1, kPanels>(a, w, row, k0, k);
  }
}

template <class C>
static void gemm_amx(const GemmArgs& a) {
  _tile_loadconfig(&kTileConfig);
  a.panels == 2 ? run_amx_unit<C, 2>(a) : run_amx_unit<C, 1>(a);
  _tile_release();
  scale_outputs<Avx512>(a);
}

static double amx_probe(int64_t steps) {
  alignas(64) static constexpr uint8_t kZeros[kTileBytes] = {};
  _tile_loadconfig(&kTileConfig);
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
                    amx_probe,
                    nullptr};

}  // namespace sluice::kernels::cpu
