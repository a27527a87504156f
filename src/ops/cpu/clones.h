// SPDX-License-Identifier: Apache-2.0
// Loops that are compiled once for each level of x86-64. Contraction is off (cmake/Toolchain.cmake), so every level
// gives the same bits if the order of the sums does not depend on it.
//
// SLUICE_CLONES before a function: chosen by the loader. Only for plain loops that the compiler vectorises the same way
// whatever the width.
//
// at_level(): for functions that name their vectors, which must not be wider than the level's registers: GCC 12 keeps
// such ones on the stack. In ops/cpu/tile.cc vectors of 64 bytes took 3 to 18 times as long with AVX2 as those of 32
// (weighted sums of 64 rows of 128 values: 4642 ns, 251 ns; the softmax of 8 queries: 2572 ns, 330 ns), and 1.5 to 7
// times as long with SSE2 as those of 16.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define SLUICE_LEVELS 1
#define SLUICE_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SLUICE_LEVELS 0
#define SLUICE_CLONES
#endif

// After the parameters of a lambda for at_level(): its loops are compiled as part of their level's function.
#define SLUICE_INLINE_LAMBDA __attribute__((always_inline))

namespace sluice::ops::cpu {

#if SLUICE_LEVELS
template <class F>
__attribute__((target("arch=x86-64-v4"))) void at_v4(const F& f) {
  f.template operator()<64>();
}
template <class F>
__attribute__((target("arch=x86-64-v3"))) void at_v3(const F& f) {
  f.template operator()<32>();
}
#endif

// f.operator()<kBytes>(), compiled for vectors of kBytes bytes, the most that this machine has.
template <class F>
inline void at_level(const F& f) {
#if SLUICE_LEVELS
  if (__builtin_cpu_supports("x86-64-v4")) return at_v4(f);
  if (__builtin_cpu_supports("x86-64-v3")) return at_v3(f);
#endif
  f.template operator()<16>();
}

}  // namespace sluice::ops::cpu
