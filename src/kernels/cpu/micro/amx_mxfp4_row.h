// SPDX-License-Identifier: Apache-2.0
// One row of MXFP4 where there is AMX: float32 multiply-adds with the bits of the tiles, which more rows take.
//
// tdpbf16ps adds the 16 products of even k in order, from zero, the 16 of odd k likewise, then the two sums, then that
// to the output; its 32 k share a block scale. A power of two multiplies the sum of 32 k as exactly as each weight, so
// codes need no scale here, and a look-up makes 16 float32 weights where a tile's takes two uops, a test, an addition
// and a store. Products and sums below 2^-126 are the exception: tiles take them for zero.
#pragma once

#include "kernels/cpu/micro/amx_decode.h"

namespace sluice::kernels::cpu {
namespace {

constexpr int64_t kFloatK = kScratchBytes / 4 / kTileK * kTileK;  // k that the scratch holds as floats

// bf16 [k] to float32 [k]; k is a multiple of 32.
SLUICE_INLINE void widen(const uint8_t* x, int64_t k, float* out) {
  for (int64_t i = 0; i < k; i += 16) {
    const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 2 * i));
    _mm512_store_si512(out + i, _mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
  }
}

// The nibble from bit kShift on of each of 16 dwords; look-ups read the lowest four bits of an index.
template <int kShift>
SLUICE_INLINE __m512 e2m1_floats(__m512i codes) {
  const __m512 table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f,
                                      -3.0f, -4.0f, -6.0f);
  return _mm512_permutexvar_ps(kShift == 0 ? codes : _mm512_srli_epi32(codes, kShift), table);
}

// 8 k of a panel, of which even k are the lower words' nibbles (weights/panel.h).
template <int kPair = 0>
SLUICE_INLINE void add_products(__m512i codes, const float* x, __m512& even, __m512& odd) {
  if constexpr (kPair < 4) {
    even = _mm512_fmadd_ps(e2m1_floats<4 * kPair>(codes), _mm512_set1_ps(x[2 * kPair]), even);
    odd = _mm512_fmadd_ps(e2m1_floats<16 + 4 * kPair>(codes), _mm512_set1_ps(x[2 * kPair + 1]), odd);
    add_products<kPair + 1>(codes, x, even, odd);
  }
}

// k [begin, end) of a unit, whose inputs are `x`, added to `out`.
template <int kPanels>
SLUICE_INLINE void add_row(const GemmArgs& unit, int64_t begin, int64_t end, const float* x) {
  const uint8_t* codes = unit.codes + begin / E2m1MxCoding::kBlockK * 64 * kPanels;
  const uint8_t* scales = unit.scales + begin / kTileK * 16 * kPanels;
  __m512 sum[kPanels];
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) sum[p] = begin == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(unit.out + 16 * p);
  for (int64_t k = begin; k < end; k += kTileK) {
    Avx512::prefetch_near(scales + kScalesAhead);
    __m512 even[kPanels], odd[kPanels];
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) even[p] = odd[p] = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int block = 0; block < kTileK / E2m1MxCoding::kBlockK; ++block) {
      prefetch_block<Avx512, kPanels>(codes, unit.stream);
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) add_products(_mm512_loadu_si512(codes + 64 * p), x, even[p], odd[p]);
      codes += 64 * kPanels;
      x += E2m1MxCoding::kBlockK;
    }
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p)
      sum[p] = _mm512_fmadd_ps(_mm512_add_ps(even[p], odd[p]), Avx512::scale_e8m0(scales + 16 * p), sum[p]);
    scales += 16 * kPanels;
  }
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) _mm512_storeu_ps(unit.out + 16 * p, sum[p]);
}

template <int kPanels>
static void run_mxfp4_row(const GemmArgs& a) {
  float* const x = reinterpret_cast<float*>(a.scratch);
  for (int64_t begin = 0; begin < a.k; begin += kFloatK) {
    const int64_t end = begin + kFloatK < a.k ? begin + kFloatK : a.k;
    widen(a.x + 2 * begin, end - begin, x);
    GemmArgs unit = a;
    for (int u = 0; u < a.units; ++u) {
      add_row<kPanels>(unit, begin, end, x);
      unit = unit_after(unit);
    }
  }
}

}  // namespace
}  // namespace sluice::kernels::cpu
