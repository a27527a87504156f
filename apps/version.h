// SPDX-License-Identifier: Apache-2.0
// What was built and what it runs on, for --version, info and bug reports.
#pragma once

#include <string>
#include <string_view>

namespace sluice::apps {

std::string_view version_number();  // "0.1.0"

// "sluice 0.1.0 (Release, g++ 12.2.0, CUDA ON: with the sm90 backend)\nCPU: its name: avx2 avx512f ..."
std::string version_text();

}  // namespace sluice::apps
