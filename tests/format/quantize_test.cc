// SPDX-License-Identifier: Apache-2.0
// Groups, rows and weights against a definition written in double precision from docs/numerics.md. Every float
// operation of the exact mode is one correctly rounded step, and a double product or quotient of two floats rounds to
// the same float, so the comparison is bit for bit.
#include <gtest/gtest.h>

#include <array>
#include <cfloat>
#include <cmath>
#include <map>
#include <random>

#include "base/error.h"
#include "format/quantize.h"
#include "format/quantize_rows.h"
#include "format/quantize_weights.h"
#include "tests/support/random.h"
#include "tests/support/reference_quantize.h"

namespace sluice::format {
namespace {

float f32(double x) { return static_cast<float>(x); }

double amax(const float* x, int64_t n) {
  double a = 0;
  for (int64_t i = 0; i < n; ++i) a = std::max<double>(a, std::isinf(x[i]) ? FLT_MAX : std::fabs(x[i]));
  return a;
}

void check_rows(InputFormat f, const std::vector<float>& x, int64_t rows, int64_t cols, float input_scale) {
  SCOPED_TRACE(std::string(name_of(kInputFormats, f)) + " cols " + std::to_string(cols));
  const QuantRows q = quantize_rows(f, x.data(), rows, cols, input_scale);
  std::vector<float> read(x.size(), NAN);
  dequantize_rows(q, read.data());
  const bool fp4 = f == InputFormat::nvfp4 || f == InputFormat::nvfp4_token;
  const int64_t row_bytes = fp4 ? (cols + 1) / 2 : cols;
  for (int64_t t = 0; t < rows; ++t) {
    const float* row = x.data() + t * cols;
    const int group = test::reference_group(f) ? test::reference_group(f) : static_cast<int>(cols);
    const double row_amax = amax(row, cols);
    for (int64_t k = 0; k < cols; ++k) {
      const int64_t begin = k / group * group;
      const auto expected = test::reference_code(f, row[k], amax(row + begin, std::min<int64_t>(group, cols - begin)),
                                                 row_amax, input_scale);
      const uint8_t byte = q.codes[static_cast<size_t>(t * row_bytes + (fp4 ? k / 2 : k))];
      ASSERT_EQ(fp4 ? byte >> (k % 2 * 4) & 15 : byte, expected.code)
          << "row " << t << " column " << k << " x " << row[k];
      test::ReferenceCode unscaled = expected;
      unscaled.row_scale = 1;
      const float value = f32(f32(unscaled.value()) * expected.row_scale);
      ASSERT_EQ(read[static_cast<size_t>(t * cols + k)], value) << "row " << t << " column " << k;
    }
    std::vector<float> rounded(x.begin() + t * cols, x.begin() + (t + 1) * cols);
    round_row(f, rounded.data(), cols, input_scale);
    for (int64_t k = 0; k < cols; ++k)
      ASSERT_EQ(rounded[static_cast<size_t>(k)], read[static_cast<size_t>(t * cols + k)]) << "round_row, column " << k;
  }
}

constexpr InputFormat kQuantised[] = {InputFormat::fp8_static, InputFormat::fp8_token, InputFormat::fp8_group,
                                      InputFormat::mxfp8,      InputFormat::nvfp4,     InputFormat::nvfp4_token};

TEST(Quantize, RandomRowsOfEveryFormat) {
  std::mt19937 rng = test::rng();
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> spread(-30, 30);
  for (InputFormat f : kQuantised)
    for (int64_t cols : {1, 2, 16, 31, 32, 33, 127, 128, 129, 304, 961}) {
      const int64_t rows = 12;
      std::vector<float> x(static_cast<size_t>(rows * cols));
      for (int64_t t = 0; t < rows; ++t) {
        const float scale = std::exp2(spread(rng));
        for (int64_t k = 0; k < cols; ++k) {
          float v = normal(rng) * scale;
          if (rng() % 64 == 0) v *= 1000;            // outliers
          if (rng() % 8 == 0) v = round_to_bf16(v);  // ties are far likelier on short mantissas
          if (rng() % 32 == 0) v = 0;
          x[static_cast<size_t>(t * cols + k)] = v;
        }
      }
      check_rows(f, x, rows, cols, std::exp2(spread(rng)) * (1 + (rng() % 100) / 100.0f));
      if (HasFatalFailure()) return;
    }
}

// Powers of two times values of the element formats and their midpoints: every tie, at every exponent.
TEST(Quantize, TiesAtEveryExponent) {
  std::vector<float> mantissas;
  for (const auto* values : {&test::e4m3_values(), &test::e2m1_values()})
    for (size_t i = 0; i + 1 < values->size(); ++i) mantissas.push_back(f32(((*values)[i] + (*values)[i + 1]) / 2));
  while (mantissas.size() % 128) mantissas.push_back(448);
  const auto cols = static_cast<int64_t>(mantissas.size());
  for (int e = -149; e <= 119; ++e) {
    std::vector<float> x = mantissas;
    for (auto& v : x) v = std::ldexp(v, e);
    for (InputFormat f : kQuantised) {
      const float scale = f32(std::clamp(std::ldexp(1.0, e), 0x1p-126, 0x1p126));
      check_rows(f, x, 1, cols, scale);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Quantize, AmaxOf448TimesAPowerOfTwoGivesThatPower) {
  for (int n = -118; n <= 119; ++n) {
    EXPECT_EQ(mxfp8_scale(std::ldexp(448.0f, n)), n + 127) << n;
    EXPECT_EQ(mxfp8_scale(std::nextafterf(std::ldexp(448.0f, n), INFINITY)), n + 128) << n;
  }
  for (int n = -125; n <= 124; ++n) EXPECT_EQ(mxfp4_scale(std::ldexp(6.0f, n)), n + 127) << n;
}

TEST(Quantize, ZerosStayZeros) {
  for (InputFormat f : kQuantised) {
    std::vector<float> x(512, 0.0f);
    for (size_t i = 0; i < x.size(); i += 3) x[i] = -0.0f;
    round_row(f, x.data(), 512, 0.25f);
    for (float v : x) EXPECT_EQ(v, 0.0f);
  }
}

TEST(Quantize, TinyValuesGiveNoNan) {
  for (InputFormat f : kQuantised)
    for (float tiny : {FLT_TRUE_MIN, 1e-42f, FLT_MIN, 1e-36f, 1e-30f}) {
      std::vector<float> x(256, tiny);
      x[7] = -tiny;
      round_row(f, x.data(), 256, 1.0f);
      for (float v : x) EXPECT_LE(std::fabs(v), 2 * tiny);
      check_rows(f, std::vector<float>(256, tiny), 1, 256, 1.0f);
    }
}

TEST(Quantize, InfinitySaturatesAndLeavesTheOthersAlone) {
  for (InputFormat f : kQuantised)
    for (float sign : {1.0f, -1.0f}) {
      std::vector<float> x(128, 0.5f);
      x[3] = sign * INFINITY;
      const QuantRows q = quantize_rows(f, x.data(), 1, 128, 1.0f);
      std::vector<float> read(128);
      dequantize_rows(q, read.data());
      for (float v : read) EXPECT_FALSE(std::isnan(v)) << name_of(kInputFormats, f);
      EXPECT_GT(read[3] * sign, 100.0f);
      const bool fp4 = f == InputFormat::nvfp4 || f == InputFormat::nvfp4_token;
      const int code = fp4 ? q.codes[1] >> 4 : q.codes[3];
      EXPECT_EQ(code & (fp4 ? 7 : 0x7f), fp4 ? 7 : 0x7e);
    }
}

TEST(Quantize, NanMakesItsGroupNan) {
  for (InputFormat f : kQuantised) {
    std::vector<float> x(256, 1.0f);
    x[40] = NAN;
    round_row(f, x.data(), 256, 1.0f);
    const bool whole_row = f == InputFormat::fp8_token || f == InputFormat::nvfp4_token;
    const int group = group_of(f);
    for (int k = 0; k < 256; ++k) {
      const bool poisoned = whole_row || (f == InputFormat::fp8_static ? k == 40 : k / group == 40 / group);
      EXPECT_EQ(std::isnan(x[static_cast<size_t>(k)]), poisoned) << name_of(kInputFormats, f) << " " << k;
    }
  }
}

TEST(Quantize, BadScalesAndPlainAreRefused) {
  const float x = 1;
  for (float scale : {0.0f, -1.0f, NAN, INFINITY}) {
    EXPECT_THROW(quantize_rows(InputFormat::fp8_static, &x, 1, 1, scale), Error);
    EXPECT_THROW(quantize_rows(InputFormat::nvfp4, &x, 1, 1, scale), Error);
  }
  EXPECT_THROW(quantize_rows(InputFormat::plain, &x, 1, 1), Error);
  EXPECT_THROW(code_bytes(Format::nvfp4, 4, 33), Error);
}

// --- Weights ---------------------------------------------------------------------------------------------------------

struct Matrix {
  std::vector<uint8_t> codes, scales;
  float global = 1;
};

Matrix quantised(Format f, const std::vector<float>& w, int64_t n, int64_t k) {
  Matrix m;
  m.codes.resize(static_cast<size_t>(code_bytes(f, n, k)));
  m.scales.resize(static_cast<size_t>(scale_count(f, n, k)) * (info(f).scale == ScaleType::f32 ? 4 : 1));
  quantize_weight(f, w.data(), n, k, m.codes.data(), m.scales.data(), &m.global);
  return m;
}

TEST(QuantizeWeights, EveryFormatAgainstItsDefinition) {
  std::mt19937 rng = test::rng();
  std::normal_distribution<float> normal;
  for (auto [n, k] : {std::pair<int64_t, int64_t>{1, 32}, {3, 96}, {129, 160}, {130, 288}, {256, 256}}) {
    std::vector<float> w(static_cast<size_t>(n * k));
    for (auto& v : w) v = round_to_bf16(normal(rng) * 0.02f * (rng() % 50 == 0 ? 30.0f : 1.0f));
    for (const auto& [f, name] : kFormats) {
      SCOPED_TRACE(name);
      const Matrix m = quantised(f, w, n, k);
      std::vector<float> read(w.size(), NAN);
      dequantize_weight(f, m.codes.data(), m.scales.data(), m.global, n, k, read.data());
      std::map<std::array<int64_t, 4>, double> known;
      const auto amax_rect = [&](int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
        const auto [at, fresh] = known.try_emplace({r0, r1, c0, c1}, 0.0);
        if (!fresh) return at->second;
        for (int64_t r = r0; r < std::min(r1, n); ++r)
          for (int64_t c = c0; c < std::min(c1, k); ++c)
            at->second = std::max<double>(at->second, std::fabs(w[static_cast<size_t>(r * k + c)]));
        return at->second;
      };
      const float global = f32(amax_rect(0, n, 0, k) / 2688.0);
      for (int64_t r = 0; r < n; ++r)
        for (int64_t c = 0; c < k; ++c) {
          const double v = w[static_cast<size_t>(r * k + c)];
          double expected = v, s = 0;
          switch (f) {
            case Format::bf16:
              break;
            case Format::fp8_tensor:
              s = f32(amax_rect(0, n, 0, k) / 448.0);
              break;
            case Format::fp8_channel:
              s = std::max(f32(amax_rect(r, r + 1, 0, k) / 448.0), FLT_MIN);
              break;
            case Format::fp8_block:
              s = std::max(
                  f32(amax_rect(r / 128 * 128, r / 128 * 128 + 128, c / 128 * 128, c / 128 * 128 + 128) / 448.0),
                  1e-12f);
              break;
            case Format::mxfp8:
              s = test::e8m0_value(
                  test::e8m0_at_least(f32(amax_rect(r, r + 1, c / 32 * 32, c / 32 * 32 + 32) * f32(1 / 448.0))));
              break;
            case Format::mxfp4:
              s = test::e8m0_value(
                  test::e8m0_at_least(f32(amax_rect(r, r + 1, c / 32 * 32, c / 32 * 32 + 32) * f32(1 / 6.0))));
              break;
            case Format::nvfp4: {
              const float gsf = f32(1.0 / global);
              s = test::e4m3_value(test::nearest_e4m3(f32(amax_rect(r, r + 1, c / 16 * 16, c / 16 * 16 + 16) *
                                                          f32(gsf * static_cast<double>(f32(1 / 6.0))))));
              break;
            }
          }
          if (f == Format::nvfp4) {
            const float decode = f32(1.0 / f32(1.0 / global));
            const double inverse = s == 0 ? FLT_MAX : f32(1.0 / static_cast<double>(f32(s * decode)));
            expected =
                f32(f32(test::e2m1_value(test::nearest_e2m1(f32(v * inverse))) * s) * static_cast<double>(global));
          } else if (f == Format::mxfp4) {
            expected = s == 0 ? 0.0 : test::e2m1_value(test::nearest_e2m1(v / s)) * s;
          } else if (f != Format::bf16) {
            expected = s == 0 ? 0.0 : f32(test::e4m3_value(test::nearest_e4m3(f32(v / s))) * s);
          }
          ASSERT_EQ(read[static_cast<size_t>(r * k + c)], f32(expected)) << "row " << r << " column " << c;
        }
      // Quantising what was read gives it back (bf16, MX and the float scales up to the choice of the scale itself).
      if (f == Format::bf16 || f == Format::mxfp8 || f == Format::mxfp4) {
        const Matrix again = quantised(f, read, n, k);
        std::vector<float> reread(w.size());
        dequantize_weight(f, again.codes.data(), again.scales.data(), again.global, n, k, reread.data());
        EXPECT_EQ(read, reread);
      }
    }
  }
}

TEST(QuantizeWeights, ZeroMatricesReadZero) {
  for (const auto& [f, name] : kFormats) {
    const std::vector<float> w(64 * 64, 0.0f);
    const Matrix m = quantised(f, w, 64, 64);
    std::vector<float> read(w.size(), NAN);
    dequantize_weight(f, m.codes.data(), m.scales.data(), m.global, 64, 64, read.data());
    EXPECT_EQ(read, w) << name;
  }
}

TEST(QuantizeWeights, AGivenAmaxIsShared) {
  std::vector<float> w(32 * 32, 0.5f);
  for (Format f : {Format::fp8_tensor, Format::nvfp4}) {
    std::vector<uint8_t> codes(32 * 32), scales(32 * 32 * 4);
    float global = 0;
    quantize_weight(f, w.data(), 32, 32, codes.data(), scales.data(), &global, 7.0f);
    const float got = f == Format::nvfp4 ? global : *reinterpret_cast<float*>(scales.data());
    EXPECT_EQ(got, f == Format::nvfp4 ? 7.0f / 2688.0f : 7.0f / 448.0f);
  }
}

}  // namespace
}  // namespace sluice::format
