// SPDX-License-Identifier: Apache-2.0
// The vector policy of AVX2: the 16 outputs of a panel are two registers, and the 16 registers hold a tile of 6 input
// rows by one panel.
#pragma once

#include "kernels/cpu/micro/vector_policy.h"

namespace sluice::kernels::cpu {
namespace {

struct Avx2 {
  static constexpr int kKPerStep = 1, kTileM = 6, kTilePanels = 1, kTwoPanelM = 2;
  // 3 and 4 rows took 1.09 and 1.12 of the time (512 tokens, docs/kernels/cpu_grouped_gemm.md).
  static constexpr int kFixedTileM = 2, kFixedTilePanels = 1, kFixedRegisterSums = 2;
  static constexpr bool kInterleavedPrefetch = true;
  struct F {
    __m256 low, high;  // outputs 0-7, 8-15 of a panel
  };
  using W = F;
  using X = __m256;
  struct Block {
    __m256i low, high;  // the block's bytes 0-31, 32-63
  };
  template <int kBits>
  using Raw = Block;

  SLUICE_INLINE F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  SLUICE_INLINE F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  SLUICE_INLINE void store(float* p, F f) {
    _mm256_storeu_ps(p, f.low);
    _mm256_storeu_ps(p + 8, f.high);
  }
  SLUICE_INLINE W load_weights(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
  SLUICE_INLINE void store_weights(uint8_t* p, W w) { store(reinterpret_cast<float*>(p), w); }
  SLUICE_INLINE X broadcast_x(const uint8_t* p) { return _mm256_broadcast_ss(reinterpret_cast<const float*>(p)); }
  SLUICE_INLINE F broadcast_f32(const void* p) {
    const __m256 v = _mm256_broadcast_ss(static_cast<const float*>(p));
    return {v, v};
  }
  SLUICE_INLINE F add(F a, F b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
  SLUICE_INLINE F multiply(F a, F b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
  SLUICE_INLINE F multiply_add(W w, X x, F acc) {
    return {_mm256_fmadd_ps(w.low, x, acc.low), _mm256_fmadd_ps(w.high, x, acc.high)};
  }
  SLUICE_INLINE F multiply_add_f32(F a, F b, F acc) {
    return {_mm256_fmadd_ps(a.low, b.low, acc.low), _mm256_fmadd_ps(a.high, b.high, acc.high)};
  }
  SLUICE_INLINE void prefetch_near(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }
  SLUICE_INLINE void prefetch_far(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }

  SLUICE_INLINE F scale_e8m0(const uint8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 23)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)), 23))};
  }
  SLUICE_INLINE F from_f16(__m256i words) {
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(words)), _mm256_cvtph_ps(_mm256_extracti128_si256(words, 1))};
  }
  SLUICE_INLINE F scale_e4m3(const uint8_t* p) {
    const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return from_f16(_mm256_and_si256(_mm256_slli_epi16(words, 7), _mm256_set1_epi16(static_cast<int16_t>(0xbfff))));
  }

  template <int kBits>
  SLUICE_INLINE Block load_codes(const uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
  }
  template <int kStep>
  SLUICE_INLINE __m256 bf16(__m256i pairs) {
    return _mm256_castsi256_ps(kStep == 0 ? _mm256_slli_epi32(pairs, 16)
                                          : _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
  }
  // Magnitude from an 8-entry table, sign moved from bit 3 of the nibble.
  template <int kShift>
  SLUICE_INLINE __m256 e2m1(__m256i dwords) {
    const __m256 table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    const __m256 magnitude = _mm256_permutevar8x32_ps(table, _mm256_srli_epi32(dwords, kShift));
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(dwords, 28 - kShift), _mm256_set1_epi32(INT32_MIN));
    return _mm256_xor_ps(magnitude, _mm256_castsi256_ps(sign));
  }
  template <int kBits, int kStep>
  SLUICE_INLINE W decode(const Block& raw) {
    if constexpr (kBits == 16) {
      return {bf16<kStep>(raw.low), bf16<kStep>(raw.high)};
    } else if constexpr (kBits == 8) {
      // k0 and k2 are the low and high bytes of the words of the block's first half, k1 and k3 of its second half.
      const __m256i words = kStep % 2 == 0 ? raw.low : raw.high;
      const __m256i top = kStep < 2 ? _mm256_slli_epi16(words, 8) : words;
      return from_f16(_mm256_and_si256(_mm256_srai_epi16(top, 1), _mm256_set1_epi16(static_cast<int16_t>(0xbf80))));
    } else {
      constexpr int kShift = 16 * (kStep % 2) + 4 * (kStep / 2);
      return {e2m1<kShift>(raw.low), e2m1<kShift>(raw.high)};
    }
  }

  using Bytes = Block;
  SLUICE_INLINE Bytes load_bytes(const uint8_t* p) { return load_codes<4>(p); }
  SLUICE_INLINE void store_bytes(uint8_t* p, Bytes b) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), b.low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), b.high);
  }
  SLUICE_INLINE void look_up_nibbles(__m128i table, Bytes codes, Bytes& low, Bytes& high) {
    const __m256i t = _mm256_broadcastsi128_si256(table), nibble = _mm256_set1_epi8(0x0f);
    low = {_mm256_shuffle_epi8(t, _mm256_and_si256(codes.low, nibble)),
           _mm256_shuffle_epi8(t, _mm256_and_si256(codes.high, nibble))};
    high = {_mm256_shuffle_epi8(t, _mm256_and_si256(_mm256_srli_epi16(codes.low, 4), nibble)),
            _mm256_shuffle_epi8(t, _mm256_and_si256(_mm256_srli_epi16(codes.high, 4), nibble))};
  }
  // vpmaddubsw adds two products to 16 bits. At most 24 * 12 each, the sum of eight is below 2^15.
  SLUICE_INLINE F dot_16(const Bytes (&w)[4], const uint8_t* x, int32_t offset) {
    __m256i low = _mm256_setzero_si256(), high = low;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      int32_t quad;
      __builtin_memcpy(&quad, x + 4 * i, 4);
      const __m256i v = _mm256_set1_epi32(quad);
      low = _mm256_add_epi16(low, _mm256_maddubs_epi16(w[i].low, v));
      high = _mm256_add_epi16(high, _mm256_maddubs_epi16(w[i].high, v));
    }
    const __m256i ones = _mm256_set1_epi16(1), start = _mm256_set1_epi32(offset);
    return {_mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_madd_epi16(low, ones), start)),
            _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_madd_epi16(high, ones), start))};
  }

  using Ints = Block;
  // vpmaddubsw adds two products to 16 bits. At most 255 * 12 each, the sum of eight is below 2^15: `words` holds the
  // products of up to four quads.
  struct ByteSums {
    Ints sums, words;
  };
  template <class T>
  SLUICE_INLINE T keep(T v) {
    return v;
  }
  SLUICE_INLINE Bytes add_bytes(Bytes a, Bytes b) {
    return {_mm256_add_epi8(a.low, b.low), _mm256_add_epi8(a.high, b.high)};
  }
  SLUICE_INLINE __m256i broadcast_quad(const uint8_t* p) {
    int32_t quad;
    __builtin_memcpy(&quad, p, 4);
    return _mm256_set1_epi32(quad);
  }
  SLUICE_INLINE Ints load_ints(const uint8_t* p) { return load_bytes(p); }
  SLUICE_INLINE void store_ints(uint8_t* p, Ints v) { store_bytes(p, v); }
  template <int kBits>
  SLUICE_INLINE Ints shift_left(Ints v) {
    return {_mm256_slli_epi32(v.low, kBits), _mm256_slli_epi32(v.high, kBits)};
  }
  SLUICE_INLINE Ints negative(Ints v) {
    return {_mm256_sub_epi32(_mm256_setzero_si256(), v.low), _mm256_sub_epi32(_mm256_setzero_si256(), v.high)};
  }
  SLUICE_INLINE F to_floats(Ints v) { return {_mm256_cvtepi32_ps(v.low), _mm256_cvtepi32_ps(v.high)}; }
  SLUICE_INLINE Ints sum_of_quads(Bytes w) {
    const __m256i bytes = _mm256_set1_epi8(1), words = _mm256_set1_epi16(1);
    return {_mm256_madd_epi16(_mm256_maddubs_epi16(bytes, w.low), words),
            _mm256_madd_epi16(_mm256_maddubs_epi16(bytes, w.high), words)};
  }
  SLUICE_INLINE Ints byte_of_quads(Bytes w, uint32_t byte) {
    const __m128i to_top = _mm_cvtsi32_si128(static_cast<int>(24 - 8 * byte));
    return {_mm256_srai_epi32(_mm256_sll_epi32(w.low, to_top), 24),
            _mm256_srai_epi32(_mm256_sll_epi32(w.high, to_top), 24)};
  }
  SLUICE_INLINE void add_products(ByteSums& sums, __m256i x, Bytes w) {
    sums.words.low = _mm256_add_epi16(sums.words.low, _mm256_maddubs_epi16(x, w.low));
    sums.words.high = _mm256_add_epi16(sums.words.high, _mm256_maddubs_epi16(x, w.high));
  }
  SLUICE_INLINE void finish_four_quads(ByteSums& sums) {
    const __m256i ones = _mm256_set1_epi16(1);
    sums.sums.low = _mm256_add_epi32(sums.sums.low, _mm256_madd_epi16(sums.words.low, ones));
    sums.sums.high = _mm256_add_epi32(sums.sums.high, _mm256_madd_epi16(sums.words.high, ones));
    sums.words = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  }
  SLUICE_INLINE ByteSums start_sums(Ints v) { return {v, {_mm256_setzero_si256(), _mm256_setzero_si256()}}; }
  SLUICE_INLINE Ints value_of(const ByteSums& sums) { return sums.sums; }
};

}  // namespace
}  // namespace sluice::kernels::cpu
