// SPDX-License-Identifier: Apache-2.0
// Random arrays, and refusals with their sentence, for the tests of the shared library.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <string>
#include <vector>

#include "sluice/sluice.hpp"
#include "tests/support/random.h"

inline std::vector<float> floats(std::mt19937& random, size_t count, float scale = 1) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> v(count);
  for (float& x : v) x = normal(random);
  return v;
}
inline std::vector<uint16_t> bf16s(std::mt19937& random, size_t count, float scale) {
  std::vector<uint16_t> v;
  for (const float x : floats(random, count, scale))
    v.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16));
  return v;
}
inline float widen(uint16_t v) { return std::bit_cast<float>(static_cast<uint32_t>(v) << 16); }

inline void expect_refusal(sluice_status status, const std::string& sentence) {
  EXPECT_EQ(status, SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(sluice_last_error()), sentence);
}
