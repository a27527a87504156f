// SPDX-License-Identifier: Apache-2.0
// A product of several matrices below each other is that of each of them.
#include "tests/ops/linear_problem.h"
#include "weights/pad.h"

namespace sluice::ops {
namespace {

using format::Format;

// Matrices whose last groups of columns are short: those that can and cannot be put below each other, on the host and
// in the device's memory.
TEST_P(Conformance, LinearOfColumnsThatFillNoGroups) {
  constexpr int64_t kCols = 72, kTokens = 19;
  for (const auto& [weights, inputs] : format_pairs())
    for (const float size : {1.0f, 5.0f}) {
      if (weights::small_group(weights) == 1) continue;
      SCOPED_TRACE(fmt::format("{} size of the second {}", name(weights, inputs), size));
      std::vector<weights::QuantTensor> parts{random_weights(weights, 40, kCols),
                                              random_weights(weights, 7, kCols, size)};
      if (size == 1 && !parts[0].global.empty()) parts[1].global = parts[0].global;
      const LinearOptions options = options_for(inputs, DType::bf16);
      const auto linear = try_linear(*this, parts, {}, options);
      if (linear == nullptr) continue;
      Rows x = rows(DType::bf16, kTokens, kCols), y = rows(DType::f32, kTokens, 47), same = y;
      x.randomize();
      run(*this, *linear, x.view(), y.view());
      check_product(dequantized(parts), nullptr, x, options, y);
      for (weights::QuantTensor& part : parts) {
        part.codes = part.codes.to(ctx.device().id(), *queue);
        part.scales = part.scales.to(ctx.device().id(), *queue);
        queue->wait();
      }
      run(*this, *make_linear(ctx, parts, {}, options), x.view(), same.view());
      ASSERT_TRUE(same.same_bytes(y)) << "weights of the device";
    }
}

TEST_P(Conformance, LinearOfPartsIsThatOfTheirConcatenation) {
  struct Sizes {
    std::vector<int64_t> rows;
    bool equal_scales;  // of whole matrices: they fit one tensor
  };
  constexpr int64_t kCols = 160;
  for (const auto& [weights, inputs] : format_pairs())
    for (const DType dtype : kTypes)
      for (const Sizes& sizes :
           {Sizes{{128, 256, 128}, true}, {{40, 7, 130}, true}, {{1, 33, 20}, false}, {{96, 5}, false}}) {
        SCOPED_TRACE(fmt::format("{} {} {} parts, the first of {} rows, equal scales {}", name(weights, inputs),
                                 to_string(dtype), sizes.rows.size(), sizes.rows[0], sizes.equal_scales));
        std::vector<weights::QuantTensor> parts;
        float size = 1;
        int64_t total = 0;
        for (const int64_t n : sizes.rows) {
          parts.push_back(random_weights(weights, n, kCols, sizes.equal_scales ? 1 : size));
          size *= 5;
          total += n;
          if (!sizes.equal_scales) continue;
          if (!parts[0].global.empty()) parts.back().global = parts[0].global;
          if (weights == Format::fp8_tensor) parts.back().scales = parts[0].scales;
        }
        Tensor bias(DType::f32, {total});
        for (int64_t i = 0; i < total; ++i) bias.as<float>()[i] = normal();
        LinearOptions options = options_for(inputs, dtype);
        options.deterministic = true;
        const auto joined = try_linear(*this, parts, bias, options);
        if (joined == nullptr) continue;
        ASSERT_EQ(joined->outputs(), total);
        Rows x = rows(dtype, 19, kCols), y = rows(DType::f32, 19, total), singles = y;
        x.randomize();
        run(*this, *joined, x.view(), y.view());

        int64_t first = 0;
        for (const weights::QuantTensor& part : parts) {
          Tensor own(DType::f32, {part.rows});
          std::copy_n(bias.as<float>() + first, part.rows, own.as<float>());
          const auto single = make_linear(ctx, {&part, 1}, own, options);
          run(*this, *single, x.view(), singles.view().columns(first, part.rows));
          first += part.rows;
        }
        ASSERT_TRUE(singles.same_bytes(y)) << "single products";
        if (const auto one = weights::concatenate_rows(parts)) {
          Rows again = rows(DType::f32, 19, total);
          run(*this, *make_linear(ctx, {&*one, 1}, bias, options), x.view(), again.view());
          ASSERT_TRUE(again.same_bytes(y)) << "one matrix";
        }
        const Tensor dense = dequantized(parts);  // and the values
        Rows bias_row = rows(DType::f32, 1, total);
        for (int64_t i = 0; i < total; ++i) bias_row.set(0, i, bias.as<float>()[i]);
        check_product(dense, &bias_row, x, options, y);
        // One row and a bfloat16 result.
        check_rounding_and_rows(*this, *joined, dense, &bias_row, options, x, y, true);
      }
}

}  // namespace
}  // namespace sluice::ops
