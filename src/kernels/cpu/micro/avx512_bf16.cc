// SPDX-License-Identifier: Apache-2.0
// The level `avx512_bf16`: AVX-512 BF16 (Zen 4 and later, Sapphire Rapids and later). vdpbf16ps adds two products per
// lane. Codes become bf16 exactly, and block scales multiply group sums in float32. The instruction flushes subnormal
// numbers to zero and rounds its two additions one after the other, odd k first, so results differ from avx512's in the
// last bits.
#include <immintrin.h>

#include "kernels/cpu/micro/kernel_table.h"

// GCC 12 warns inside its own intrinsics (bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx512bf16")
#pragma GCC target("prefer-vector-width=512")

#include "kernels/cpu/micro/avx512_vector.h"
#include "kernels/cpu/micro/bf16_decode.h"
#include "kernels/cpu/micro/gemm.h"
#include "kernels/cpu/micro/nvfp4_dot.h"
#include "kernels/cpu/micro/probe.h"
#include "kernels/cpu/micro/tile_product.h"

namespace sluice::kernels::cpu {
namespace {

struct Avx512Bf16 : Avx512 {
  static constexpr int kKPerStep = 2;
  // AMD's cores use this level. Intel's that have its instructions also have AMX.
  static constexpr bool kInterleavedPrefetch = false;
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
  template <int kBits, int kStep>
  SLUICE_INLINE W decode(const Raw<kBits>& raw) {
    return decode_bf16<kBits, kStep>(raw);
  }
};

}  // namespace

const KernelTable kAvx512Bf16Kernels = {
    .gemm = {gemm<Avx512Bf16, Bf16Coding>, gemm<Avx512Bf16, E4m3Coding>, gemm<Avx512Bf16, E4m3BlockCoding>,
             gemm<Avx512Bf16, E4m3MxCoding>, gemm<Avx512Bf16, E2m1NvCoding>, gemm<Avx512Bf16, E2m1MxCoding>},
    .nvfp4_dot = gemm_nvfp4_dot<Avx512Bf16>,
    .tile_product = {nullptr, nullptr, nullptr, tile_product<Avx512Bf16, TileOperands::bf16_pairs>},
    .dot_probe = dot_probe<Avx512Bf16>,
};

}  // namespace sluice::kernels::cpu
