// SPDX-License-Identifier: Apache-2.0
// Every bfloat16 input through every activation against long double formulas written from docs/numerics.md
// (Activations).
#include "activation/activations.h"

#include <gtest/gtest.h>

#include <bit>
#include <cfloat>
#include <cmath>
#include <random>

#include "tests/support/random.h"

namespace sluice::activation {
namespace {

using real = long double;

real true_silu(real x, real scale = 1) { return x / (1 + std::exp(-scale * x)); }
real true_gelu_erf(real x) { return x * std::erfc(-x / std::sqrt(real{2})) / 2; }
real true_gelu_tanh(real x) {
  // 0.5 x (1 + tanh u) as x / (1 + exp(-2u)), which is the same and does not cancel.
  const real u = std::sqrt(2 / std::acos(real{-1})) * (x + 0.044715L * x * x * x);
  return x / (1 + std::exp(-2 * u));
}

// Relative error in units of float's half-ulp epsilon; results below the normal range count absolutely. `factors` is
// the product of what is divided by 1 + exp(y): when the exponential overflows, the result is 0 and less than factors /
// FLT_MAX is lost.
double ulps(float got, real expected, real factors = 0) {
  const real error = std::fabs(static_cast<real>(got) - expected);
  if (got == 0 && error <= std::fabs(factors) / static_cast<real>(FLT_MAX)) return 0;
  const real scale = std::max<real>(std::fabs(expected), FLT_MIN);
  return static_cast<double>(error / scale / (FLT_EPSILON / 2));
}

template <class F>
void for_every_bf16(F&& f) {
  for (uint32_t b = 0; b < 65536; ++b) {
    const float x = std::bit_cast<float>(b << 16);
    if (std::isfinite(x)) f(x);
  }
}

// The error of exp(y), y rounded to float, is |y| half-ulps and what expf adds (2); then a sum, a quotient, a product.
double bound_of_exp(real y) { return 1.0 * static_cast<double>(std::min<real>(std::fabs(y), 104)) + 8; }

TEST(Activation, SiluOfEveryBf16) {
  for_every_bf16([](float x) {
    ASSERT_LE(ulps(Silu::apply(x, NAN, {}), true_silu(x), x), 8) << x;  // -x is exact
  });
}

TEST(Activation, GeluTanhOfEveryBf16) {
  for_every_bf16([](float x) {
    const real u2 = 2 * 0.7978845608L * (x + 0.044715L * x * x * static_cast<real>(x));
    ASSERT_LE(ulps(gelu_tanh(x), true_gelu_tanh(x), x), 4 * bound_of_exp(u2)) << x;  // u itself takes four roundings
  });
}

TEST(Activation, GeluErfOfEveryBf16) {
  for_every_bf16([](float x) {
    // erfc(z) changes by 2 z^2 relative to z's relative error, and z = x / sqrt(2) takes two roundings.
    const double z2 = std::min(0.5 * x * x, 104.0);
    ASSERT_LE(ulps(gelu_erf(x), true_gelu_erf(x)), 4 * z2 + 16) << x;
    ASSERT_EQ(Gelu::apply(x, NAN, {}), gelu_erf(x));
  });
}

TEST(Activation, Relu2AndIdentityOfEveryBf16) {
  for_every_bf16([](float x) {
    const real expected = x > 0 ? static_cast<real>(x) * x : 0;
    const float got = Relu2::apply(x, NAN, {});
    if (expected <= static_cast<real>(FLT_MAX)) {
      ASSERT_LE(ulps(got, expected), 1) << x;
    } else {
      ASSERT_EQ(got, INFINITY);
    }
    ASSERT_EQ(Identity::apply(x, NAN, {}), x);
  });
}

TEST(Activation, GatedOnesOverGateAndUp) {
  std::mt19937 rng = test::rng();
  std::normal_distribution<float> normal;
  for_every_bf16([&](float gate) {
    if (std::fabs(gate) > 1e18f) return;
    const float up = normal(rng) * 3;
    const auto product = [&](real g) { return g * up; };
    ASSERT_LE(ulps(Swiglu::apply(up, gate, {}), product(true_silu(gate)), product(gate)), 9) << gate;
    const double z2 = std::min(0.5 * gate * gate, 104.0);
    ASSERT_LE(ulps(Geglu::apply(up, gate, {}), product(true_gelu_erf(gate))), 4 * z2 + 17) << gate;
    const real u2 = 2 * 0.7978845608L * (gate + 0.044715L * gate * gate * static_cast<real>(gate));
    ASSERT_LE(ulps(GegluTanh::apply(up, gate, {}), product(true_gelu_tanh(gate)), product(gate)), 4 * bound_of_exp(u2))
        << gate;
    ASSERT_EQ(Swiglu::apply(up, gate, {}), up * silu(gate));  // the defaults change no bit
  });
}

TEST(Activation, SwigluParametersOverEveryBf16Gate) {
  const Params p{1.702f, 1.0f, 7.0f};  // gpt-oss
  for_every_bf16([&](float gate) {
    for (float up : {-9.0f, -7.0f, -1.0f, 0.3f, 6.5f, 8.0f}) {
      const real g = std::min<real>(gate, p.limit);
      const real u = std::max<real>(-p.limit, std::min<real>(up, p.limit));
      const real expected = (u + p.beta) * true_silu(g, p.alpha);
      ASSERT_LE(ulps(Swiglu::apply(up, gate, p), expected, (u + p.beta) * g), bound_of_exp(p.alpha * g))
          << gate << " " << up;
    }
  });
  // A gate is clamped from above only, up from both sides.
  EXPECT_EQ(Swiglu::apply(100, 50, p), Swiglu::apply(7, 7, p));
  EXPECT_EQ(Swiglu::apply(-100, 1, p), Swiglu::apply(-7, 1, p));
  EXPECT_NE(Swiglu::apply(1, -8, p), Swiglu::apply(1, -7, p));
}

TEST(Activation, NanPassesThrough) {
  Activations::for_each([]<class A> {
    EXPECT_TRUE(std::isnan(A::apply(NAN, 1, {}))) << name_of(kActivations, A::kId);
    EXPECT_EQ(std::isnan(A::apply(1, NAN, {})), A::kGated) << name_of(kActivations, A::kId);
  });
}

TEST(Activation, TheListsAgree) {
  size_t count = 0;
  Activations::for_each([&]<class A> {
    EXPECT_NE(name_of(kActivations, A::kId), "?");
    EXPECT_EQ(is_gated(A::kId), A::kGated);
    ++count;
  });
  EXPECT_EQ(count, kActivations.size());
  EXPECT_EQ(static_cast<int>(Activation::swiglu), 3);
  EXPECT_EQ(static_cast<int>(Activation::identity), 9);
}

TEST(Activation, ParametersThatWouldBeIgnoredAreRefused) {
  const float one[2] = {1, 1}, bad[2] = {1, NAN}, zero[2] = {0, 1};
  EXPECT_NO_THROW(check_params(Activation::swiglu, one, one, one, 2));
  EXPECT_NO_THROW(check_params(Activation::relu2, nullptr, nullptr, nullptr, 2));
  for (const auto& [a, name] : kActivations) {
    if (a == Activation::swiglu) continue;
    try {
      check_params(a, nullptr, one, nullptr, 2);
      ADD_FAILURE() << name << " took a beta";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
    }
  }
  EXPECT_THROW(check_params(Activation::swiglu, bad, nullptr, nullptr, 2), Error);
  EXPECT_THROW(check_params(Activation::swiglu, nullptr, bad, nullptr, 2), Error);
  EXPECT_THROW(check_params(Activation::swiglu, nullptr, nullptr, zero, 2), Error);
}

}  // namespace
}  // namespace sluice::activation
