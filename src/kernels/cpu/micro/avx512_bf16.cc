// SPDX-License-Identifier: Apache-2.0
// AVX-512 BF16 (Zen 4 and later, Sapphire Rapids and later): two products a lane and instruction. Codes become bf16
// exactly; block scales multiply group sums in float32. The instruction flushes subnormal numbers to zero and rounds
// its two additions one after the other, odd k first: results differ from avx512's in the last bits.
#include <immintrin.h>

#include "kernels/cpu/micro/micro.h"

// GCC 12 warns inside its own intrinsics (bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx512bf16")
#pragma GCC target("prefer-vector-width=512")

#include "kernels/cpu/micro/probe.h"
#include "kernels/cpu/micro/tile.h"
//
#include "kernels/cpu/micro/avx512_vector.h"
//
#include "kernels/cpu/micro/bf16_decode.h"
#include "kernels/cpu/micro/nvfp4_dot.h"

namespace sluice::kernels::cpu {
namespace {

struct Avx512Bf16 : Avx512 {
  static constexpr int kPair = 2;
  static constexpr bool kPagesInTurn = false;  // AMD's cores choose this level; Intel's have AMX
  using W = __m512i;
  using X = __m512i;
  template <int kBits>
  using Raw = Bf16Raw<kBits>;

  SLUICE_INLINE W load_weights(const uint8_t* p) { return _mm512_load_si512(p); }
  SLUICE_INLINE void store_weights(uint8_t* p, W w) { _mm512_store_si512(p, w); }
  SLUICE_INLINE X broadcast_x(const uint8_t* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, 4);
    return _mm512_set1_epi32(pair);
  }
  SLUICE_INLINE F multiply_add(W w, X x, F acc) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
  }
  template <int kBits>
  SLUICE_INLINE Raw<kBits> load_codes(const uint8_t* p) {
    return load_bf16_codes<kBits>(p);
  }
  template <int kBits, int kLane>
  SLUICE_INLINE W decode(const Raw<kBits>& raw) {
    return decode_bf16<kBits, kLane>(raw);
  }
};

}  // namespace

const Micro kAvx512Bf16 = {
    {gemm<Avx512Bf16, Bf16Coding>, gemm<Avx512Bf16, E4m3Coding>, gemm<Avx512Bf16, E4m3BlockCoding>,
     gemm<Avx512Bf16, E4m3MxCoding>, gemm<Avx512Bf16, E2m1NvCoding>, gemm<Avx512Bf16, E2m1MxCoding>},
    gemm_nvfp4_dot<Avx512Bf16>,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    dot_probe<Avx512Bf16>,
    nullptr};

}  // namespace sluice::kernels::cpu
