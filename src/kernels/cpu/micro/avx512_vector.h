// SPDX-License-Identifier: Apache-2.0
// The vector policy of AVX-512: the 16 outputs of a panel are one register.
#pragma once

#include "kernels/cpu/micro/vector_policy.h"

namespace sluice::kernels::cpu {
namespace {

// vpdpbusd (VNNI): adds four products per lane. It is inline assembly because GCC 12 copies the sum before and after
// the intrinsic, which costs more than the instruction.
SLUICE_INLINE __m512i dot_bytes(__m512i sum, __m512i unsigned_bytes, __m512i signed_bytes) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(unsigned_bytes), "v"(signed_bytes));
  return sum;
}

struct Avx512 {
  static constexpr int kKPerStep = 1, kTileM = 8, kTilePanels = 2, kTwoPanelM = 0;
  // 6 rows by 4 panels have 10 loads for 24 dots.
  static constexpr int kFixedTileM = 6, kFixedTilePanels = 4, kFixedRegisterSums = 12;
  static constexpr bool kInterleavedPrefetch = true;
  using F = __m512;
  using W = __m512;
  using X = __m512;
  struct F16Codes {
    __m512i low, high;  // float16 of 16 rows each: k0, then k1; k2, then k3
  };
  template <int kBits, class = void>
  struct RawOf {
    using Type = __m512i;
  };
  template <class Unused>
  struct RawOf<8, Unused> {
    using Type = F16Codes;
  };
  template <int kBits>
  using Raw = typename RawOf<kBits>::Type;

  SLUICE_INLINE F zero() { return _mm512_setzero_ps(); }
  SLUICE_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
  SLUICE_INLINE void store(float* p, F f) { _mm512_storeu_ps(p, f); }
  SLUICE_INLINE W load_weights(const uint8_t* p) { return _mm512_load_ps(p); }
  SLUICE_INLINE void store_weights(uint8_t* p, W w) { _mm512_store_ps(p, w); }
  SLUICE_INLINE X broadcast_x(const uint8_t* p) { return _mm512_set1_ps(*reinterpret_cast<const float*>(p)); }
  SLUICE_INLINE F broadcast_f32(const void* p) { return _mm512_set1_ps(*static_cast<const float*>(p)); }
  SLUICE_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
  SLUICE_INLINE F multiply(F a, F b) { return _mm512_mul_ps(a, b); }
  SLUICE_INLINE F multiply_add(W w, X x, F acc) { return _mm512_fmadd_ps(w, x, acc); }
  SLUICE_INLINE F multiply_add_f32(F a, F b, F acc) { return _mm512_fmadd_ps(a, b, acc); }
  SLUICE_INLINE void prefetch_near(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }
  SLUICE_INLINE void prefetch_far(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }

  SLUICE_INLINE F scale_e8m0(const uint8_t* p) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 23));
  }
  // The bits read as float16 are 2^-8 of the value (kE4m3F16Factor in kernels/cpu/packed_weights.h).
  SLUICE_INLINE F scale_e4m3(const uint8_t* p) {
    const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i keep = _mm256_set1_epi16(static_cast<int16_t>(0xbfff));
    return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(words, 7), keep));
  }

  template <int kBits>
  SLUICE_INLINE Raw<kBits> load_codes(const uint8_t* p) {
    const __m512i raw = _mm512_loadu_si512(p);
    if constexpr (kBits == 8) {
      // A byte s eeee mmm in the upper half of a word, shifted right by one with its sign, is a float16 but for bit 14.
      const __m512i keep = _mm512_set1_epi16(static_cast<int16_t>(0xbf80));
      return {_mm512_and_si512(_mm512_srai_epi16(_mm512_slli_epi16(raw, 8), 1), keep),
              _mm512_and_si512(_mm512_srai_epi16(raw, 1), keep)};
    } else {
      return raw;
    }
  }
  template <int kBits, int kStep>
  SLUICE_INLINE W decode(const Raw<kBits>& raw) {
    if constexpr (kBits == 16) {
      return _mm512_castsi512_ps(kStep == 0 ? _mm512_slli_epi32(raw, 16)
                                            : _mm512_and_si512(raw, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
    } else if constexpr (kBits == 8) {
      const __m512i words = kStep < 2 ? raw.low : raw.high;
      if constexpr (kStep % 2 == 0)
        return _mm512_cvtph_ps(_mm512_castsi512_si256(words));
      else
        return _mm512_cvtph_ps(_mm512_extracti64x4_epi64(words, 1));
    } else {
      const __m512 table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f,
                                          -2.0f, -3.0f, -4.0f, -6.0f);
      constexpr unsigned kShift = 16 * (kStep % 2) + 4 * (kStep / 2);
      return _mm512_permutexvar_ps(kShift == 0 ? raw : _mm512_srli_epi32(raw, kShift), table);
    }
  }

  using Bytes = __m512i;
  SLUICE_INLINE Bytes load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
  SLUICE_INLINE void store_bytes(uint8_t* p, Bytes b) { _mm512_store_si512(p, b); }
  SLUICE_INLINE void look_up_nibbles(__m128i table, Bytes codes, Bytes& low, Bytes& high) {
    const __m512i t = _mm512_broadcast_i32x4(table), nibble = _mm512_set1_epi8(0x0f);
    low = _mm512_shuffle_epi8(t, _mm512_and_si512(codes, nibble));
    high = _mm512_shuffle_epi8(t, _mm512_and_si512(_mm512_srli_epi16(codes, 4), nibble));
  }
  SLUICE_INLINE F dot_16(const Bytes (&w)[4], const uint8_t* x, int32_t offset) {
    __m512i sum = _mm512_set1_epi32(offset);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      int32_t quad;
      __builtin_memcpy(&quad, x + 4 * i, 4);
      sum = dot_bytes(sum, w[i], _mm512_set1_epi32(quad));
    }
    return to_floats(sum);
  }

  using Ints = __m512i;
  using ByteSums = __m512i;
  template <class T>
  SLUICE_INLINE T keep(T v) {
    __asm__("" : "+v"(v));
    return v;
  }
  SLUICE_INLINE Bytes add_bytes(Bytes a, Bytes b) { return _mm512_add_epi8(a, b); }
  SLUICE_INLINE Bytes broadcast_quad(const uint8_t* p) {
    int32_t quad;
    __builtin_memcpy(&quad, p, 4);
    return _mm512_set1_epi32(quad);
  }
  SLUICE_INLINE Ints load_ints(const uint8_t* p) { return _mm512_load_si512(p); }
  SLUICE_INLINE void store_ints(uint8_t* p, Ints v) { _mm512_store_si512(p, v); }
  template <int kBits>
  SLUICE_INLINE Ints shift_left(Ints v) {
    return _mm512_slli_epi32(v, kBits);
  }
  SLUICE_INLINE Ints negative(Ints v) { return _mm512_sub_epi32(_mm512_setzero_si512(), v); }
  SLUICE_INLINE F to_floats(Ints v) { return _mm512_cvtepi32_ps(v); }
  SLUICE_INLINE Ints sum_of_quads(Bytes w) { return dot_bytes(_mm512_setzero_si512(), _mm512_set1_epi8(1), w); }
  SLUICE_INLINE Ints byte_of_quads(Bytes w, uint32_t byte) {
    return dot_bytes(_mm512_setzero_si512(), _mm512_set1_epi32(1 << (8 * byte)), w);
  }
  SLUICE_INLINE void add_products(ByteSums& sums, Bytes x, Bytes w) { sums = dot_bytes(sums, x, w); }
  SLUICE_INLINE void finish_four_quads(ByteSums&) {}
  SLUICE_INLINE ByteSums start_sums(Ints v) { return v; }
  SLUICE_INLINE Ints value_of(ByteSums sums) { return sums; }
};

}  // namespace
}  // namespace sluice::kernels::cpu
