// SPDX-License-Identifier: Apache-2.0
// Rows to round.
#pragma once

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "base/bf16.h"

namespace sluice::test {

// Values of every magnitude: zero rows and groups, subnormals, outliers, and, when asked, infinities and NaN.
inline std::vector<float> values(std::mt19937& rng, int64_t rows, int64_t cols, bool bf16, bool special) {
  std::normal_distribution<float> normal;
  std::vector<float> x;
  for (int64_t r = 0; r < rows; ++r) {
    const float row = rng() % 9 == 0 ? 0.0f : std::exp2(static_cast<float>(rng() % 40) - 20.0f);
    float group = 1;
    for (int64_t k = 0; k < cols; ++k) {
      if (k % 16 == 0) group = rng() % 7 == 0 ? 0.0f : rng() % 5 == 0 ? 1e-30f : std::exp2(0.5f * normal(rng));
      float v = normal(rng) * row * group * (rng() % 300 == 0 ? 100.0f : 1.0f);
      if (special && rng() % 97 == 0) v = rng() % 2 ? INFINITY : -INFINITY;
      if (special && rng() % 193 == 0) v = rng() % 2 ? NAN : -NAN;
      if (rng() % 211 == 0) v = std::bit_cast<float>(static_cast<uint32_t>(rng() & 0x807fffffu));
      x.push_back(bf16 ? round_to_bf16(v) : v);
    }
  }
  return x;
}

}  // namespace sluice::test
