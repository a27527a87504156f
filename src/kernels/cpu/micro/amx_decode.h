// SPDX-License-Identifier: Apache-2.0
// Decodes codes to AMX tiles in memory: 32 k by 16 weight rows of bf16 pairs, 1024 bytes. Block scales of 16 and 32 k
// are multiplied into the weights, which is exact in bf16.
#pragma once

#include "kernels/cpu/micro/avx512_vector.h"
#include "kernels/cpu/micro/bf16_decode.h"
#include "kernels/cpu/micro/gemm.h"

namespace sluice::kernels::cpu {
namespace {

constexpr int kAmxK = 32;  // k of one tile instruction
constexpr int kAmxTileBytes = 1024;

// The arguments of the next N-tile of the same call.
SLUICE_INLINE GemmArgs next_n_tile(GemmArgs a) {
  a.w.codes += a.w.codes_stride;
  a.w.scales += a.w.scales_stride;
  a.out += kNTileOutStride;
  return a;
}

// bf16 pairs times a float per weight row. The products are exact, so their lower 16 bits are zero.
SLUICE_INLINE __m512i scale_pairs(__m512i pairs, __m512 scale) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  const __m512 even = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)), scale);
  const __m512 odd = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(pairs, upper)), scale);
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
  return _mm512_ternarylogic_epi32(low, _mm512_castps_si512(odd), upper, 0xf8);  // low | (odd & upper)
}

// The same for powers of two 2^(b-127), by adding to the exponents of the values that are not zero. Valid only while
// every exponent stays in range (exponents_fit): those of e4m3 and e2m1 in bf16 are 118 to 135.
SLUICE_INLINE bool exponents_fit(__m128i b) {
  return _mm_cmple_epu8_mask(_mm_sub_epi8(b, _mm_set1_epi8(10)), _mm_set1_epi8(static_cast<char>(236))) == 0xffff;
}
SLUICE_INLINE __m512i exponent_words(__m128i b) {
  const __m512i e = _mm512_sub_epi32(_mm512_cvtepu8_epi32(b), _mm512_set1_epi32(127));
  const __m512i low = _mm512_and_si512(_mm512_slli_epi32(e, 7), _mm512_set1_epi32(0xffff));
  return _mm512_or_si512(_mm512_slli_epi32(e, 23), low);
}
SLUICE_INLINE __m512i add_exponents(__m512i pairs, __m512i words) {
  const __mmask32 nonzero = _mm512_test_epi16_mask(pairs, _mm512_set1_epi16(0x7fff));
  return _mm512_mask_add_epi16(pairs, nonzero, pairs, words);
}

// How decode_block() applies block scales.
enum class Scaling { none, multiply, add_exponents };

// One 64-byte block. `scale`: 16 floats to multiply by, or the bits that exponent_words() gives.
template <class C, Scaling kScaling, int kStep = 0>
SLUICE_INLINE void decode_block(const Bf16Raw<C::kBits>& raw, __m512 scale, uint8_t* out) {
  if constexpr (kStep < C::kBlockK / 2) {
    __m512i pairs = decode_bf16<C::kBits, kStep>(raw);
    if constexpr (kScaling == Scaling::multiply) pairs = scale_pairs(pairs, scale);
    if constexpr (kScaling == Scaling::add_exponents) pairs = add_exponents(pairs, _mm512_castps_si512(scale));
    _mm512_store_si512(out + 64 * kStep, pairs);
    decode_block<C, kScaling, kStep + 1>(raw, scale, out);
  }
}

// One panel: the codes of one block scale, or 32 k of a coding without block scales.
template <class C, int kPanels, Scaling kScaling>
SLUICE_INLINE void decode_group(const uint8_t* codes, __m512 scale, uint8_t* out) {
  constexpr int kGroupK = C::kGroup == 16 ? 16 : 32;
#pragma GCC unroll 8
  for (int i = 0; i < kGroupK / C::kBlockK; ++i) {
    decode_block<C, kScaling>(load_bf16_codes<C::kBits>(codes), scale, out + i * (C::kBlockK / 2) * 64);
    codes += 64 * kPanels;
  }
}

// To call before kLines lines are decoded. Prefetches the kLines lines after them to L1, and as many lines of the next
// window to L2, interleaved over pages as interleaved_ahead() does. The window is eight pages; four are enough for
// kernels that read one line at a time.
template <int kLines>
SLUICE_INLINE void prefetch_codes(const uint8_t* codes, const PrefetchStream& stream) {
  constexpr int kPages = kLines < 8 ? kLines : 8;
  constexpr uintptr_t kWindow = kPages * kPage;
  const uint8_t* first = codes - (reinterpret_cast<uintptr_t>(codes) & (kLines * 64 - 1));
  const uintptr_t in_window = reinterpret_cast<uintptr_t>(first) & (kWindow - 1);
  const uint8_t* ahead = first - in_window + kWindow + in_window / kPages;
#pragma GCC unroll 8
  for (int page = 0; page < kPages; ++page) {
    const uint8_t* at = stream_address(ahead + page * kPage, stream);
#pragma GCC unroll 2
    for (int i = 0; i < kLines / kPages; ++i) Avx512::prefetch_far(at + 64 * i);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLines; ++i) Avx512::prefetch_near(codes + 64 * (kLines + i));
}

// Decodes 32 k of kPanels panels, from k on, to AMX tiles [panel][1024 bytes].
template <class C, int kPanels>
SLUICE_INLINE void decode_step(const GemmArgs& a, int64_t k, uint8_t* out) {
  constexpr int kGroupK = C::kGroup == 16 ? 16 : 32;
  const uint8_t* codes = a.w.codes + k / C::kBlockK * 64 * kPanels;
  prefetch_codes<kAmxK / C::kBlockK * kPanels>(codes, a.task.stream);
#pragma GCC unroll 2
  for (int64_t at = 0; at < kAmxK; at += kGroupK, codes += kGroupK / C::kBlockK * 64 * kPanels)
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      const uint8_t* from = codes + 64 * p;
      uint8_t* tile = out + p * kAmxTileBytes + at / 2 * 64;
      const uint8_t* scales = a.w.scales + ((k + at) / kGroupK * kPanels + p) * C::kScaleBytes;
      if (C::kScaleBytes == 16 && p == 0) Avx512::prefetch_near(scales + kScalesPrefetchBytes);
      if constexpr (C::kScales == Scales::e8m0) {
        const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales));
        if (exponents_fit(b))
          decode_group<C, kPanels, Scaling::add_exponents>(from, _mm512_castsi512_ps(exponent_words(b)), tile);
        else
          decode_group<C, kPanels, Scaling::multiply>(from, Avx512::scale_e8m0(scales), tile);
      } else if constexpr (C::kScales == Scales::e4m3) {
        decode_group<C, kPanels, Scaling::multiply>(from, Avx512::scale_e4m3(scales), tile);
      } else {
        decode_group<C, kPanels, Scaling::none>(from, _mm512_setzero_ps(), tile);
      }
    }
}

}  // namespace
}  // namespace sluice::kernels::cpu
