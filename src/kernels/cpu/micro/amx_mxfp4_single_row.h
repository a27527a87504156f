// SPDX-License-Identifier: Apache-2.0
// MXFP4 by a single input row at the level `amx`: float32 multiply-adds that give the same bits as AMX tiles, which two
// and more rows use.
//
// tdpbf16ps adds the 16 products of even k in order, starting from zero, and the 16 of odd k in the same way. It adds
// the two sums, then adds the result to the output. Its 32 k have one block scale. Multiplying the sum of 32 k by a
// power of two is as exact as multiplying each weight, so codes need no scale here. One look-up makes 16 float32
// weights. For tiles, the look-up of pairs takes two micro-operations, and a test, an addition and a store follow.
// Products and sums below 2^-126 are the exception: tiles flush them to zero.
#pragma once

#include "kernels/cpu/micro/amx_decode.h"

namespace sluice::kernels::cpu {
namespace {

constexpr int64_t kFloatK = kScratchBytes / 4 / kAmxK * kAmxK;  // inputs that fit into scratch as floats

// x: bf16 [k], out: float32 [k]; k is a multiple of 32.
SLUICE_INLINE void widen(const uint8_t* x, int64_t k, float* out) {
  for (int64_t i = 0; i < k; i += 16) {
    const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 2 * i));
    _mm512_store_si512(out + i, _mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
  }
}

// The nibbles at bit kShift of 16 dwords as floats. The look-up reads the lowest four bits of each index.
template <int kShift>
SLUICE_INLINE __m512 e2m1_floats(__m512i codes) {
  const __m512 table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f,
                                      -3.0f, -4.0f, -6.0f);
  return _mm512_permutexvar_ps(kShift == 0 ? codes : _mm512_srli_epi32(codes, kShift), table);
}

// Adds the products of 8 k of a panel. Even k are nibbles of the lower words (kernels/cpu/packed_weights.h).
template <int kPairIndex = 0>
SLUICE_INLINE void add_products(__m512i codes, const float* x, __m512& even, __m512& odd) {
  if constexpr (kPairIndex < 4) {
    even = _mm512_fmadd_ps(e2m1_floats<4 * kPairIndex>(codes), _mm512_set1_ps(x[2 * kPairIndex]), even);
    odd = _mm512_fmadd_ps(e2m1_floats<16 + 4 * kPairIndex>(codes), _mm512_set1_ps(x[2 * kPairIndex + 1]), odd);
    add_products<kPairIndex + 1>(codes, x, even, odd);
  }
}

// Adds k [begin, end) of one N-tile to its outputs. x: the inputs [end - begin].
template <int kPanels>
SLUICE_INLINE void add_row(const GemmArgs& n_tile, int64_t begin, int64_t end, const float* x) {
  const uint8_t* codes = n_tile.w.codes + begin / E2m1MxCoding::kBlockK * 64 * kPanels;
  const uint8_t* scales = n_tile.w.scales + begin / kAmxK * 16 * kPanels;
  __m512 sum[kPanels];
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) sum[p] = begin == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(n_tile.out + 16 * p);
  for (int64_t k = begin; k < end; k += kAmxK) {
    Avx512::prefetch_near(scales + kScalesPrefetchBytes);
    __m512 even[kPanels], odd[kPanels];
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) even[p] = odd[p] = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int block = 0; block < kAmxK / E2m1MxCoding::kBlockK; ++block) {
      prefetch_block<Avx512, kPanels>(codes, n_tile.task.stream);
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
  for (int p = 0; p < kPanels; ++p) _mm512_storeu_ps(n_tile.out + 16 * p, sum[p]);
}

// All N-tiles of a call with m = 1.
template <int kPanels>
static void run_mxfp4_single_row(const GemmArgs& a) {
  float* const x = reinterpret_cast<float*>(a.scratch);
  for (int64_t begin = 0; begin < a.w.k; begin += kFloatK) {
    const int64_t end = begin + kFloatK < a.w.k ? begin + kFloatK : a.w.k;
    widen(a.x.data + 2 * begin, end - begin, x);
    GemmArgs n_tile = a;
    for (int t = 0; t < a.w.n_tiles; ++t) {
      add_row<kPanels>(n_tile, begin, end, x);
      n_tile = next_n_tile(n_tile);
    }
  }
}

}  // namespace
}  // namespace sluice::kernels::cpu
