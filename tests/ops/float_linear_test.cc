// SPDX-License-Identifier: Apache-2.0
// Matrix products in float32 throughout.
#include "tests/ops/linear_problem.h"

namespace sluice::ops {
namespace {

TEST_P(Conformance, FloatLinear) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{8, 64}, {5, 33}, {1, 1}, {200, 1030}})
    for (const bool with_bias : {false, true}) {
      Tensor weight(DType::f32, {n, k}), bias(DType::f32, {n});
      for (int64_t i = 0; i < n * k; ++i) weight.as<float>()[i] = normal();
      Rows bias_row = rows(DType::f32, 1, n);
      bias_row.randomize();
      for (int64_t i = 0; i < n; ++i) bias.as<float>()[i] = static_cast<float>(bias_row.at(0, i));
      const auto linear = make_float_linear(ctx, weight, with_bias ? bias : Tensor{});
      EXPECT_EQ(linear->inputs(), k);
      EXPECT_EQ(linear->outputs(), n);
      EXPECT_GE(linear->weight_bytes(), n * k * 4);
      for (const DType d : kTypes)
        for (const int64_t tokens : {1, 3, 17, 70}) {
          SCOPED_TRACE(fmt::format("{} n {} k {} T {} bias {}", to_string(d), n, k, tokens, with_bias));
          Rows x = rows(d, tokens, k), y = rows(DType::f32, tokens, n);
          x.randomize();
          run(*this, *linear, x.view(), y.view());
          // Multiplied as they are: float32 throughout whatever the type of x.
          LinearOptions options;
          options.dtype = DType::f32;
          check_product(weight, with_bias ? &bias_row : nullptr, x, options, y);
          check_rounding_and_rows(*this, *linear, weight, with_bias ? &bias_row : nullptr, options, x, y, true);
        }
      int64_t last = 0;
      for (int64_t t = 0; t < 200; ++t) {
        const int64_t bytes = linear->workspace_bytes(t);
        ASSERT_GE(bytes, last);
        last = bytes;
      }
      Rows x = rows(DType::f32, 3, k), y = rows(DType::f32, 3, n);
      run(*this, *linear, x.view(0, 0), y.view(0, 0));
      const int64_t bytes = linear->workspace_bytes(3);
      if (bytes > 0) {
        Memory workspace(*queue, bytes);
        EXPECT_THROW(linear->run(ctx, x.view(), y.view(), workspace.device(), bytes - 1), Error);
      }
      EXPECT_TRUE(y.row_untouched(0) && y.gaps_untouched());
    }
  EXPECT_THROW(make_float_linear(ctx, Tensor(DType::f32, {3}).zero()), Error);
  EXPECT_THROW(make_float_linear(ctx, Tensor(DType::bf16, {3, 2}).zero()), Error);
  EXPECT_THROW(make_float_linear(ctx, Tensor(DType::f32, {3, 2}).zero(), Tensor(DType::f32, {2}).zero()), Error);
}

}  // namespace
}  // namespace sluice::ops
