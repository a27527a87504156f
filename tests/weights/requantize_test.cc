// SPDX-License-Identifier: Apache-2.0
// Against the formulas of docs/numerics.md (Weights, Inputs) worked out here in double precision: the nearest code is
// searched among all codes, the scale follows from the definition.
#include "weights/requantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "random_weights.h"
#include "weights/calibration.h"

namespace sluice::weights {
namespace {

using format::Format;
using format::InputFormat;

double e4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double m = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 128 ? -m : m;
}
double e2m1(int code) {
  static const double table[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code & 8 ? -table[code & 7] : table[code & 7];
}

// |value - dequantised| can be at most half the distance between codes at that place, times the scale, plus a float's
// rounding of the division; values beyond the largest code saturate.
void expect_nearest(double x, double read, double scale, bool four_bit, std::string_view where) {
  static const auto values = [] {
    std::array<std::vector<double>, 2> v;
    for (int c = 0; c < 16; ++c) v[1].push_back(e2m1(c));
    for (int c = 0; c < 256; ++c)
      if ((c & 127) != 127) v[0].push_back(e4m3(c));
    return v;
  }();
  double best = INFINITY;
  for (const double value : values[four_bit ? 1 : 0]) best = std::min(best, std::abs(value * scale - x));
  ASSERT_LE(std::abs(read - x), best + 1e-6 * std::abs(x)) << where << ": " << x << " read as " << read;
}

struct Threads {
  ThreadPool pool;
  Context ctx{pool};
  explicit Threads(int n) : pool(n) {}
};

TEST(Quantize, EveryFormatFollowsItsDefinition) {
  Random random;
  Threads threads(2);
  const int64_t experts = 2, rows = 200, cols = 176;  // two chunks of rows, a second block of 48 columns
  QuantTensor w = make_quant_tensor(Format::bf16, experts, rows, cols);
  for (int64_t i = 0; i < w.codes.elements(); ++i)
    w.codes.as<uint16_t>()[i] = float_to_bf16(random.normal() * std::exp2(random.uniform(-6, 2)));
  const auto at = [&](int64_t e, int64_t n, int64_t k) {
    return static_cast<double>(bf16_to_float(w.codes.as<uint16_t>()[(e * rows + n) * cols + k]));
  };
  std::map<std::array<int64_t, 5>, double> known;  // of a whole matrix, asked for by each of its elements
  const auto amax = [&](int64_t e, int64_t n0, int64_t n1, int64_t k0, int64_t k1) {
    const auto [it, fresh] = known.try_emplace({e, n0, n1, k0, k1}, 0.0);
    double& m = it->second;
    if (!fresh) return m;
    for (int64_t n = n0; n < std::min(n1, rows); ++n)
      for (int64_t k = k0; k < std::min(k1, cols); ++k) m = std::max(m, std::abs(at(e, n, k)));
    return m;
  };
  const auto power_up = [](double x) { return std::exp2(std::ceil(std::log2(x))); };
  for (const auto& [format, name] : format::kFormats) {
    const QuantTensor q = quantize(threads.ctx, format, w);
    const Tensor values = dequantize(q);
    for (int64_t e = 0; e < experts; ++e)
      for (int64_t n = 0; n < rows; ++n)
        for (int64_t k = 0; k < cols; ++k) {
          const double x = at(e, n, k), read = values.as<float>()[(e * rows + n) * cols + k];
          double scale = 0;
          switch (format) {
            case Format::bf16:
              ASSERT_EQ(read, x);
              continue;
            case Format::fp8_tensor:
              scale = amax(e, 0, rows, 0, cols) / 448;
              break;
            case Format::fp8_channel:
              scale = amax(e, n, n + 1, 0, cols) / 448;
              break;
            case Format::fp8_block:
              scale = amax(e, n / 128 * 128, n / 128 * 128 + 128, k / 128 * 128, k / 128 * 128 + 128) / 448;
              break;
            case Format::mxfp8:
              scale = power_up(amax(e, n, n + 1, k / 32 * 32, k / 32 * 32 + 32) / 448);
              break;
            case Format::mxfp4:
              scale = power_up(amax(e, n, n + 1, k / 32 * 32, k / 32 * 32 + 32) / 6);
              break;
            case Format::nvfp4: {
              const double global = amax(e, 0, rows, 0, cols) / (448 * 6);
              ASSERT_NEAR(q.global.as<float>()[e], global, 1e-6 * global);
              const double block = amax(e, n, n + 1, k / 16 * 16, k / 16 * 16 + 16) / 6 / global;
              const double stored = e4m3(q.scales.as<uint8_t>()[(e * rows + n) * (cols / 16) + k / 16]);
              expect_nearest(block, stored, 1, false, "block scale");
              scale = stored * global;
              break;
            }
          }
          // Float rounding of a scale moves it by one part in 2^24: within expect_nearest's allowance.
          expect_nearest(x, read, scale, info(format).bits == 4, name);
          if (HasFatalFailure()) return;
        }
  }
}

TEST(Quantize, SameBytesForAnyNumberOfThreadsAndTwice) {
  Random random;
  Threads one(1), three(3);
  const ExpertWeights w = random_experts(random, Format::bf16, 3, 300, 144, true, true);
  for (const auto& [format, name] : format::kFormats) {
    const ExpertWeights a = quantize(one.ctx, format, w), b = quantize(three.ctx, format, w);
    EXPECT_TRUE(same_bytes(a, b)) << name;
    EXPECT_TRUE(same_bytes(quantize(one.ctx, format, a), a)) << name << " twice";
    EXPECT_TRUE(same_bytes(a.bias_up, w.bias_up));
  }
}

TEST(Quantize, FromOneQuantisedFormatToAnother) {
  Random random;
  Threads threads(2);
  // Every e4m3 value times a power of two is a bf16 value, so MXFP8 -> BF16 is exact, and quantising the read values
  // is the same as quantising that BF16 tensor.
  const QuantTensor mx = random_quant(random, Format::mxfp8, 2, 140, 96);
  const QuantTensor bf16 = quantize(threads.ctx, Format::bf16, mx);
  const Tensor a = dequantize(mx), b = dequantize(bf16);
  EXPECT_TRUE(same_bytes(a, b));
  EXPECT_TRUE(same_bytes(quantize(threads.ctx, Format::fp8_block, mx), quantize(threads.ctx, Format::fp8_block, bf16)));
}

TEST(Quantize, EmptyShardsAndOddColumns) {
  Random random;
  Threads threads(2);
  const QuantTensor none = make_quant_tensor(Format::bf16, 2, 0, 64);
  for (const auto& [format, name] : format::kFormats) EXPECT_EQ(quantize(threads.ctx, format, none).rows, 0) << name;
  EXPECT_EQ(error_of([&] { quantize(threads.ctx, Format::nvfp4, random_quant(random, Format::bf16, 1, 4, 7)); }),
            "7 columns cannot be stored as nvfp4: two 4-bit codes share a byte, so the number must be even");
}

TEST(Calibration, KeepsTheLargestAndRefusesNaN) {
  ActivationObserver observer;
  const float a[] = {1, -3, 2}, b[] = {0.5f, 2.5f, NAN};
  observer.observe("q_proj", a, 3);
  observer.observe("q_proj", b, 2);
  observer.observe("o_proj", b, 3);
  observer.observe("o_proj", a, 3);
  EXPECT_EQ(observer.amax().at("q_proj"), 3.0f);
  EXPECT_EQ(static_scale(InputFormat::fp8_static, 3.0f, "q_proj"), 3.0f / 448.0f);
  EXPECT_EQ(static_scale(InputFormat::nvfp4, 3.0f, "q_proj"), 3.0f / 2688.0f);
  EXPECT_EQ(error_of([&] { static_scale(InputFormat::nvfp4, observer.amax().at("o_proj"), "o_proj"); }),
            "the inputs of o_proj reached nan during calibration; the model's own run is not finite");
  EXPECT_EQ(error_of([] { static_scale(InputFormat::mxfp8, 1.0f, "q"); }),
            "inputs of format mxfp8 have no calibrated scale; fp8_static and nvfp4 have one");
}

}  // namespace
}  // namespace sluice::weights
