// SPDX-License-Identifier: Apache-2.0
// How helper functions of the kernels are declared: static, so that no other file can share code that is compiled for
// one instruction set, and always inlined, so that vectors stay in registers.
#pragma once

#define SLUICE_INLINE static inline __attribute__((always_inline))
