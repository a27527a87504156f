// SPDX-License-Identifier: Apache-2.0
#include "ops/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "format/quantize_rows.h"
#include "format/quantize_weights.h"

namespace sluice::ops {
namespace {

using format::Format;
using format::InputFormat;

struct Case {
  Format weights;
  InputFormat input;
};
constexpr Case kCases[] = {{Format::bf16, InputFormat::plain},
                           {Format::fp8_tensor, InputFormat::fp8_static},
                           {Format::fp8_channel, InputFormat::fp8_token},
                           {Format::fp8_block, InputFormat::fp8_group},
                           {Format::mxfp8, InputFormat::mxfp8},
                           {Format::nvfp4, InputFormat::nvfp4},
                           {Format::nvfp4, InputFormat::nvfp4_token},
                           {Format::mxfp4, InputFormat::plain}};

std::vector<float> normal_values(std::mt19937_64& rng, int64_t n) {
  std::normal_distribution<float> d;
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = round_to_bf16(d(rng));
  return v;
}

Tensor to_bf16(const std::vector<float>& v) {
  Tensor t(DType::bf16, {static_cast<int64_t>(v.size())});
  for (size_t i = 0; i < v.size(); ++i) t.as<uint16_t>()[i] = float_to_bf16(v[i]);
  return t;
}

TEST(Linear, MatchesDoubleInEveryFormatAndType) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 rng(seed);
  ThreadPool pool(2);
  Context ctx{pool};
  for (const Case& c : kCases)
    for (const DType dtype : {DType::bf16, DType::f32})
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{5, 64}, {70, 290}, {130, 256}}) {
        weights::QuantTensor w = weights::make_quant_tensor(c.weights, 1, n, k);
        const std::vector<float> values = normal_values(rng, n * k);
        format::quantize_weight(c.weights, values.data(), n, k, w.codes.data(),
                                w.scales.empty() ? nullptr : w.scales.data(),
                                w.global.empty() ? nullptr : w.global.as<float>());
        Tensor bias(DType::f32, {n});
        for (int64_t i = 0; i < n; ++i) bias.as<float>()[i] = static_cast<float>(i) * 0.25f;
        LinearOptions options;
        options.inputs = c.input;
        options.dtype = dtype;
        options.input_scale = c.input == InputFormat::nvfp4 ? 4.5f / (448 * 6) : 4.5f / 448;
        const Linear linear(ctx, w, bias, options);
        EXPECT_EQ(linear.inputs(), k);
        EXPECT_EQ(linear.outputs(), n);
        const Tensor dense = dequantize(w);
        for (const int64_t tokens : {1, 3, 17, 140}) {
          SCOPED_TRACE(fmt::format("{} x {} {} n {} k {} T {}", info(c.weights).name,
                                   name_of(format::kInputFormats, c.input), to_string(dtype), n, k, tokens));
          std::vector<float> x = normal_values(rng, tokens * k);
          const Tensor xb = to_bf16(x);
          const void* data = dtype == DType::bf16 ? xb.data() : x.data();
          std::vector<float> y(static_cast<size_t>(tokens * n), NAN);
          linear.run(ctx, {data, dtype, tokens, k, k}, {y.data(), DType::f32, tokens, n, n});
          // bf16 output, into a wider matrix.
          std::vector<uint16_t> yb(static_cast<size_t>(tokens * (n + 3)), 0xffff);
          linear.run(ctx, {data, dtype, tokens, k, k}, {yb.data(), DType::bf16, tokens, n, n + 3});
          for (int64_t t = 0; t < tokens; ++t) {
            float* row = x.data() + t * k;
            std::vector<float> one(static_cast<size_t>(n), NAN);
            linear.run(
                ctx, {dtype == DType::bf16 ? static_cast<const void*>(xb.as<uint16_t>() + t * k) : row, dtype, 1, k, k},
                {one.data(), DType::f32, 1, n, n});
            ASSERT_EQ(0, std::memcmp(one.data(), y.data() + t * n, static_cast<size_t>(n) * 4)) << "alone, row " << t;
            format::round_row(c.input, row, k, options.input_scale);
            for (int64_t i = 0; i < n; ++i) {
              double sum = bias.as<float>()[i], size = std::abs(sum);
              for (int64_t j = 0; j < k; ++j) {
                const double product = double{dense.as<float>()[i * k + j]} * double{row[j]};
                sum += product;
                size += std::abs(product);
              }
              const float got = y[static_cast<size_t>(t * n + i)];
              ASSERT_NEAR(got, sum, size * std::exp2(-24) * (static_cast<double>(k) * 1.1 + 8)) << t << " " << i;
              ASSERT_EQ(yb[static_cast<size_t>(t * (n + 3) + i)], float_to_bf16(got));
            }
            for (int64_t i = n; i < n + 3; ++i) ASSERT_EQ(yb[static_cast<size_t>(t * (n + 3) + i)], 0xffff);
          }
        }
      }
}

TEST(Linear, LongBatchesAndNoRows) {
  ThreadPool pool(2);
  Context ctx{pool};
  std::mt19937_64 rng(3);
  const int64_t n = 20, k = 40, tokens = 2500;
  weights::QuantTensor w = weights::make_quant_tensor(Format::bf16, 1, n, k);
  const std::vector<float> values = normal_values(rng, n * k), x = normal_values(rng, tokens * k);
  format::quantize_weight(Format::bf16, values.data(), n, k, w.codes.data(), nullptr, nullptr);
  const Linear linear(ctx, w);
  std::vector<float> y(static_cast<size_t>(tokens * n), NAN);
  const Tensor xb = to_bf16(x);
  linear.run(ctx, {xb.data(), DType::bf16, tokens, k, k}, {y.data(), DType::f32, tokens, n, n});
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < k; ++j)
        sum += double{values[static_cast<size_t>(i * k + j)]} * double{x[static_cast<size_t>(t * k + j)]};
      ASSERT_NEAR(y[static_cast<size_t>(t * n + i)], sum, 1e-4);
    }
  linear.run(ctx, {xb.data(), DType::bf16, 0, k, k}, {y.data(), DType::f32, 0, n, n});
}

TEST(Linear, SaysWhatIsWrong) {
  ThreadPool pool(1);
  Context ctx{pool};
  const weights::QuantTensor w = weights::make_quant_tensor(Format::bf16, 1, 4, 8);
  w.codes.clone();
  Tensor(w.codes).zero();
  LinearOptions options;
  options.inputs = InputFormat::fp8_group;
  EXPECT_THROW(Linear(ctx, w, {}, options), Error);
  EXPECT_THROW(Linear(ctx, w, Tensor(DType::f32, {3})), Error);
  const Linear linear(ctx, w);
  float x[16] = {}, y[16] = {};
  EXPECT_THROW(linear.run(ctx, {x, DType::f32, 1, 7, 7}, {y, DType::f32, 1, 4, 4}), Error);
  EXPECT_THROW(linear.run(ctx, {x, DType::i32, 1, 8, 8}, {y, DType::f32, 1, 4, 4}), Error);
}

}  // namespace
}  // namespace sluice::ops
