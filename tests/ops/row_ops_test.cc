// SPDX-License-Identifier: Apache-2.0
// Norms, rotary embedding, element-wise operations, exp.
#include <complex>
#include <numbers>

#include "ops/elementwise.h"
#include "ops/exp.h"
#include "ops/norm.h"
#include "ops/rope.h"
#include "ops/workspace.h"
#include "tests/ops/reference.h"

namespace sluice::ops {
namespace {

TEST(Exp, TwoUlpEverywhereAndTheEdges) {
  double worst = 0;
  for (uint32_t bits = 0; bits < 0x42b20000u; bits += 97) {  // up to 89
    for (const float x : {std::bit_cast<float>(bits), -std::bit_cast<float>(bits)}) {
      const double exact = std::exp(static_cast<double>(x));
      const float y = exp_float(x);
      if (exact > 3.4028234e38) {
        ASSERT_EQ(y, INFINITY) << x;
      } else if (exact < 1.1754944e-38) {
        ASSERT_LE(y, 1.1754944e-38f) << x;
      } else {
        worst = std::max(worst, std::abs(y - exact) / exact);
      }
    }
  }
  EXPECT_LE(worst, 2 * 0x1p-23);
  EXPECT_EQ(exp_float(0.0f), 1.0f);
  EXPECT_EQ(exp_float(-INFINITY), 0.0f);
  EXPECT_EQ(exp_float(INFINITY), INFINITY);
  EXPECT_EQ(exp_float(-1e30f), 0.0f);
  EXPECT_TRUE(std::isnan(exp_float(NAN)));
}

// Sums of n squares in 16 lanes: relative error at most (n / 16 + 4) ulp, half of it after the square root.
double sum_error(int64_t n) { return (static_cast<double>(n) / 16 + 8) * 0x1p-24; }

TEST(RmsNorm, AgainstDoubles) {
  Context ctx = test_context();
  for (const DType d : kTypes)
    for (const int64_t n : {1, 7, 16, 17, 63, 256, 1000, 1024, 1025, 3000}) {
      Rows x(d, 3, n), y(d, 3, n);
      x.randomize(3.0f);
      std::vector<float> weight(n);
      for (float& w : weight) w = std::normal_distribution<float>(1, 0.5)(random());
      rms_norm(ctx, x.view(), weight.data(), 1e-5f, y.view());
      for (int64_t r = 0; r < 3; ++r) {
        double sum = 0;
        for (int64_t c = 0; c < n; ++c) sum += x.at(r, c) * x.at(r, c);
        const double factor = 1 / std::sqrt(sum / static_cast<double>(n) + static_cast<double>(1e-5f));
        for (int64_t c = 0; c < n; ++c) {
          const double exact = x.at(r, c) * factor * weight[c];
          ASSERT_NEAR(y.at(r, c), exact, std::abs(exact) * (2.01 * half_ulp(d) + sum_error(n) + 4 * 0x1p-24)) << n;
        }
      }
      EXPECT_TRUE(y.gaps_untouched());
    }
}

TEST(RmsNorm, HeadsAreRowsOfTheirOwn) {
  Context ctx = test_context();
  for (const DType d : kTypes) {
    const int64_t head = 18, heads = 5;
    Rows x(d, 4, head * heads), one(d, 1, head), expected(d, 1, head);
    x.randomize();
    const Rows before = x;
    std::vector<float> weight(head);
    for (float& w : weight) w = std::normal_distribution<float>(1, 0.5)(random());
    rms_norm_heads(ctx, x.view(), head, weight.data(), 1e-6f);
    for (int64_t r = 0; r < 4; ++r)
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t c = 0; c < head; ++c) one.set(0, c, static_cast<float>(before.at(r, h * head + c)));
        rms_norm(ctx, one.view(), weight.data(), 1e-6f, expected.view());
        for (int64_t c = 0; c < head; ++c) ASSERT_EQ(x.at(r, h * head + c), expected.at(0, c));
      }
    EXPECT_TRUE(x.gaps_untouched());
  }
}

TEST(GatedGroupRmsNorm, AgainstDoubles) {
  Context ctx = test_context();
  for (const DType d : kTypes)
    for (const auto& [n, groups] : {std::pair<int64_t, int64_t>{120, 1}, {512, 2}, {2600, 2}, {60, 3}}) {
      Rows x(DType::f32, 3, n), gate(d, 3, n), y(d, 3, n);
      x.randomize(2.0f);
      gate.randomize(2.0f);
      std::vector<float> weight(n);
      for (float& w : weight) w = std::normal_distribution<float>(1, 0.5)(random());
      gated_group_rms_norm(ctx, x.view(), gate.view(), groups, weight.data(), 1e-5f, y.view());
      const int64_t size = n / groups;
      for (int64_t r = 0; r < 3; ++r)
        for (int64_t g = 0; g < groups; ++g) {
          const auto value = [&](int64_t c) { return x.at(r, c) * gate.at(r, c) / (1 + std::exp(-gate.at(r, c))); };
          double sum = 0;
          for (int64_t c = g * size; c < (g + 1) * size; ++c) sum += value(c) * value(c);
          const double factor = 1 / std::sqrt(sum / static_cast<double>(size) + static_cast<double>(1e-5f));
          for (int64_t c = g * size; c < (g + 1) * size; ++c) {
            const double exact = value(c) * factor * weight[c];
            ASSERT_NEAR(y.at(r, c), exact, std::abs(exact) * (1.01 * half_ulp(d) + sum_error(size) + 12 * 0x1p-24));
          }
        }
      EXPECT_TRUE(y.gaps_untouched());
    }
}

TEST(Rope, TurnsPairs) {
  Context ctx = test_context();
  const int64_t head = 20, first = 6, half = 5, heads = 3;
  RopeConfig config;
  config.dim = 2 * half;
  config.theta = 1000;
  const RopeFrequencies f = rope_frequencies(config);
  const std::vector<int32_t> positions{0, 1, 77, 4000};
  for (const DType d : kTypes)
    for (const RopeLayout layout : {RopeLayout::halves, RopeLayout::interleaved}) {
      Rows x(d, 4, head * heads);
      x.randomize();
      const Rows before = x;
      std::vector<float> cosine(4 * half), sine(4 * half);
      rope_angles(f, positions, d, cosine.data(), sine.data());
      rope(ctx, x.view(), head, first, half, layout, cosine.data(), sine.data());
      for (int64_t r = 0; r < 4; ++r)
        for (int64_t h = 0; h < heads; ++h)
          for (int64_t i = 0; i < head; ++i) {
            const int64_t c = h * head + i, in = i - first;
            if (in < 0 || in >= 2 * half) {
              ASSERT_EQ(x.at(r, c), before.at(r, c));
              continue;
            }
            const bool halves = layout == RopeLayout::halves;
            const int64_t pair = halves ? in % half : in / 2;
            const int64_t a = h * head + first + (halves ? pair : 2 * pair), b = a + (halves ? half : 1);
            // float32 angles of up to 4000 radians: 4000 * 2^-24 each way.
            const double angle = positions[r] * std::pow(1000.0, -2.0 * static_cast<double>(pair) / (2 * half));
            const std::complex<double> turned =
                std::complex<double>(before.at(r, a), before.at(r, b)) * std::polar(1.0, angle);
            const double size = std::abs(turned);
            ASSERT_NEAR(x.at(r, c), c == a ? turned.real() : turned.imag(),
                        size * (4 * half_ulp(d) + 3 * angle * 0x1p-24 + 0x1p-22));
          }
      EXPECT_TRUE(x.gaps_untouched());
    }
}

// Values of transformers 5.17 (_compute_yarn_parameters, _compute_linear_scaling_rope_parameters).
TEST(Rope, YarnAndLinearFrequenciesOfTransformers) {
  RopeConfig c;
  c.type = RopeType::yarn;
  c.dim = 12;
  c.theta = 1000;
  c.factor = 4;
  c.original_max_positions = 64;
  c.beta_fast = 8;
  c.beta_slow = 1;
  c.mscale = 0.9;
  c.mscale_all_dim = 0.7;
  const RopeFrequencies f = rope_frequencies(c);
  const double yarn[] = {1, 0.237170815, 0.0499999933, 0.00790569466, 0.00249999971, 0.000790569524};
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(f.inv_freq[i], yarn[i], 1e-6 * yarn[i]) << i;
  EXPECT_NEAR(f.attention_factor, 1.02527335, 1e-6);
  c.mscale = c.mscale_all_dim = 0;
  EXPECT_NEAR(rope_frequencies(c).attention_factor, 0.1 * std::log(4.0) + 1, 1e-6);
  c.attention_factor = 1.25;
  EXPECT_EQ(rope_frequencies(c).attention_factor, 1.25f);
  // DeepSeek-V3's published values: 64 dimensions, theta 10,000, factor 40, 4096 positions, beta 32 and 1.
  RopeConfig published;
  published.type = RopeType::yarn;
  published.dim = 64;
  published.factor = 40;
  published.original_max_positions = 4096;
  published.mscale = published.mscale_all_dim = 1;
  const RopeFrequencies p = rope_frequencies(published);
  const std::pair<size_t, double> values[] = {{0, 1},
                                              {9, 0.0749894157},
                                              {10, 0.0562341288},
                                              {11, 0.0390069261},
                                              {15, 0.0083345091},
                                              {20, 0.000790569407},
                                              {23, 3.3338034e-05},
                                              {24, 2.49999994e-05},
                                              {31, 3.33380353e-06}};
  for (const auto& [i, v] : values) EXPECT_NEAR(p.inv_freq[i], v, 1e-6 * v) << i;
  EXPECT_EQ(p.attention_factor, 1.0f);
  RopeConfig linear;
  linear.type = RopeType::linear;
  linear.dim = 8;
  linear.factor = 2;
  const RopeFrequencies l = rope_frequencies(linear);
  for (size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(l.inv_freq[i], std::pow(10000.0, -static_cast<double>(i) / 4) / 2, 1e-6 * l.inv_freq[i]);
}

TEST(Elementwise, AddSiluRelu) {
  Context ctx = test_context();
  for (const DType d : kTypes)
    for (const int64_t n : {1, 31, 1024, 2500}) {
      Rows a(d, 5, n), b(d, 5, n), gate(d, 5, n), x(d, 5, n);
      a.randomize(), b.randomize(), gate.randomize(4.0f), x.randomize();
      const Rows a0 = a, gate0 = gate, x0 = x;
      add_to(ctx, a.view(), b.view());
      silu_multiply(ctx, gate.view(), b.view());
      relu_squared(ctx, x.view());
      for (int64_t r = 0; r < 5; ++r)
        for (int64_t c = 0; c < n; ++c) {
          const double sum = a0.at(r, c) + b.at(r, c);
          ASSERT_NEAR(a.at(r, c), sum, std::abs(sum) * half_ulp(d));
          const double silu = gate0.at(r, c) / (1 + std::exp(-gate0.at(r, c))) * b.at(r, c);
          ASSERT_NEAR(gate.at(r, c), silu, std::abs(silu) * (2.01 * half_ulp(d) + 8 * 0x1p-24));
          const double relu = x0.at(r, c) > 0 ? x0.at(r, c) * x0.at(r, c) : 0;
          ASSERT_NEAR(x.at(r, c), relu, relu * half_ulp(d));
        }
      EXPECT_TRUE(a.gaps_untouched() && gate.gaps_untouched() && x.gaps_untouched());
    }
}

TEST(Elementwise, Embed) {
  Context ctx = test_context();
  for (const DType table_type : kTypes)
    for (const DType d : kTypes) {
      Rows table(table_type, 9, 1100), y(d, 4, 1100);
      table.randomize();
      const std::vector<int32_t> ids{8, 0, 3, 8};
      embed(ctx, ids, table.view(), y.view());
      for (int64_t r = 0; r < 4; ++r)
        for (int64_t c = 0; c < 1100; ++c) {
          const auto v = static_cast<float>(table.at(ids[r], c));
          ASSERT_EQ(y.at(r, c), d == DType::f32 ? v : round_to_bf16(v));
        }
      EXPECT_TRUE(y.gaps_untouched());
      for (const int32_t bad : {9, -1}) {
        try {
          embed(ctx, std::vector<int32_t>{bad}, table.view(), y.view());
          FAIL();
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
          EXPECT_NE(std::string(e.what()).find("token id " + std::to_string(bad)), std::string::npos);
        }
      }
    }
}

TEST(Workspace, GrowsOnceAndNests) {
  Workspace w;
  for (int round = 0; round < 3; ++round) {
    Workspace::Scope outer(w);
    auto* a = w.take<double>(1000);
    a[999] = 1;
    for (int i = 0; i < 10; ++i) {
      Workspace::Scope inner(w);
      auto* b = w.take<float>(100000);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(b) % 64, 0u);
      b[99999] = 2;
    }
    EXPECT_EQ(a[999], 1);
  }
  const int64_t capacity = w.capacity();
  {
    Workspace::Scope scope(w);
    w.take<double>(1000);
    w.take<float>(100000);
  }
  EXPECT_EQ(w.capacity(), capacity);
}

}  // namespace
}  // namespace sluice::ops
