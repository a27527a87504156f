// SPDX-License-Identifier: Apache-2.0
// What the processor and the operating system let this process execute. Asked at run time: one binary serves every
// x86-64 machine, and a build never depends on the machine that built it.
#pragma once

#include <string>

namespace sluice {

struct CpuFeatures {
  bool avx2 = false;         // AVX2, FMA and F16C, with the registers saved by the system
  bool avx_vnni = false;     // 8-bit integer dot products of 256 bits
  bool avx512 = false;       // F, BW, DQ, VL
  bool avx512_vnni = false;  // 8-bit integer dot products
  bool avx512_vbmi = false;  // byte permutes of two registers
  bool avx512_bf16 = false;  // bfloat16 dot products
  bool amx_bf16 = false;     // tiles; using them needs amx_permission() first
  std::string brand;         // "Intel(R) Xeon(R) ...", "unknown" elsewhere
};

const CpuFeatures& cpu_features();

// Asks the system once for the right to use AMX tile registers in this process; false when it refuses.
bool amx_permission();

}  // namespace sluice
