// SPDX-License-Identifier: Apache-2.0
// The level `avx_vnni`: AVX2 with the integer dots of AVX-VNNI (Alder Lake and later, Zen 5), for processors without
// AVX-512. It has kernels of its own for integers only; everything else is avx2's.
#include <immintrin.h>

#include "kernels/cpu/micro/kernel_table.h"

#pragma GCC target("avx2,fma,f16c,avxvnni")

#include "kernels/cpu/micro/avx2_vector.h"
#include "kernels/cpu/micro/mxfp4_many_rows.h"
#include "kernels/cpu/micro/nvfp4_dot.h"

namespace sluice::kernels::cpu {
namespace {

struct AvxVnni : Avx2 {
  static constexpr int kFixedTileM = 4;
  using ByteSums = Ints;

  // vpdpbusd: adds four products per lane. It is inline assembly because GCC 12 copies the sum before and after the
  // intrinsic.
  SLUICE_INLINE __m256i dot_bytes(__m256i sum, __m256i unsigned_bytes, __m256i signed_bytes) {
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(unsigned_bytes), "x"(signed_bytes));
    return sum;
  }
  SLUICE_INLINE F dot_16(const Bytes (&w)[4], const uint8_t* x, int32_t offset) {
    __m256i low = _mm256_set1_epi32(offset), high = low;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m256i v = broadcast_quad(x + 4 * i);
      low = dot_bytes(low, w[i].low, v);
      high = dot_bytes(high, w[i].high, v);
    }
    return to_floats({low, high});
  }
  SLUICE_INLINE void add_products(ByteSums& sums, __m256i x, Bytes w) {
    sums = {dot_bytes(sums.low, x, w.low), dot_bytes(sums.high, x, w.high)};
  }
  SLUICE_INLINE void finish_four_quads(ByteSums&) {}
  SLUICE_INLINE ByteSums start_sums(Ints v) { return v; }
  SLUICE_INLINE Ints value_of(const ByteSums& sums) { return sums; }
};

}  // namespace

const KernelTable kAvxVnniKernels = {
    .nvfp4_dot = gemm_nvfp4_dot<AvxVnni>,
    .mxfp4_dot = gemm_mxfp4_dot_many_rows<AvxVnni>,
};

}  // namespace sluice::kernels::cpu
