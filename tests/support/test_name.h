// SPDX-License-Identifier: Apache-2.0
// Names of tests with parameters: gtest takes letters, digits and underscores.
#pragma once

#include <algorithm>
#include <string>

namespace sluice::test {

// "tiny-qwen3-moe" -> "tiny_qwen3_moe"
inline std::string test_name(std::string text) {
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

// The last argument of INSTANTIATE_TEST_SUITE_P where the parameter is a text.
inline constexpr auto kNamedByText = [](const auto& info) { return test_name(info.param); };

}  // namespace sluice::test
