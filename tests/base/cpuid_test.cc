// SPDX-License-Identifier: Apache-2.0
#include "base/cpuid.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace sluice {
namespace {

// The kernel's own list of what it lets processes use.
std::string kernel_flags() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.rfind("flags", 0) == 0) return line.substr(line.find(':') + 1) + " ";
  return "";
}

TEST(CpuFeatures, AgreeWithTheKernel) {
  const std::string flags = kernel_flags();
  if (flags.empty()) GTEST_SKIP() << "no flags in /proc/cpuinfo";
  const auto has = [&](const std::string& name) { return flags.find(" " + name + " ") != std::string::npos; };
  const CpuFeatures& f = cpu_features();
  EXPECT_EQ(f.avx2, has("avx2") && has("fma") && has("f16c"));
  EXPECT_EQ(f.avx_vnni, f.avx2 && has("avx_vnni"));
  EXPECT_EQ(f.avx512, has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl"));
  EXPECT_EQ(f.avx512_vnni, f.avx512 && has("avx512_vnni"));
  EXPECT_EQ(f.avx512_vbmi, f.avx512 && has("avx512vbmi"));
  EXPECT_EQ(f.avx512_bf16, f.avx512 && has("avx512_bf16"));
  EXPECT_EQ(f.amx_bf16, f.avx512 && has("amx_tile") && has("amx_bf16"));
  EXPECT_FALSE(f.brand.empty());
}

TEST(CpuFeatures, TilePermissionNeedsTiles) { EXPECT_LE(amx_permission(), cpu_features().amx_bf16); }

}  // namespace
}  // namespace sluice
