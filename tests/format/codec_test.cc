// SPDX-License-Identifier: Apache-2.0
// Every code of every small format, and every kind of float through the conversions.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "format/formats.h"
#include "tests/support/nearest_code.h"

namespace sluice::format {
namespace {

using test::nearest_e2m1;
using test::nearest_e4m3;

// Bits of the bfloat16 nearest to f by comparing the two neighbours in double.
uint16_t nearest_bf16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  const auto down = static_cast<uint16_t>(u >> 16);
  if (std::isnan(f)) return static_cast<uint16_t>(down | 0x40);
  if (std::isinf(f)) return down;
  const auto up = static_cast<uint16_t>(down + 1);
  const auto value = [](uint16_t b) {
    // The step after the largest finite bfloat16 counts as 2^128 when nearness is judged.
    if ((b & 0x7fff) == 0x7f80) return std::copysign(std::ldexp(1.0, 128), b & 0x8000 ? -1.0 : 1.0);
    return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(b) << 16));
  };
  const double to_up = std::fabs(value(up) - f), to_down = std::fabs(f - value(down));
  if (to_up == to_down) return down % 2 == 0 ? down : up;
  return to_up < to_down ? up : down;
}

void check_conversions(uint32_t bits) {
  const float f = std::bit_cast<float>(bits);
  ASSERT_EQ(float_to_bf16(f), nearest_bf16(f)) << "bits " << std::hex << bits;
  ASSERT_EQ(float_to_e4m3(f), nearest_e4m3(f)) << "bits " << std::hex << bits;
  ASSERT_EQ(float_to_e2m1(f), nearest_e2m1(f)) << "bits " << std::hex << bits;
}

TEST(Codec, EveryE4m3Code) {
  for (int c = 0; c < 256; ++c) {
    const auto code = static_cast<uint8_t>(c);
    const float value = e4m3_to_float(code);
    if ((c & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(std::signbit(value), c == 0xff);
      continue;
    }
    EXPECT_EQ(value, test::e4m3_value(code)) << c;
    EXPECT_EQ(std::signbit(value), c >= 0x80) << c;
    EXPECT_EQ(float_to_e4m3(value), code);
  }
}

TEST(Codec, EveryE2m1Code) {
  const float expected[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int c = 0; c < 16; ++c) {
    const auto code = static_cast<uint8_t>(c);
    EXPECT_EQ(e2m1_to_float(code), c < 8 ? expected[c] : -expected[c - 8]);
    EXPECT_EQ(e2m1_to_float(code), test::e2m1_value(code));
    EXPECT_EQ(std::signbit(e2m1_to_float(code)), c >= 8);
    EXPECT_EQ(float_to_e2m1(e2m1_to_float(code)), code);
  }
}

TEST(Codec, EveryE8m0Code) {
  for (int c = 0; c < 255; ++c) {
    const auto code = static_cast<uint8_t>(c);
    EXPECT_EQ(e8m0_to_float(code), test::e8m0_value(code));
    EXPECT_EQ(float_to_e8m0_up(e8m0_to_float(code)), code);
  }
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

TEST(Codec, E8m0RoundsUp) {
  for (int e = -149; e <= 127; ++e)
    for (int step : {-1, 0, 1}) {
      float f = std::ldexp(1.0f, e);
      if (step < 0) f = std::nextafterf(f, 0.0f);
      if (step > 0) f = std::nextafterf(f, INFINITY);
      EXPECT_EQ(float_to_e8m0_up(f), test::e8m0_at_least(f)) << f;
    }
  for (uint32_t bits = 0; bits < 0x7f800000u; bits += 99991)
    ASSERT_EQ(float_to_e8m0_up(std::bit_cast<float>(bits)), test::e8m0_at_least(std::bit_cast<float>(bits))) << bits;
  EXPECT_EQ(float_to_e8m0_up(0.0f), 0);
  EXPECT_EQ(float_to_e8m0_up(INFINITY), 254);
  EXPECT_EQ(float_to_e8m0_up(NAN), 255);
}

TEST(Codec, EveryBf16Input) {
  for (uint32_t b = 0; b < 65536; ++b) {
    ASSERT_NO_FATAL_FAILURE(check_conversions(b << 16));
    const float f = bf16_to_float(static_cast<bf16_t>(b));
    if (std::isnan(f)) {
      EXPECT_EQ(float_to_bf16(f), b | 0x40);  // quiet, payload kept
    } else {
      EXPECT_EQ(float_to_bf16(f), b);
    }
    EXPECT_EQ(float_to_e8m0_up(std::fabs(f)), test::e8m0_at_least(std::fabs(f))) << b;
  }
}

// Around every code and every midpoint between codes, a few floats to each side; both signs.
TEST(Codec, EveryThreshold) {
  const auto around = [](double x) {
    const auto centre = std::bit_cast<uint32_t>(static_cast<float>(x));
    for (uint32_t d = 0; d <= 8; ++d)
      for (uint32_t sign : {0u, 0x80000000u}) {
        check_conversions((centre + d) | sign);
        if (centre >= d) check_conversions((centre - d) | sign);
      }
  };
  for (const auto* values : {&test::e4m3_values(), &test::e2m1_values()})
    for (size_t i = 0; i + 1 < values->size(); ++i) {
      around((*values)[i]);
      around(((*values)[i] + (*values)[i + 1]) / 2);
    }
  for (double x : {448.0, 464.0, 480.0, 6.0, 7.0, 3.38e38, 0x1.ffp127}) around(x);
}

TEST(Codec, FloatsAtAStride) {
  // 2^32 / 307 floats; the stride is odd and prime, so that every low mantissa pattern occurs.
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 307)
    ASSERT_NO_FATAL_FAILURE(check_conversions(static_cast<uint32_t>(bits)));
}

// All 2^32 floats; about 70 s on one core. --gtest_also_run_disabled_tests --gtest_filter=*EveryFloat
TEST(Codec, DISABLED_EveryFloat) {
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); ++bits) {
    const float f = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (float_to_bf16(f) != nearest_bf16(f) || float_to_e4m3(f) != nearest_e4m3(f) ||
        float_to_e2m1(f) != nearest_e2m1(f))
      FAIL() << "bits " << std::hex << bits;
  }
}

}  // namespace
}  // namespace sluice::format
