// SPDX-License-Identifier: Apache-2.0
#include "base/f16.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sluice {
namespace {

TEST(F16, EveryCode) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const int exponent = static_cast<int>(code >> 10 & 31u), fraction = static_cast<int>(code & 1023u);
    const float got = f16_to_float(static_cast<uint16_t>(code));
    EXPECT_EQ(std::signbit(got), code >= 32768) << code;
    if (exponent == 31 && fraction != 0) {
      EXPECT_TRUE(std::isnan(got)) << code;
      continue;
    }
    const double magnitude = exponent == 31  ? HUGE_VAL
                             : exponent == 0 ? std::ldexp(fraction, -24)
                                             : std::ldexp(1024 + fraction, exponent - 25);
    EXPECT_EQ(std::fabs(static_cast<double>(got)), magnitude) << code;
  }
}

}  // namespace
}  // namespace sluice
