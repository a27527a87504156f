// SPDX-License-Identifier: Apache-2.0
// A norm with a product of its rows: the bits of the norm alone, and double sums of the rows that it stored.
#include <cmath>

#include "tests/ops/conformance.h"
#include "weights/quant_tensor.h"

namespace sluice::ops {
namespace {

weights::QuantTensor random_matrix(int64_t rows, int64_t cols) {
  weights::QuantTensor w = weights::make_quant_tensor(format::Format::bf16, 1, rows, cols);
  for (int64_t i = 0; i < rows * cols; ++i) w.codes.as<bf16_t>()[i] = float_to_bf16(normal(0, 0.2f));
  return w;
}

TEST_P(Conformance, AddRmsNormMultiply) {
  for (const DType d : {DType::bf16, DType::f32})
    for (const auto& [n, outputs] : {std::pair<int64_t, int64_t>{64, 16}, {200, 128}, {2688, 60}, {1024, 130}})
      for (const int64_t r : {1, 5, 16, 17})
        for (const DType logits : {DType::f32, d}) {
          SCOPED_TRACE(
              fmt::format("{} columns, {} outputs, {} rows, {} to {}", n, outputs, r, to_string(d), to_string(logits)));
          // A gap of 8 keeps the rows aligned for the kernels that ask for it.
          Rows x = rows(d, r, n, 8), change = rows(d, r, n, 8), y = rows(d, r, n, 8), z = rows(logits, r, outputs);
          Rows weight = vector(n, 0.5f, 1);
          x.randomize(3.0f), change.randomize(3.0f);
          Rows x_alone = x, y_alone = y;
          const RmsNorm norm{weight.tensor({n}), 1e-5f};
          const weights::QuantTensor matrix = random_matrix(outputs, n);
          LinearOptions options;
          options.dtype = d;
          const auto linear = make_linear(ctx, {&matrix, 1}, {}, options);
          ops->add_rms_norm_multiply(x.view(), change.view(), norm, y.view(), {}, {linear.get(), z.view()});
          ops->add_rms_norm(x_alone.view(), change.view(), norm, y_alone.view());
          EXPECT_TRUE(x.same_bytes(x_alone) && y.same_bytes(y_alone));
          EXPECT_TRUE(z.gaps_untouched());
          for (int64_t i = 0; i < r; ++i)
            for (int64_t o = 0; o < outputs; ++o) {
              double sum = 0, sizes = 0;
              for (int64_t c = 0; c < n; ++c) {
                const double product = y.at(i, c) * bf16_to_float(matrix.codes.as<bf16_t>()[o * n + c]);
                sum += product, sizes += std::abs(product);
              }
              // n terms in float32, and the rounding of a bfloat16 result.
              const double room =
                  sizes * static_cast<double>(n) * 0x1p-24 + (logits == DType::bf16 ? std::abs(sum) * 0x1p-8 : 0);
              ASSERT_NEAR(z.at(i, o), sum, room) << "row " << i << ", output " << o;
            }
        }
}

}  // namespace
}  // namespace sluice::ops
