// SPDX-License-Identifier: Apache-2.0
// Rows rounded by the better of two scales, against the published definition in double precision (docs/numerics.md,
// Four over six). Every float operation there is one correctly rounded step, and a double sum, product or quotient of
// two floats rounds to the same float, so codes, block scales and row scales are compared bit for bit.
#include "format/four_over_six.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <random>
#include <vector>

#include "base/bf16.h"
#include "base/error.h"
#include "format/quantize_tensor.h"
#include "tests/support/nearest_code.h"
#include "tests/support/random.h"
#include "tests/support/scale_layout.h"

namespace sluice::format {
namespace {

double f32(double x) { return static_cast<float>(x); }

std::vector<FourOverSix> all_ways() {
  std::vector<FourOverSix> ways;
  for (int e4m3_max : {448, 256})
    for (BlockError error : {BlockError::mae, BlockError::mse})
      for (bool fast : {false, true}) ways.push_back({true, e4m3_max, error, fast});
  return ways;
}
std::string text(const FourOverSix& how) {
  return std::string(name_of(kBlockErrors, how.error)) + " " + std::to_string(how.e4m3_max) +
         (how.fast ? " fast" : " exact");
}

// --- The definition
// ---------------------------------------------------------------------------------------------------

struct Factors {
  double encode, decode, row_amax;  // row_amax: of nvfp4_token
  bool token;
};
struct Block {
  uint8_t scale = 0;
  std::vector<uint8_t> codes;
  double error = 0;
};

Block candidate(const std::vector<float>& x, double wanted_scale, const Factors& f, const FourOverSix& how) {
  Block b;
  b.scale = test::nearest_e4m3(std::min(wanted_scale, 448.0));
  const double scale = test::e4m3_value(b.scale);
  const double inverse = std::min<double>(f32(1.0 / f32(scale * f.decode)), FLT_MAX);
  for (float v : x) {
    b.codes.push_back(test::nearest_e2m1(f32(v * inverse)));
    const double scaled = f32(test::e2m1_value(b.codes.back()) * scale);
    double difference = 0;
    if (how.fast)
      difference = f32(scaled - f32(v * f.encode));
    else if (f.token)
      difference = f32(f32(f32(scaled * f.row_amax) / (6.0 * how.e4m3_max)) - v);
    else
      difference = f32(f32(scaled * f.decode) - v);
    b.error = f32(b.error + (how.error == BlockError::mse ? f32(difference * difference) : std::fabs(difference)));
  }
  return b;
}

double amax(const float* x, int64_t n) {
  double a = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (std::isnan(x[i])) return std::nan("");
    a = std::max<double>(a, std::isinf(x[i]) ? FLT_MAX : std::fabs(x[i]));
  }
  return a;
}

struct Chosen {
  Block block;
  bool four = false;
};
Chosen reference_block(const std::vector<float>& x, const Factors& f, const FourOverSix& how) {
  const double six = f32(f32(amax(x.data(), static_cast<int64_t>(x.size())) / 6.0) * f.encode);
  const Block by6 = candidate(x, six, f, how), by4 = candidate(x, f32(six * 1.5), f, how);
  return by4.error < by6.error ? Chosen{by4, true} : Chosen{by6, false};
}

// --- The code under test against it
// -----------------------------------------------------------------------------------

struct Problem {
  Coding coding = Coding::nvfp4_token;
  float input_scale = 1.0f;
  bool encodes = false;
  FourOverSix how;
};

Factors factors_of(const Problem& p, const float* row, int64_t cols) {
  Factors f{p.input_scale, 0, 0, p.coding == Coding::nvfp4_token};
  if (f.token) {
    f.row_amax = amax(row, cols);
    f.encode = std::min<double>(f32(6.0 * p.how.e4m3_max / f.row_amax), FLT_MAX);
  } else if (!p.encodes) {
    f.encode = f32(1.0 / p.input_scale);
  }
  f.decode = f32(1.0 / f.encode);
  return f;
}

// Memory with a margin, all of it poisoned.
struct Output {
  static constexpr uint8_t kPoison = 0xee;
  std::vector<uint8_t> codes, scales;
  std::vector<float> row_scales;
  CodedTensor to;

  Output(const Problem& p, int64_t rows, int64_t cols, ScaleLayout layout = ScaleLayout::linear)
      : codes(static_cast<size_t>(rows * ((cols + 1) / 2)) + 8, kPoison),
        scales(static_cast<size_t>(scale_elements(layout, rows, (cols + 15) / 16)) + 8, kPoison),
        row_scales(static_cast<size_t>(rows) + 1, -7.0f) {
    to.coding = p.coding;
    to.rows = rows;
    to.cols = cols;
    to.input_scale = p.input_scale;
    to.encodes = p.encodes;
    to.four_over_six = p.how;
    to.codes = codes.data();
    to.scales = scales.data();
    to.layout = layout;
    to.row_scales = p.coding == Coding::nvfp4_token ? row_scales.data() : nullptr;
    check_coded(to);
  }
  void expect_margins() const {
    for (size_t i = 1; i <= 8; ++i) {
      EXPECT_EQ(codes[codes.size() - i], kPoison);
      EXPECT_EQ(scales[scales.size() - i], kPoison);
    }
    EXPECT_EQ(row_scales.back(), -7.0f);
  }
};

// Blocks that took the scale to 4.
int64_t check_rows(const Problem& p, const std::vector<float>& x, int64_t rows, int64_t cols) {
  SCOPED_TRACE(text(p.how) + (p.coding == Coding::nvfp4 ? " nvfp4" : " nvfp4_token") + " cols " + std::to_string(cols));
  Output out(p, rows, cols);
  quantize_into(out.to, x.data(), 0, rows);
  out.expect_margins();
  const int64_t groups = (cols + 15) / 16, row_bytes = (cols + 1) / 2;
  int64_t fours = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x.data() + r * cols;
    const Factors f = factors_of(p, row, cols);
    if (f.token) {
      const float decode = out.row_scales[static_cast<size_t>(r)];
      EXPECT_TRUE(decode == f.decode || (std::isnan(decode) && std::isnan(f.decode))) << "row " << r;
    }
    const uint8_t* codes = out.codes.data() + r * row_bytes;
    for (int64_t g = 0; g < groups; ++g) {
      const std::vector<float> block(row + g * 16, row + std::min(cols, g * 16 + 16));
      const Chosen expected = reference_block(block, f, p.how);
      fours += expected.four;
      EXPECT_EQ(out.scales[static_cast<size_t>(r * groups + g)], expected.block.scale) << "row " << r << " block " << g;
      for (size_t i = 0; i < block.size(); ++i) {
        const int64_t k = g * 16 + static_cast<int64_t>(i);
        EXPECT_EQ(codes[k / 2] >> (k % 2 * 4) & 15, expected.block.codes[i])
            << "row " << r << " column " << k << " x " << block[i];
      }
      if (testing::Test::HasFailure()) return fours;
    }
    if (cols % 2 == 1) {
      EXPECT_EQ(codes[row_bytes - 1] >> 4, 0) << "row " << r;
    }
  }
  return fours;
}

// nvfp4 by a decode and by an encode factor, nvfp4_token.
std::vector<Problem> all_problems(float decode) {
  std::vector<Problem> problems;
  for (const FourOverSix& how : all_ways()) {
    problems.push_back({Coding::nvfp4, decode, false, how});
    problems.push_back({Coding::nvfp4, 1.0f / decode, true, how});
    problems.push_back({Coding::nvfp4_token, 1.0f, false, how});
  }
  return problems;
}

std::vector<float> random_rows(std::mt19937& rng, int64_t rows, int64_t cols, float spread) {
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> exponent(-spread, spread);
  std::vector<float> x;
  for (int64_t r = 0; r < rows; ++r) {
    const float scale = r == 3 ? 0.0f : std::exp2(exponent(rng));
    for (int64_t k = 0; k < cols; ++k) {
      float v = normal(rng) * scale;
      if (rng() % 64 == 0) v *= 1000;
      if (rng() % 4 == 0) v = round_to_bf16(v);
      if (rng() % 32 == 0) v = rng() % 2 ? 0.0f : -0.0f;
      x.push_back(v);
    }
  }
  return x;
}

TEST(FourOverSix, RandomRowsInEveryWay) {
  std::mt19937 rng = test::rng();
  int64_t fours = 0, blocks = 0;
  for (int64_t cols : {1, 2, 15, 16, 17, 48, 77, 304, 961}) {
    const auto x = random_rows(rng, 10, cols, 20.0f);
    const float decode = amax(x.data(), 10 * cols) / 2688 * (1 + (rng() % 100) / 100.0f);
    for (const Problem& p : all_problems(std::max(decode, FLT_MIN))) {
      fours += check_rows(p, x, 10, cols);
      blocks += 10 * ((cols + 15) / 16);
      if (HasFailure()) return;
    }
  }
  // Neither is rare: of normal values, a third of all blocks.
  EXPECT_GT(fours, blocks / 20);
  EXPECT_LT(fours, blocks * 19 / 20);
}

// Neighbours of values between which codes change, as FlashInfer's tests draw them, at every power of two.
TEST(FourOverSix, BoundariesAtEveryExponent) {
  constexpr int64_t kCols = 128;
  std::vector<float> row;
  for (int i = 0; i < kCols / 2; ++i) {
    const float base = -12.0f + 24.0f * static_cast<float>(i) / (kCols / 2 - 1);
    row.insert(row.end(), {base - 1e-3f, base + 1e-3f});
  }
  for (int e = -149; e <= 124; e += 3) {
    std::vector<float> x = row;
    for (float& v : x) v = std::ldexp(v, e);
    const double decode = std::ldexp(12.0 / 2688, e);
    for (const Problem& p : all_problems(static_cast<float>(std::clamp(decode, 0x1p-126, 0x1p125)))) {
      check_rows(p, x, 1, kCols);
      if (HasFailure()) return;
    }
  }
}

TEST(FourOverSix, ZerosAndTheLargestValues) {
  for (float v : {0.0f, -0.0f, FLT_TRUE_MIN, FLT_MIN, 65504.0f, 0x1.fep127f, FLT_MAX}) {
    std::vector<float> x(4 * 80, v);
    for (size_t i = 0; i < x.size(); i += 7) x[i] = -v;
    for (const Problem& p : all_problems(std::clamp(v / 2688, FLT_MIN, 0x1p125f))) {
      check_rows(p, x, 4, 80);
      if (HasFailure()) return;
    }
  }
}

TEST(FourOverSix, NanAndInfinityInEveryWay) {
  std::mt19937 rng = test::rng();
  auto x = random_rows(rng, 12, 77, 10.0f);
  for (float& v : x) {
    if (rng() % 50 == 0) v = rng() % 2 ? INFINITY : -INFINITY;
    if (rng() % 150 == 0) v = NAN;
  }
  for (const Problem& p : all_problems(0.0123f)) {
    check_rows(p, x, 12, 77);
    if (HasFailure()) return;
  }
}

// What the corner cases of docs/numerics.md mean here.
TEST(FourOverSix, NanMakesItsBlockNanAndInfinityTakesTheUsualScale) {
  for (const FourOverSix& how : all_ways()) {
    SCOPED_TRACE(text(how));
    const Problem p{Coding::nvfp4, 1.0f, false, how};
    std::vector<float> x;
    for (int block = 0; block < 3; ++block) x.insert(x.end(), {10, 20, 30, 40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
    x[16] = NAN;
    x[32] = -INFINITY;
    Output out(p, 1, 48), usual({Coding::nvfp4, 1.0f, false, {}}, 1, 48);
    quantize_into(out.to, x.data(), 0, 1);
    quantize_into(usual.to, x.data(), 0, 1);
    EXPECT_EQ(out.scales[0], 0x52);
    EXPECT_EQ(out.scales[1], 0x7f);
    EXPECT_EQ(out.scales[2], 0x7e);
    EXPECT_EQ(std::vector(out.codes.begin() + 8, out.codes.end()),
              std::vector(usual.codes.begin() + 8, usual.codes.end()));
    EXPECT_EQ(out.codes[16] & 15, 15);
  }
}

// The example of the paper: 10, 20, 30, 40 are 1, 2, 3, 4 times 10, while 40 / 6 is no e4m3 value. Where both scales
// are exact, the usual one is taken.
TEST(FourOverSix, KnownBlocks) {
  for (const FourOverSix& how : all_ways()) {
    SCOPED_TRACE(text(how));
    std::vector<float> x(32, 6.0f);
    std::copy_n(std::array{10.0f, 20.0f, 30.0f, -40.0f}.begin(), 4, x.begin());
    std::fill(x.begin() + 4, x.begin() + 16, 0.0f);
    Output out({Coding::nvfp4, 1.0f, false, how}, 1, 32);
    quantize_into(out.to, x.data(), 0, 1);
    EXPECT_EQ(out.scales[0], 0x52);  // 10
    EXPECT_EQ(out.codes[0], 0x42);
    EXPECT_EQ(out.codes[1], 0xe5);
    EXPECT_EQ(out.codes[2], 0);
    EXPECT_EQ(out.scales[1], 0x38);  // 1
    EXPECT_EQ(out.codes[8], 0x77);
    std::vector<float> read(32);
    dequantize_from(out.to, 0, 1, read.data());
    EXPECT_EQ(read, x);
  }
}

// Every part of the configuration changes some block: none is overlooked.
TEST(FourOverSix, EveryPartCounts) {
  std::mt19937 rng(46);
  constexpr int64_t kRows = 512, kCols = 512;
  const auto x = random_rows(rng, kRows, kCols, 4.0f);
  const auto scales = [&](const FourOverSix& how) {
    Output out({Coding::nvfp4_token, 1.0f, false, how}, kRows, kCols);
    quantize_into(out.to, x.data(), 0, kRows);
    return out.scales;
  };
  const FourOverSix base{true, 448, BlockError::mae, false};
  const auto by_default = scales(base);
  EXPECT_NE(scales({}), by_default);
  EXPECT_NE(scales({true, 256, BlockError::mae, false}), by_default);
  EXPECT_NE(scales({true, 448, BlockError::mse, false}), by_default);
  EXPECT_NE(scales({true, 448, BlockError::mae, true}), by_default);
}

// Rows do not depend on each other, and scales lie as the layout says, with zeros for its padding.
TEST(FourOverSix, LayoutsAndPartsOfRows) {
  std::mt19937 rng = test::rng();
  constexpr int64_t kRows = 37, kCols = 77, kGroups = 5;
  const auto x = random_rows(rng, kRows, kCols, 8.0f);
  for (Coding coding : {Coding::nvfp4, Coding::nvfp4_token}) {
    const Problem p{coding, 0.002f, false, {true, 256, BlockError::mse, false}};
    Output linear(p, kRows, kCols);
    quantize_into(linear.to, x.data(), 0, kRows);
    for (ScaleLayout layout : {ScaleLayout::swizzled_128x4, ScaleLayout::swizzled_8x4}) {
      Output out(p, kRows, kCols, layout);
      clear_scales(out.to);
      quantize_into(out.to, x.data() + 20 * kCols, 20, kRows - 20);
      quantize_into(out.to, x.data(), 0, 20);
      out.expect_margins();
      EXPECT_EQ(out.codes, linear.codes);
      EXPECT_EQ(out.row_scales, linear.row_scales);
      std::vector<uint8_t> placed(out.scales.size(), Output::kPoison);
      test::scales_from_linear(layout, linear.scales.data(), kRows, kGroups, placed.data());
      EXPECT_EQ(out.scales, placed);
    }
  }
}

TEST(FourOverSix, Refusals) {
  uint8_t codes[16], scales[1];
  const float x[32] = {};
  CodedTensor t;
  t.coding = Coding::mxfp4;
  t.rows = 1;
  t.cols = 32;
  t.codes = codes;
  t.scales = scales;
  check_coded(t);
  t.four_over_six.on = true;
  EXPECT_THROW(check_coded(t), Error);
  for (float scale : {0.0f, -1.0f, NAN, INFINITY}) {
    Output out({Coding::nvfp4, scale, false, {true, 448, BlockError::mae, false}}, 1, 32);
    EXPECT_THROW(quantize_into(out.to, x, 0, 1), Error);
  }
}

}  // namespace
}  // namespace sluice::format
