// SPDX-License-Identifier: Apache-2.0
// The parts of a layer on the host through the shared library: specs, routing, shards, quantisers.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "sluice/sluice.hpp"
#include "tests/capi/arrays.h"

namespace {

const std::string kLine = "experts=5 top_k=2 hidden=64 inter=96 weights=bf16 dtype=float32 act=swiglu";

TEST(CapiParts, SpecsAndFormatsAsTheyAreRead) {
  auto info = SLUICE_INIT(sluice_moe_spec_info);
  ASSERT_EQ(sluice_moe_read_spec("experts=8 top_k=2 hidden=64 inter=32 weights=nvfp4 local_offset=2 local_experts=4 "
                                 "act=relu2 routed=1 finalize=0",
                                 &info),
            SLUICE_OK);
  EXPECT_EQ(
      std::vector<int64_t>({info.experts, info.top_k, info.hidden, info.inter, info.local_offset, info.local_experts}),
      std::vector<int64_t>({8, 2, 64, 32, 2, 4}));
  EXPECT_STREQ(info.weights, "nvfp4");
  EXPECT_STREQ(info.inputs, "nvfp4");
  EXPECT_EQ(info.dtype, SLUICE_BF16);
  EXPECT_EQ(std::vector<int>({info.gated, info.bias, info.act_params, info.routed, info.finalize}),
            std::vector<int>({0, 0, 0, 1, 0}));
  EXPECT_EQ(sluice_moe_read_spec("experts=8", &info), SLUICE_INVALID_ARGUMENT);

  auto format = SLUICE_INIT(sluice_format_info);
  ASSERT_EQ(sluice_format_get_info("nvfp4", &format), SLUICE_OK);
  EXPECT_EQ(std::vector<int>({format.bits, format.group_rows, format.group_cols, format.global_scale}),
            std::vector<int>({4, 1, 16, 1}));
  EXPECT_STREQ(format.code_type, "uint8");
  EXPECT_STREQ(format.scale_type, "float8_e4m3fn");
  EXPECT_STREQ(format.inputs, "nvfp4");
  ASSERT_EQ(sluice_format_get_info("bf16", &format), SLUICE_OK);
  EXPECT_STREQ(format.code_type, "bfloat16");
  EXPECT_STREQ(format.scale_type, "");
  EXPECT_EQ(sluice_format_get_info("bf17", &format), SLUICE_INVALID_ARGUMENT);
}

TEST(CapiParts, RoutesByTheDefinition) {
  const float logits[2][5] = {{1, -2, 3, 0.5f, 3}, {-1, -1, -4, -2, -3}};  // ties go to the smaller id
  int32_t ids[4] = {-7, -7, -7, -7};
  float weights[4];
  auto args = SLUICE_INIT(sluice_route_args);
  args.tokens = 2;
  args.logits = logits;
  args.ids = ids;
  args.weights = weights;
  ASSERT_EQ(sluice_route(kLine.c_str(), &args), SLUICE_OK);
  EXPECT_EQ(std::vector<int32_t>(ids, ids + 4), (std::vector<int32_t>{2, 4, 0, 1}));
  for (const float w : weights) EXPECT_EQ(w, 0.5f);

  expect_refusal(sluice_route((kLine + " routed=1").c_str(), &args),
                 "the spec says routed=1: its ids and weights are given, and there is nothing to route");
  args.bias = logits;
  expect_refusal(sluice_route(kLine.c_str(), &args), "a routing bias is given, but routing renormalize ignores it");
  args.bias = nullptr;
  args.logits = nullptr;
  expect_refusal(sluice_route(kLine.c_str(), &args), "args.logits is NULL; it must be given");
  args.tokens = -1;
  expect_refusal(sluice_route(kLine.c_str(), &args), "tokens is -1; it must be 0 or more");
}

// Codes do not depend on where the scales lie; a layout's padding is zero, and nothing after it is written.
TEST(CapiParts, QuantisesIntoEveryLayout) {
  std::mt19937 random = sluice::test::rng();
  sluice::Context context(2);
  constexpr int64_t kRows = 37, kCols = 80;
  const auto x = floats(random, kRows * kCols);
  const float input_scale = 0.002f;
  for (const char* coding : {"mxfp8", "nvfp4", "nvfp4_token", "mxfp4"}) {
    SCOPED_TRACE(coding);
    const bool four_bit = std::string(coding) != "mxfp8", rowwise = std::string(coding) == "nvfp4_token";
    const int64_t groups = std::string(coding).starts_with("nvfp4") ? 5 : 3;
    std::vector<uint8_t> linear_codes, linear_scales;
    for (const sluice_scale_layout layout : {SLUICE_SCALES_LINEAR, SLUICE_SCALES_128X4, SLUICE_SCALES_8X4}) {
      int64_t elements = 0;
      ASSERT_EQ(sluice_scale_elements(layout, kRows, groups, &elements), SLUICE_OK);
      std::vector<uint8_t> codes(static_cast<size_t>(kRows * kCols), 0xee);
      std::vector<uint8_t> scales(static_cast<size_t>(elements) + 3, 0xee);
      std::vector<float> row_scales(kRows, std::numeric_limits<float>::quiet_NaN());
      auto args = SLUICE_INIT(sluice_quantize_args);
      args.coding = coding;
      args.x = x.data();
      args.rows = kRows;
      args.cols = kCols;
      args.codes = codes.data();
      args.scales = scales.data();
      args.layout = layout;
      if (std::string(coding) == "nvfp4") args.input_scale = &input_scale;
      if (rowwise) args.row_scales = row_scales.data();
      ASSERT_EQ(sluice_quantize(context.get(), &args), SLUICE_OK) << sluice_last_error();
      if (four_bit) {
        EXPECT_EQ(codes[kRows * kCols / 2], 0xee);
      }
      EXPECT_EQ(scales[static_cast<size_t>(elements)], 0xee);
      scales.resize(static_cast<size_t>(elements));
      if (layout == SLUICE_SCALES_LINEAR) {
        linear_codes = codes;
        linear_scales = scales;
      }
      EXPECT_EQ(codes, linear_codes);
      // docs/numerics.md: element (m, k) of 128x4 and 8x4.
      std::vector<uint8_t> expected(static_cast<size_t>(elements), 0);
      const int64_t tall = layout == SLUICE_SCALES_128X4 ? 128 : 8, wide = (groups + 3) / 4;
      for (int64_t m = 0; m < kRows; ++m)
        for (int64_t k = 0; k < groups; ++k) {
          const int64_t in_tile = tall == 128 ? m % 32 * 16 + m % 128 / 32 * 4 + k % 4 : m % 8 * 4 + k % 4;
          const int64_t at =
              layout == SLUICE_SCALES_LINEAR ? m * groups + k : (m / tall * wide + k / 4) * (tall * 4) + in_tile;
          expected[static_cast<size_t>(at)] = linear_scales[static_cast<size_t>(m * groups + k)];
        }
      EXPECT_EQ(scales, expected);

      std::vector<float> back(x.size(), std::numeric_limits<float>::quiet_NaN());
      auto read = SLUICE_INIT(sluice_dequantize_args);
      read.coding = coding;
      read.rows = kRows;
      read.cols = kCols;
      read.codes = codes.data();
      read.scales = scales.data();
      read.layout = layout;
      read.input_scale = args.input_scale;
      read.row_scales = args.row_scales;
      read.x = back.data();
      ASSERT_EQ(sluice_dequantize(context.get(), &read), SLUICE_OK) << sluice_last_error();
      // At most half of the widest step: e2m1 has 2 between 4 and 6 of 6, e4m3 32 of 448; a power of two as the scale
      // wastes up to a factor of 2, an e4m3 one is off by up to 1/16.
      const int64_t group = groups == 5 ? 16 : 32;
      for (int64_t i = 0; i < kRows * kCols; ++i) {
        float amax = 0;
        const int64_t begin = i / kCols * kCols + i % kCols / group * group;
        for (int64_t j = begin; j < std::min(begin + group, (i / kCols + 1) * kCols); ++j)
          amax = std::max(amax, std::fabs(x[static_cast<size_t>(j)]));
        const float bound = four_bit ? amax / 3 : amax / 7;
        ASSERT_NEAR(back[static_cast<size_t>(i)], x[static_cast<size_t>(i)], bound) << "element " << i;
      }
    }
  }
}

TEST(CapiParts, QuantiserRefusals) {
  sluice::Context context(1);
  float x[4] = {1, 2, 3, 4}, row_scales[1];
  uint8_t codes[4], scales[4];
  auto args = SLUICE_INIT(sluice_quantize_args);
  args.coding = "fp8_token";
  args.x = x;
  args.rows = 1;
  args.cols = 4;
  args.codes = codes;
  const auto status = [&] { return sluice_quantize(context.get(), &args); };
  expect_refusal(status(), "fp8_token needs row_scales");
  args.row_scales = row_scales;
  EXPECT_EQ(status(), SLUICE_OK);
  args.scales = scales;
  expect_refusal(status(), "fp8_token takes no scales");
  args.coding = "mxfp8";
  expect_refusal(status(), "mxfp8 takes no row_scales");
  args.row_scales = nullptr;
  args.layout = SLUICE_SCALES_TRANSPOSED;
  expect_refusal(status(), "scales of mxfp8 do not come in layout transposed");
  args.layout = 9;
  expect_refusal(status(), "layout is 9; accepted: SLUICE_SCALES_LINEAR, _128X4, _8X4, _TRANSPOSED");
  args.layout = SLUICE_SCALES_LINEAR;
  args.input_scale = x;
  expect_refusal(status(), "mxfp8 takes no input_scale");
  args.coding = "nvfp4";
  args.input_scale = nullptr;
  expect_refusal(status(), "nvfp4 needs an input_scale");
  args.input_scale = x;
  args.encodes = 2;
  expect_refusal(status(), "args.encodes is 2; accepted: 0, 1");
  args.encodes = 1;
  args.coding = "fp8_static";
  args.scales = nullptr;
  expect_refusal(status(), "args.encodes is 1 with fp8_static; accepted with nvfp4");
  args.rows = -1;
  expect_refusal(status(), "the tensor is [-1, 4]; neither size may be negative");
}

// A power of two and its inverse, which is exact, mean the same. Callers of before the field have the decode factor.
TEST(CapiParts, AnEncodeFactorIsTheInverse) {
  std::mt19937 random = sluice::test::rng();
  sluice::Context context(1);
  const auto x = floats(random, 64);
  const float encode = 512, decode = 1 / encode;
  const auto quantised = [&](const float& input_scale, int encodes, size_t size) {
    std::vector<uint8_t> out(32 + 4);
    auto args = SLUICE_INIT(sluice_quantize_args);
    args.struct_size = size;
    args.coding = "nvfp4";
    args.x = x.data();
    args.rows = 1;
    args.cols = 64;
    args.input_scale = &input_scale;
    args.codes = out.data();
    args.scales = out.data() + 32;
    args.encodes = encodes;
    EXPECT_EQ(sluice_quantize(context.get(), &args), SLUICE_OK) << sluice_last_error();
    return out;
  };
  constexpr size_t kNow = sizeof(sluice_quantize_args), kBefore = offsetof(sluice_quantize_args, encodes);
  const auto expected = quantised(decode, 0, kNow);
  EXPECT_EQ(quantised(encode, 1, kNow), expected);
  EXPECT_EQ(quantised(decode, 1, kBefore), expected);
  EXPECT_NE(quantised(decode, 1, kNow), expected);
}

// 10, 20, 30, 40 are multiples of 10, which maps 40 to 4. Callers of before the field have the usual scale, 6.5.
TEST(CapiParts, FourOverSix) {
  sluice::Context context(1);
  const float x[16] = {10, 20, 30, -40};
  struct Result {
    std::vector<uint8_t> codes, scales;
    float row_scale;
  };
  const auto quantised = [&](const char* coding, const sluice_four_over_six* how,
                             size_t size = sizeof(sluice_quantize_args)) {
    Result r{std::vector<uint8_t>(9, 0xee), std::vector<uint8_t>(2, 0xee), -7.0f};
    const float one = 1;
    const bool token = std::string(coding) == "nvfp4_token";
    auto args = SLUICE_INIT(sluice_quantize_args);
    args.struct_size = size;
    args.coding = coding;
    args.x = x;
    args.rows = 1;
    args.cols = 16;
    args.input_scale = token ? nullptr : &one;
    args.codes = r.codes.data();
    args.scales = r.scales.data();
    args.row_scales = token ? &r.row_scale : nullptr;
    args.four_over_six = how;
    EXPECT_EQ(sluice_quantize(context.get(), &args), SLUICE_OK) << sluice_last_error();
    return r;
  };
  auto how = SLUICE_INIT(sluice_four_over_six);
  const std::vector<uint8_t> codes{0x42, 0xe5, 0, 0, 0, 0, 0, 0, 0xee};
  for (const char* error : {static_cast<const char*>(nullptr), "mae", "mse"})
    for (int fast : {0, 1}) {
      how.error = error;
      how.fast_error = fast;
      const Result r = quantised("nvfp4", &how);
      EXPECT_EQ(r.codes, codes);
      EXPECT_EQ(r.scales, (std::vector<uint8_t>{0x52, 0xee}));
    }
  const Result usual = quantised("nvfp4", nullptr);
  EXPECT_EQ(usual.scales[0], 0x4d);
  EXPECT_EQ(quantised("nvfp4", &how, offsetof(sluice_quantize_args, four_over_six)).scales, usual.scales);
  how.e4m3_max = 256;
  const Result row = quantised("nvfp4_token", &how);
  EXPECT_EQ(row.row_scale, 1.0f / (1536.0f / 40.0f));
  EXPECT_EQ(row.scales[0], 0x7c);  // 384, half as much again as 256
  EXPECT_EQ(row.codes, codes);
}

TEST(CapiParts, FourOverSixRefusals) {
  sluice::Context context(1);
  const float x[32] = {}, one = 1;
  uint8_t codes[16], scales[2];
  auto how = SLUICE_INIT(sluice_four_over_six);
  auto args = SLUICE_INIT(sluice_quantize_args);
  args.coding = "nvfp4";
  args.x = x;
  args.rows = 1;
  args.cols = 32;
  args.input_scale = &one;
  args.codes = codes;
  args.scales = scales;
  args.four_over_six = &how;
  const auto status = [&] { return sluice_quantize(context.get(), &args); };
  EXPECT_EQ(status(), SLUICE_OK) << sluice_last_error();
  how.e4m3_max = 384;
  expect_refusal(status(), "args.four_over_six.e4m3_max is 384; accepted: 256, 448");
  how.e4m3_max = 448;
  how.error = "max";
  expect_refusal(status(), "args.four_over_six.error is \"max\"; accepted: mae, mse");
  how.error = "mse";
  how.fast_error = 2;
  expect_refusal(status(), "args.four_over_six.fast_error is 2; accepted: 0, 1");
  how.fast_error = 1;
  args.coding = "mxfp4";
  args.input_scale = nullptr;
  expect_refusal(status(), "four_over_six is given with mxfp4; accepted with nvfp4, nvfp4_token");
  how.struct_size = 0;
  expect_refusal(status(), "args.four_over_six.struct_size is 0; set it with SLUICE_INIT, 24 bytes now");
}

// float32 and bfloat16 of the same numbers give the same bits, several matrices those of each.
TEST(CapiParts, WeightsOfEitherTypeAndAlone) {
  std::mt19937 random = sluice::test::rng();
  sluice::Context context(2);
  constexpr int64_t kL = 3, kN = 136, kK = 160;
  const auto narrow = bf16s(random, kL * kN * kK, 0.5f);
  std::vector<float> wide;
  for (const uint16_t v : narrow) wide.push_back(widen(v));
  for (const char* name : {"bf16", "fp8_tensor", "fp8_channel", "fp8_block", "mxfp8", "nvfp4", "mxfp4"}) {
    SCOPED_TRACE(name);
    auto f = SLUICE_INIT(sluice_format_info);
    ASSERT_EQ(sluice_format_get_info(name, &f), SLUICE_OK);
    const bool has_scales = f.scale_type[0] != '\0';
    const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
    const int64_t code_bytes = kN * kK * f.bits / 8, scale_size = std::string(f.scale_type) == "float32" ? 4 : 1;
    const int64_t scales_of_one =
        (f.group_rows ? ceil_div(kN, f.group_rows) : 1) * (f.group_cols ? ceil_div(kK, f.group_cols) : 1) * scale_size;
    struct Stored {
      std::vector<uint8_t> codes, scales;
      std::vector<float> global;
      bool operator==(const Stored&) const = default;
    };
    const auto quantize = [&](const void* values, sluice_dtype dtype, int64_t count) {
      Stored s{std::vector<uint8_t>(static_cast<size_t>(code_bytes * count), 0xee),
               std::vector<uint8_t>(has_scales ? static_cast<size_t>(scales_of_one * count) : 0, 0xee),
               std::vector<float>(f.global_scale ? static_cast<size_t>(count) : 0, -1.0f)};
      EXPECT_EQ(
          sluice_quantize_weights(context.get(), name, count, kN, kK, values, dtype, s.codes.data(),
                                  has_scales ? s.scales.data() : nullptr, f.global_scale ? s.global.data() : nullptr),
          SLUICE_OK)
          << sluice_last_error();
      return s;
    };
    const Stored all = quantize(wide.data(), SLUICE_F32, kL);
    EXPECT_EQ(all, quantize(narrow.data(), SLUICE_BF16, kL));
    Stored joined;
    for (int64_t i = 0; i < kL; ++i) {
      const Stored one = quantize(wide.data() + i * kN * kK, SLUICE_F32, 1);
      joined.codes.insert(joined.codes.end(), one.codes.begin(), one.codes.end());
      joined.scales.insert(joined.scales.end(), one.scales.begin(), one.scales.end());
      joined.global.insert(joined.global.end(), one.global.begin(), one.global.end());
    }
    EXPECT_EQ(all, joined);
    std::vector<float> back(wide.size(), std::numeric_limits<float>::quiet_NaN());
    const sluice_matrices from{all.codes.data(), has_scales ? all.scales.data() : nullptr,
                               f.global_scale ? all.global.data() : nullptr};
    ASSERT_EQ(sluice_dequantize_weights(context.get(), name, kL, kN, kK, &from, back.data()), SLUICE_OK);
    if (f.bits == 16) {
      EXPECT_EQ(back, wide);
    }
    float amax = 0;
    for (const float v : wide) amax = std::max(amax, std::fabs(v));
    for (size_t i = 0; i < back.size(); ++i) ASSERT_NEAR(back[i], wide[i], f.bits == 4 ? amax / 3 : amax / 7);
  }
  uint8_t some[8];
  expect_refusal(sluice_quantize_weights(context.get(), "mxfp4", 1, 2, 3, wide.data(), SLUICE_F32, some, some, nullptr),
                 "a mxfp4 matrix has 3 columns; 4-bit codes need an even number");
  expect_refusal(sluice_quantize_weights(context.get(), "bf16", 1, 1, 2, wide.data(), SLUICE_F32, some, some, nullptr),
                 "scales is given; weights of bf16 have none");
  expect_refusal(
      sluice_quantize_weights(context.get(), "mxfp8", 1, 1, 2, wide.data(), SLUICE_F32, some, nullptr, nullptr),
      "scales is NULL; weights of mxfp8 have them");
}

TEST(CapiParts, SizesBeyondAnAddressSpace) {
  sluice::Context context(1);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kPower = int64_t{1} << 32;
  int64_t elements = -7;
  for (const sluice_scale_layout layout :
       {SLUICE_SCALES_LINEAR, SLUICE_SCALES_128X4, SLUICE_SCALES_8X4, SLUICE_SCALES_TRANSPOSED}) {
    expect_refusal(sluice_scale_elements(layout, kPower, kPower, &elements),
                   "the scales are [4294967296, 4294967296]; accepted: at most 2^46 elements");
    expect_refusal(sluice_scale_elements(layout, kMost, 0, &elements),
                   "the scales are [9223372036854775807, 0]; accepted: at most 2^46 elements");
    expect_refusal(sluice_scale_elements(layout, 0, kMost, &elements),
                   "the scales are [0, 9223372036854775807]; accepted: at most 2^46 elements");
  }
  EXPECT_EQ(elements, -7);
  ASSERT_EQ(sluice_scale_elements(SLUICE_SCALES_128X4, int64_t{1} << 46, 1, &elements), SLUICE_OK);
  EXPECT_EQ(elements, int64_t{1} << 48);  // four columns

  // The products are 0 and 2^36 in 64 bits.
  float value = 1;
  uint16_t code = 0;
  const sluice_matrices from{&code, nullptr, nullptr};
  for (const std::array<int64_t, 3>& s :
       {std::array<int64_t, 3>{1, kPower, kPower}, {kPower, 1 << 16, 1 << 16}, {(kPower << 8) + 1, 1 << 18, 1 << 18}}) {
    const std::string sentence = "the weights are [" + std::to_string(s[0]) + ", " + std::to_string(s[1]) + ", " +
                                 std::to_string(s[2]) + "]; accepted: at most 2^46 elements";
    for (const sluice_dtype dtype : {SLUICE_F32, SLUICE_BF16})
      expect_refusal(
          sluice_quantize_weights(context.get(), "bf16", s[0], s[1], s[2], &value, dtype, &code, nullptr, nullptr),
          sentence);
    expect_refusal(sluice_dequantize_weights(context.get(), "bf16", s[0], s[1], s[2], &from, &value), sentence);
  }
  uint8_t codes = 0;
  auto args = SLUICE_INIT(sluice_quantize_args);
  args.coding = "fp8_token";
  args.x = &value;
  args.codes = &codes;
  args.row_scales = &value;
  args.rows = args.cols = kPower;
  expect_refusal(sluice_quantize(context.get(), &args),
                 "the tensor is [4294967296, 4294967296]; accepted: at most 2^46 elements");
}

// Each rank's part is a layer of its own, and their outputs add up to the whole layer's.
TEST(CapiParts, ShardsAddUp) {
  std::mt19937 random = sluice::test::rng();
  sluice::Context context(2);
  constexpr int64_t kE = 5, kH = 64, kI = 96, kT = 6;
  const auto up = bf16s(random, kE * kI * kH, 0.2f), gate = bf16s(random, kE * kI * kH, 0.2f);
  const auto down = bf16s(random, kE * kH * kI, 0.2f);
  const auto bias_up = floats(random, kE * kI, 0.1f), bias_gate = floats(random, kE * kI, 0.1f);
  const auto bias_down = floats(random, kE * kH, 0.1f);
  auto w = SLUICE_INIT(sluice_moe_weights);
  w.up.codes = up.data();
  w.gate.codes = gate.data();
  w.down.codes = down.data();
  w.bias_up = bias_up.data();
  w.bias_gate = bias_gate.data();
  w.bias_down = bias_down.data();
  const std::string line = kLine + " bias=1";
  const auto hidden = floats(random, kT * kH), logits = floats(random, kT * kE);
  auto args = SLUICE_INIT(sluice_moe_args);
  args.tokens = kT;
  args.hidden = hidden.data();
  args.logits = logits.data();
  const auto run = [&](const std::string& spec, const sluice_moe_weights& weights) {
    std::vector<float> y(kT * kH, std::numeric_limits<float>::quiet_NaN());
    args.output = y.data();
    sluice::MoeLayer(context, spec, weights).run(args);
    return y;
  };
  const auto whole = run(line, w);
  std::vector<double> sum(whole.size()), magnitude(whole.size());
  constexpr int kTp = 3, kEp = 2;
  for (int tp = 0; tp < kTp; ++tp)
    for (int ep = 0; ep < kEp; ++ep) {
      auto shard = SLUICE_INIT(sluice_shard);
      shard.tp_rank = tp;
      shard.tp_size = kTp;
      shard.ep_rank = ep;
      shard.ep_size = kEp;
      sluice_moe_shard* part = nullptr;
      ASSERT_EQ(sluice_moe_shard_create(line.c_str(), &w, &shard, &part), SLUICE_OK) << sluice_last_error();
      const std::string own = sluice::detail::read_text(
          [&](char* buffer, size_t size, size_t* needed) { return sluice_moe_shard_spec(part, buffer, size, needed); });
      EXPECT_NE(own.find("inter=32"), std::string::npos) << own;
      EXPECT_NE(own.find(ep == 0 ? "local_experts=3" : "local_offset=3 local_experts=2"), std::string::npos) << own;
      auto weights = SLUICE_INIT(sluice_moe_weights);
      ASSERT_EQ(sluice_moe_shard_weights(part, &weights), SLUICE_OK);
      const auto y = run(own, weights);
      for (size_t i = 0; i < y.size(); ++i) {
        sum[i] += y[i];
        magnitude[i] += std::fabs(y[i]);
      }
      sluice_moe_shard_destroy(part);
    }
  // Both sides are float32 sums of at most I + K * (I + 1) terms in another order; cancellation inside of the parts is
  // covered by the factor 64 on the magnitude of what is added here.
  for (size_t i = 0; i < sum.size(); ++i)
    EXPECT_NEAR(whole[i], sum[i], 64 * (magnitude[i] + 1) * 0x1p-24 * 8) << "element " << i;

  auto shard = SLUICE_INIT(sluice_shard);
  sluice_moe_shard* part = nullptr;
  shard.ep_size = 7;
  shard.ep_rank = 6;
  expect_refusal(sluice_moe_shard_create(line.c_str(), &w, &shard, &part),
                 "expert-parallel rank 6 of 7 would get none of 5 experts");
  shard.ep_rank = 7;
  expect_refusal(sluice_moe_shard_create(line.c_str(), &w, &shard, &part),
                 "expert-parallel rank 7 of 7; it must be at least 0 and below the size");
  EXPECT_EQ(part, nullptr);
  sluice_moe_shard_destroy(nullptr);
}

}  // namespace
