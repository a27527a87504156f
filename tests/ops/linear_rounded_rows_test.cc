// SPDX-License-Identifier: Apache-2.0
// Products of rows that a norm has rounded already.
#include "tests/ops/linear_problem.h"

namespace sluice::ops {
namespace {

using format::InputFormat;

// Codes that a norm made of the rows give the bits that the rows give, or, where a kernel of another order of sums may
// take them, values within the same bounds. Codes of another rounding are not read.
TEST_P(Conformance, LinearOfRoundedRowsIsThatOfTheirValues) {
  for (const auto& [weights, inputs] : format_pairs())
    for (const DType dtype : kTypes)
      for (const auto& [k, tokens] : {std::pair<int64_t, int64_t>{264, 3}, {128, 17}, {2048, 70}, {264, 300}})
        for (const bool deterministic : {true, false}) {
          SCOPED_TRACE(fmt::format("{} {} K {} T {} deterministic {}", name(weights, inputs), to_string(dtype), k,
                                   tokens, deterministic));
          const std::vector<weights::QuantTensor> parts{random_weights(weights, 40, k), random_weights(weights, 8, k)};
          LinearOptions options = options_for(inputs, dtype);
          options.deterministic = deterministic;
          const auto linear = try_linear(*this, parts, {}, options);
          if (linear == nullptr) continue;
          const Rounding wanted = linear->rounding(tokens);
          EXPECT_FALSE(wanted && ctx.device().id().is_host());
          EXPECT_TRUE(!wanted || wanted.format == inputs);
          Rows x = rows(dtype, tokens, k, 0), normed = rows(dtype, tokens, k, 0), weight = vector(k, 0.5f, 1);
          Rows y = rows(DType::f32, tokens, 48), same = y, other = y;
          x.randomize();
          const auto codes = [&](const Rounding& rounding) {
            const RoundedRows out = ops->workspace().rounded_rows(rounding, tokens, k);
            ops->rms_norm(x.view(), {weight.tensor({k})}, normed.view(), out);
            return out;
          };
          const auto run_coded = [&](const RoundedRows& rounded, Rows& to) {
            const int64_t bytes = linear->workspace_bytes(tokens);
            Memory workspace(*queue, bytes);
            linear->run(ctx, {normed.view(), rounded}, to.view(), workspace.device(), bytes);
            queue->wait();
          };
          const Workspace::Scope scope(ops->workspace());
          const RoundedRows rounded = codes(wanted);
          run_coded({}, y);
          run_coded(rounded, same);
          if (deterministic || ctx.device().id().is_host())
            ASSERT_TRUE(y.same_bytes(same));
          else
            check_product(dequantized(parts), nullptr, normed, options, same);
          run_coded(codes({InputFormat::fp8_static, 7.0f}), other);
          ASSERT_TRUE(y.same_bytes(other)) << "with codes of another rounding";
        }
}

}  // namespace
}  // namespace sluice::ops
