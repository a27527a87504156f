// SPDX-License-Identifier: Apache-2.0
// 64 bytes of codes to registers of bf16 pairs [16 rows][2 k], by table look-up: every e4m3 and e2m1 value is exact in
// bf16. For vdpbf16ps and for AMX tiles. Needs AVX-512 VBMI. 8-bit codes must be in Fp8Order::bf16_pairs.
#pragma once

#include "kernels/cpu/micro/vector_policy.h"

namespace sluice::kernels::cpu {
namespace {

struct Bf16Halves {
  __m512i low, high;  // lower and upper bytes of the bf16 of each code
};
template <int kBits>
struct Bf16RawOf {
  using Type = __m512i;
};
template <>
struct Bf16RawOf<8> {
  using Type = Bf16Halves;
};
template <int kBits>
using Bf16Raw = typename Bf16RawOf<kBits>::Type;

struct E4m3Tables {
  alignas(64) uint8_t low[128], high[128];  // by magnitude
};
constexpr E4m3Tables make_e4m3_tables() {
  E4m3Tables t{};
  for (int m = 0; m < 128; ++m) {
    float value = static_cast<float>(m) / 512.0f;  // subnormal: m * 2^-9
    if (m >= 8) value = __builtin_bit_cast(float, (static_cast<uint32_t>(m) << 20) + (120u << 23));
    const uint32_t bits = __builtin_bit_cast(uint32_t, value) >> 16;
    t.low[m] = static_cast<uint8_t>(bits);
    t.high[m] = static_cast<uint8_t>(bits >> 8);
  }
  return t;
}
alignas(64) constexpr E4m3Tables kE4m3Tables = make_e4m3_tables();

template <int kBits>
SLUICE_INLINE Bf16Raw<kBits> load_bf16_codes(const uint8_t* p) {
  const __m512i raw = _mm512_loadu_si512(p);
  if constexpr (kBits == 8) {
    const __m512i low =
        _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3Tables.low), raw, _mm512_load_si512(kE4m3Tables.low + 64));
    const __m512i high =
        _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3Tables.high), raw, _mm512_load_si512(kE4m3Tables.high + 64));
    // high | (raw & 0x80)
    return {low, _mm512_ternarylogic_epi32(high, raw, _mm512_set1_epi8(static_cast<char>(0x80)), 0xf8)};
  } else {
    return raw;
  }
}

template <int kBits, int kStep>
SLUICE_INLINE __m512i decode_bf16(const Bf16Raw<kBits>& raw) {
  if constexpr (kBits == 16) {
    return raw;
  } else if constexpr (kBits == 8) {
    return kStep == 0 ? _mm512_unpacklo_epi8(raw.low, raw.high) : _mm512_unpackhi_epi8(raw.low, raw.high);
  } else {
    // 16 words of e2m1 in bf16, twice: the index has five bits, of which the fifth belongs to the next nibble.
    const __m512i table = _mm512_broadcast_i64x4(
        _mm256_setr_epi16(0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, static_cast<int16_t>(0x8000),
                          static_cast<int16_t>(0xbf00), static_cast<int16_t>(0xbf80), static_cast<int16_t>(0xbfc0),
                          static_cast<int16_t>(0xc000), static_cast<int16_t>(0xc040), static_cast<int16_t>(0xc080),
                          static_cast<int16_t>(0xc0c0)));
    return _mm512_permutexvar_epi16(kStep == 0 ? raw : _mm512_srli_epi16(raw, 4 * kStep), table);
  }
}

}  // namespace
}  // namespace sluice::kernels::cpu
