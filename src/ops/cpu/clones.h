// SPDX-License-Identifier: Apache-2.0
// SLUICE_CLONES before a function: compiled once for each level of x86-64, chosen by the loader. Only for plain loops
// that the compiler vectorises the same way whatever the width: contraction is off (cmake/Toolchain.cmake), so every
// level gives the same bits.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define SLUICE_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SLUICE_CLONES
#endif
