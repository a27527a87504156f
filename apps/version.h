// SPDX-License-Identifier: Apache-2.0
// What was built and what it runs on, for --version, info and bug reports.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice::apps {

std::string_view version_number();  // "0.1.0"

// "sluice 0.1.0 (Release, g++ 12.2, CUDA sm_90a)\nCPU: ..., avx2 avx512f ..."
std::string version_text();

struct CpuInfo {
  std::string model;
  std::vector<std::string> isas;  // of those that a kernel could use, in the kernel names' words
};
CpuInfo cpu_info();

}  // namespace sluice::apps
