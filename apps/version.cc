// SPDX-License-Identifier: Apache-2.0
#include "version.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <vector>

namespace sluice::apps {

namespace {
constexpr std::array<std::string_view, 11> kUsedIsas{"avx2",        "fma",      "f16c",        "avx_vnni",
                                                     "avx512f",     "avx512bw", "avx512_vnni", "avx512_vbmi",
                                                     "avx512_bf16", "amx_tile", "amx_bf16"};

#if defined(__clang__)
constexpr std::string_view kCompiler = "clang++ " __clang_version__;
#else
constexpr std::string_view kCompiler = "g++ " __VERSION__;
#endif
constexpr bool kCuda = std::string_view(SLUICE_BUILD_CUDA) == "ON";

struct CpuInfo {
  std::string model;
  std::vector<std::string> isas;  // of those that a kernel could use, in /proc/cpuinfo's words
};

CpuInfo cpu_info() {
  // The operating system's list already says what it lets a process use, which CPUID alone does not.
  CpuInfo info{"unknown CPU", {}};
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line) && !line.empty();) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || colon + 2 > line.size()) continue;
    const std::string value = line.substr(colon + 2);
    if (line.starts_with("model name")) info.model = value;
    if (!line.starts_with("flags")) continue;
    std::istringstream words(value);
    for (std::string word; words >> word;) {
      if (std::find(kUsedIsas.begin(), kUsedIsas.end(), word) != kUsedIsas.end()) info.isas.push_back(word);
    }
  }
  return info;
}
}  // namespace

std::string_view version_number() { return SLUICE_VERSION; }

std::string version_text() {
  const CpuInfo cpu = cpu_info();
  // SLUICE_CUDA=AUTO decides by what the configuring machine has, so the program says what it became.
  return fmt::format("sluice {} ({}, {}, CUDA {}: {} the sm90 backend)\nCPU: {}: {}", SLUICE_VERSION, SLUICE_BUILD_TYPE,
                     kCompiler, kCuda ? "ON" : "OFF", kCuda ? "with" : "without", cpu.model, fmt::join(cpu.isas, " "));
}

}  // namespace sluice::apps
