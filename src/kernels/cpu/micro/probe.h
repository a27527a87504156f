// SPDX-License-Identifier: Apache-2.0
// Probes of one core for Ceilings (kernels/cpu/ceilings.h): the multiply-add instruction that the GEMMs use, and
// reading memory.
#pragma once

#include "kernels/cpu/micro/vector_policy.h"

namespace sluice::kernels::cpu {
namespace {

// A DotProbeFn: steps * 4 * kChains independent multiply-adds from registers.
template <class V>
static double dot_probe(int64_t steps) {
  constexpr int kChains =
      16 * 64 / static_cast<int>(sizeof(typename V::F)) >= 16 && sizeof(typename V::X) == 64 ? 16 : 6;
  alignas(64) static constexpr uint8_t kZeros[64] = {};
  typename V::F acc[kChains];
  typename V::W w = V::load_weights(kZeros);
  typename V::X x = V::broadcast_x(kZeros);
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) {
    typename V::F zero = V::zero();
    __asm__ volatile("" : "+m"(zero));  // without this, the compiler sees equal chains and computes one
    acc[i] = zero;
  }
  for (int64_t s = 0; s < steps; ++s) {
    // Without this, the compiler sees that nothing changes and drops the loop.
    __asm__ volatile("" : "+m"(w), "+m"(x));
    const typename V::W w1 = w;
    const typename V::X x1 = x;
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u)
#pragma GCC unroll 16
      for (int i = 0; i < kChains; ++i) acc[i] = V::multiply_add(w1, x1, acc[i]);
  }
  alignas(64) float sink[16];
  // Unrolled: an index known only at run time would keep `acc` in memory, and its stores cost the loop 30 %.
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) {
    V::store(sink, acc[i]);
    __asm__ volatile("" : : "m"(sink));
  }
  return static_cast<double>(steps) * 4 * kChains * 16 * 2 * V::kKPerStep;
}

// A ReadProbeFn: reads `bytes`, a multiple of 4096, as four streams.
template <class V>
static void read_probe(const uint8_t* p, int64_t bytes) {
  const int64_t quarter = bytes / 4;
  typename V::F sum[4];
  for (auto& s : sum) s = V::zero();
  for (int64_t i = 0; i < quarter; i += 128)
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) {
      const uint8_t* at = p + s * quarter + i;
      V::prefetch_near(at + 4096);
      V::prefetch_near(at + 4096 + 64);
      sum[s] = V::add(V::add(sum[s], V::load(reinterpret_cast<const float*>(at))),
                      V::load(reinterpret_cast<const float*>(at + 64)));
    }
  alignas(64) float sink[16];
  for (const auto& s : sum) {
    V::store(sink, s);
    __asm__ volatile("" : : "m"(sink));
  }
}

}  // namespace
}  // namespace sluice::kernels::cpu
