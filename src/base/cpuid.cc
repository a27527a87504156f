// SPDX-License-Identifier: Apache-2.0
#include "base/cpuid.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace sluice {

namespace {
#if defined(__x86_64__)
uint64_t enabled_states() {
  uint32_t low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

bool bit(uint32_t word, int i) { return (word >> i & 1u) != 0; }

std::string brand_string() {
  uint32_t r[12] = {};
  if (__get_cpuid_max(0x80000000u, nullptr) < 0x80000004u) return "unknown";
  for (uint32_t i = 0; i < 3; ++i) __cpuid(0x80000002u + i, r[4 * i], r[4 * i + 1], r[4 * i + 2], r[4 * i + 3]);
  char text[49] = {};
  std::memcpy(text, r, 48);
  std::string s(text);
  const size_t begin = s.find_first_not_of(' ');
  return begin == std::string::npos ? "unknown" : s.substr(begin, s.find_last_not_of(' ') - begin + 1);
}

CpuFeatures detect() {
  CpuFeatures f;
  f.brand = brand_string();
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !bit(c, 27)) return f;  // OSXSAVE: the system manages wide registers
  const uint64_t states = enabled_states();
  const bool ymm = (states & 0x6) == 0x6, zmm = (states & 0xe6) == 0xe6, tiles = (states & 0x60000) == 0x60000;
  const bool fma = bit(c, 12), f16c = bit(c, 29);
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
  f.avx2 = ymm && fma && f16c && bit(b, 5);
  f.avx512 = f.avx2 && zmm && bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);
  f.avx512_vbmi = f.avx512 && bit(c, 1);
  f.avx512_vnni = f.avx512 && bit(c, 11);
  f.amx_bf16 = f.avx512 && tiles && bit(d, 22) && bit(d, 24);
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) {
    f.avx_vnni = f.avx2 && bit(a, 4);
    f.avx512_bf16 = f.avx512 && bit(a, 5);
  }
  return f;
}
#else
CpuFeatures detect() { return {.brand = "unknown"}; }
#endif
}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

bool amx_permission() {
#if defined(__x86_64__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool granted = cpu_features().amx_bf16 && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}

}  // namespace sluice
