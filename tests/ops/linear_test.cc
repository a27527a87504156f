// SPDX-License-Identifier: Apache-2.0
// Matrix products in every pair of formats, types and sizes of rows.
#include "tests/ops/linear_problem.h"

namespace sluice::ops {
namespace {

using format::Format;

void check_linear(Conformance& t, Format weights, LinearOptions options, int64_t n, int64_t k) {
  const std::vector<weights::QuantTensor> parts{random_weights(weights, n, k)};
  Rows bias = t.rows(DType::f32, 1, n, 0);
  for (int64_t i = 0; i < n; ++i) bias.set(0, i, static_cast<double>(i) * 0.25);
  Tensor host_bias(DType::f32, {n});
  for (int64_t i = 0; i < n; ++i) host_bias.as<float>()[i] = static_cast<float>(bias.at(0, i));
  const auto linear = try_linear(t, parts, host_bias, options);
  if (linear == nullptr) {  // a format that the device does not run in any size
    EXPECT_EQ(try_linear(t, std::vector{random_weights(weights, 128, 128)}, {}, options), nullptr)
        << name(weights, options.inputs) << " n " << n << " k " << k;
    return;
  }
  EXPECT_EQ(linear->inputs(), k);
  EXPECT_EQ(linear->outputs(), n);
  EXPECT_GE(linear->weight_bytes(), n * k * info(weights).bits / 8);
  const Tensor dense = dequantize(parts[0]);
  for (const int64_t tokens : {1, 3, 17, 140}) {
    SCOPED_TRACE(fmt::format("{} {} n {} k {} T {} deterministic {}", name(weights, options.inputs),
                             to_string(options.dtype), n, k, tokens, options.deterministic));
    Rows x = t.rows(options.dtype, tokens, k), y = t.rows(DType::f32, tokens, n);
    x.randomize();
    run(t, *linear, x.view(), y.view());
    check_product(dense, &bias, x, options, y);
    check_rounding_and_rows(t, *linear, dense, &bias, options, x, y, options.deterministic);
  }
}

TEST_P(Conformance, LinearInEveryFormatAndType) {
  for (const auto& [weights, inputs] : format_pairs())
    for (const DType dtype : kTypes)
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{5, 64}, {70, 290}, {33, 40}, {130, 256}, {1, 2}})
        for (const bool deterministic : {true, false}) {
          // Without it only the size of the sums' errors counts: one shape shows that.
          if (!deterministic && n != 70) continue;
          LinearOptions options = options_for(inputs, dtype);
          options.deterministic = deterministic;
          check_linear(*this, weights, options, n, k);
        }
}

TEST_P(Conformance, LinearTakesBothTypesOfInputs) {
  // x of the other type than the run's: `plain` rounds it to the run's type, the others round it as it is.
  for (const auto& [weights, inputs] : format_pairs())
    for (const DType dtype : kTypes) {
      SCOPED_TRACE(fmt::format("{} {}", name(weights, inputs), to_string(dtype)));
      const std::vector<weights::QuantTensor> parts{random_weights(weights, 33, 96)};
      const LinearOptions options = options_for(inputs, dtype);
      const auto linear = try_linear(*this, parts, {}, options);
      if (linear == nullptr) continue;
      Rows x = rows(dtype == DType::f32 ? DType::bf16 : DType::f32, 5, 96), y = rows(DType::f32, 5, 33);
      x.randomize();
      run(*this, *linear, x.view(), y.view());
      check_product(dequantize(parts[0]), nullptr, x, options, y);
    }
}

// Rows so long that a GPU, which pads them, takes the largest batch in two pieces.
TEST_P(Conformance, LinearOfLongRowsThatFillNoGroups) {
  LinearOptions options;
  options.deterministic = true;
  check_linear(*this, Format::mxfp4, options, 2, 33010);
}

TEST_P(Conformance, LinearOfLongBatchesAndNoRows) {
  const int64_t n = 20, k = 40, tokens = 2500;
  const std::vector<weights::QuantTensor> parts{random_weights(Format::bf16, n, k)};
  const auto linear = make_linear(ctx, parts);
  const Tensor dense = dequantize(parts[0]);
  Rows x = rows(DType::bf16, tokens, k), y = rows(DType::f32, tokens, n);
  x.randomize();
  run(*this, *linear, x.view(), y.view());
  check_product(dense, nullptr, x, {}, y);
  EXPECT_TRUE(y.gaps_untouched());
  const Rows before = y;
  run(*this, *linear, x.view(0, 0), y.view(0, 0));
  EXPECT_TRUE(y.same_bytes(before));
}

// Whether blocks leave room for those of the operation ahead does not show. The matrix is wide enough for that.
TEST_P(Conformance, LinearAfterMuchReading) {
  for (const auto& [weights, inputs] : {std::pair{Format::bf16, format::InputFormat::plain},
                                        {Format::fp8_channel, format::InputFormat::fp8_token},
                                        {Format::fp8_block, format::InputFormat::fp8_group}}) {
    const std::vector<weights::QuantTensor> parts{random_weights(weights, 2048, 1024)};
    const auto linear = try_linear(*this, parts, {}, options_for(inputs, DType::bf16));
    if (linear == nullptr) continue;
    for (const int64_t tokens : {1, 8, 9, 40}) {
      SCOPED_TRACE(fmt::format("{} T {}", name(weights, inputs), tokens));
      Rows x = rows(DType::bf16, tokens, 1024), y = rows(DType::bf16, tokens, 2048), after = y;
      x.randomize();
      run(*this, *linear, x.view(), y.view());
      LinearInput input = x.view();
      input.bytes_ahead = int64_t{1} << 40;
      run(*this, *linear, input, after.view());
      EXPECT_TRUE(after.same_bytes(y));
    }
  }
}

TEST_P(Conformance, LinearBiasInBfloat16) {
  const std::vector<weights::QuantTensor> parts{random_weights(Format::bf16, 21, 32)};
  Tensor narrow(DType::bf16, {21}), wide(DType::f32, {21});
  for (int64_t i = 0; i < 21; ++i) {
    narrow.as<bf16_t>()[i] = float_to_bf16(normal());
    wide.as<float>()[i] = bf16_to_float(narrow.as<bf16_t>()[i]);
  }
  Rows x = rows(DType::bf16, 3, 32), y = rows(DType::f32, 3, 21), same = y;
  x.randomize();
  run(*this, *make_linear(ctx, parts, narrow), x.view(), y.view());
  run(*this, *make_linear(ctx, parts, wide), x.view(), same.view());
  EXPECT_TRUE(y.same_bytes(same));
}

}  // namespace
}  // namespace sluice::ops
