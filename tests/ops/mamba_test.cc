// SPDX-License-Identifier: Apache-2.0
// Convolution and state recurrence against the definition in doubles; states in slots, tentative rows.
#include <algorithm>
#include <numeric>

#include "ops/mamba.h"
#include "tests/ops/reference.h"

namespace sluice::ops {
namespace {

struct Slots {
  std::vector<float> data;
  std::vector<int32_t> order;
  StateSlots view;
  Slots(int slots, int64_t versions, int64_t floats) : data(slots * versions * floats, NAN), order(slots * versions) {
    for (int s = 0; s < slots; ++s) std::iota(order.begin() + s * versions, order.begin() + (s + 1) * versions, 0);
    view = {data.data(), floats, versions, order.data()};
  }
};

const MambaShape kShapes[] = {{8, 64, 2, 32, 4}, {6, 20, 1, 24, 3}, {4, 7, 4, 5, 1}, {2, 130, 1, 16, 2}};

TEST(CausalConv, AgainstDoubles) {
  Context ctx = test_context();
  for (const DType d : kTypes)
    for (const MambaShape& shape : kShapes)
      for (const bool with_bias : {false, true}) {
        const int64_t n = shape.channels(), rows = 9;
        Rows x(d, rows, n), y(DType::f32, rows, n);
        x.randomize();
        std::vector<float> weight(shape.taps * n), bias(n);
        for (float& w : weight) w = std::normal_distribution<float>(0, 0.5)(random());
        for (float& b : bias) b = std::normal_distribution<float>(0, 0.5)(random());
        Slots states(3, 1, (shape.taps - 1) * n);
        std::fill(states.data.begin(), states.data.end(), 0.0f);
        // Two sequences, the second in three calls.
        const auto run = [&](int64_t first, std::vector<std::pair<int, int64_t>> parts) {
          std::vector<Sequence> sequences;
          for (const auto& [slot, count] : parts) {
            sequences.push_back({slot, first, count, 0, {}, false});
            first += count;
          }
          causal_conv(ctx, shape, x.view(), weight.data(), with_bias ? bias.data() : nullptr, sequences, states.view,
                      y.view());
        };
        run(0, {{2, 3}, {0, 1}});
        run(4, {{0, 3}});
        run(7, {{0, 2}});
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t begin = r < 3 ? 0 : 3;
          for (int64_t c = 0; c < n; ++c) {
            double sum = with_bias ? bias[c] : 0.0, size = std::abs(sum);
            for (int64_t t = 0; t < shape.taps; ++t) {
              const int64_t from = r - (shape.taps - 1) + t;
              if (from < begin) continue;
              sum += weight[t * n + c] * x.at(from, c);
              size += std::abs(weight[t * n + c] * x.at(from, c));
            }
            const double silu = sum / (1 + std::exp(-sum));
            // The derivative of SiLU is below 1.1; D rounds the sum and the result.
            ASSERT_NEAR(y.at(r, c), silu,
                        size * (8 * 0x1p-24 + 1.1 * half_ulp(d)) + std::abs(silu) * (half_ulp(d) + 8 * 0x1p-24))
                << r << " " << c;
          }
        }
      }
}

TEST(StateScan, AgainstDoublesAndTentativeRows) {
  Context ctx = test_context();
  for (const DType d : kTypes)
    for (const MambaShape& shape : kShapes) {
      const int64_t rows = 12, size = shape.state * shape.head_dim;
      Rows xbc(DType::f32, rows, shape.channels()), dt(d, rows, shape.heads), y(DType::f32, rows, shape.inner());
      xbc.randomize(), dt.randomize(2.0f);
      std::vector<float> dt_bias(shape.heads), a(shape.heads), skip(shape.heads);
      for (int64_t h = 0; h < shape.heads; ++h) {
        dt_bias[h] = std::normal_distribution<float>(0, 1)(random());
        a[h] = -std::exp(std::normal_distribution<float>(0, 0.5)(random()));
        skip[h] = std::normal_distribution<float>(1, 0.5)(random());
      }
      Slots states(2, 4, shape.heads * size);
      for (int64_t i = 0; i < states.view.floats; ++i) states.view.at(1, 0)[i] = 0;
      const auto scan = [&](int64_t first, int64_t count, bool tentative, Matrix out) {
        const Sequence s{1, first, count, 0, {}, tentative};
        state_scan(ctx, shape, xbc.view(), dt.view(), dt_bias.data(), a.data(), skip.data(), {&s, 1}, states.view, out);
      };
      // Rows 0-4; rows 5-7 tentatively, of which two count; rows 7-8 tentatively, none counts; the rest.
      Rows scrap(DType::f32, rows, shape.inner());
      scan(0, 5, false, y.view());
      scan(5, 3, true, y.view());
      std::swap(states.order[4], states.order[4 + 2]);
      scan(7, 2, true, scrap.view());
      scan(7, 5, false, y.view());
      for (int64_t h = 0; h < shape.heads; ++h) {
        const int64_t g = h / (shape.heads / shape.groups);
        std::vector<double> state(static_cast<size_t>(size), 0.0), error(static_cast<size_t>(size), 0.0);
        for (int64_t r = 0; r < rows; ++r) {
          const double z = dt.at(r, h) + dt_bias[h], step = std::log1p(std::exp(z)), decay = std::exp(step * a[h]);
          for (int64_t p = 0; p < shape.head_dim; ++p) {
            const double x = xbc.at(r, h * shape.head_dim + p);
            double sum = skip[h] * x, bound = std::abs(sum) * 4 * 0x1p-24;
            for (int64_t n = 0; n < shape.state; ++n) {
              const double b = xbc.at(r, shape.inner() + g * shape.state + n);
              const double c = xbc.at(r, shape.inner() + (shape.groups + g) * shape.state + n);
              double& s = state[n * shape.head_dim + p];
              double& e = error[n * shape.head_dim + p];
              s = s * decay + step * x * b;
              // Each step rounds decay, step and three products: some ulp of both terms, carried along.
              e = e * decay +
                  (std::abs(s * decay) * (4 + 4 * std::abs(step * a[h])) + std::abs(step * x * b) * 8) * 0x1p-24;
              sum += s * c;
              bound += std::abs(c) * e + std::abs(s * c) * (static_cast<double>(shape.state) + 4) * 0x1p-24;
            }
            ASSERT_NEAR(y.at(r, h * shape.head_dim + p), sum, 2 * bound + 1e-30) << "row " << r << " head " << h;
          }
        }
      }
      EXPECT_TRUE(y.gaps_untouched());
    }
}

}  // namespace
}  // namespace sluice::ops
