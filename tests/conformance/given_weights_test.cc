// SPDX-License-Identifier: Apache-2.0
// Given weights that are infinite, NaN or zero, through every backend: they reach the sum of their token, except those
// of pairs whose expert is not here.
#include "tests/conformance/backend_call.h"
#include "tests/support/random.h"
#include "tests/support/reference_moe.h"

namespace sluice::test {
namespace {

constexpr int kTopK = 4, kLeftOut = 2;  // of the pairs of a token
constexpr float kInf = INFINITY;
constexpr float kGiven[][kTopK] = {
    {0.5f, -kInf, 0.25f, 0},    {kInf, 0.5f, -0.25f, 0},  {0.5f, 0.25f, 0, NAN},
    {kInf, 0.5f, 1, -kInf},     {-kInf, NAN, 0.5f, kInf}, {0.5f, 0, -kInf, -0.25f},
    {-0.5f, 0.25f, kInf, 0.5f}, {0.5f, 0, NAN, -0.25f},   {0, 0, 0, 0},
};
constexpr auto kRows = static_cast<int64_t>(std::size(kGiven));

class GivenWeights : public ::testing::TestWithParam<size_t> {
 protected:
  const moe::Backend& backend() const { return *moe::backends()[GetParam()]; }
  void check(const Problem& p, const Call& c);

  ThreadPool pool_{2};
  Context ctx_{pool_};
  int64_t infinite_ = 0, unsure_ = 0;  // sums with an infinity; those of them whose sign the reference does not know
};

// NaN where a weight is NaN, or where infinities of both signs meet; else the infinity's sign; else the reference.
void GivenWeights::check(const Problem& p, const Call& c) {
  const float* given = p.given_weights.as<float>();
  Arithmetic arithmetic;
  if (format::is_fp8(p.spec.weights) && backend().name() == "sm90") arithmetic.product_error = kFp8TensorCoreError;
  std::vector<float> weights(given, given + p.given_weights.elements());
  for (float& w : weights) w *= p.spec.routed_scale;
  const ReferenceMoe r = reference_moe(p.spec, p.weights, p.hidden, c.ids, weights, arithmetic);
  const auto hidden = static_cast<size_t>(p.spec.hidden);
  ASSERT_EQ(c.output.size(), r.output.size());
  for (size_t i = 0; i < c.output.size(); ++i) {
    bool nan = false, plus = false, minus = false, sure = true;
    for (size_t pair = i / hidden * kTopK; pair < (i / hidden + 1) * kTopK; ++pair) {
      if (!r.local[pair]) continue;
      nan |= std::isnan(weights[pair]);
      if (!std::isinf(weights[pair])) continue;
      const Bounded& y = r.down[pair * hidden + i % hidden];
      sure &= std::fabs(y.value) > y.slack;  // a zero would give NaN
      ((weights[pair] > 0) == (y.value > 0) ? plus : minus) = true;
    }
    const float got = c.output[i];
    if (nan) {
      ASSERT_TRUE(std::isnan(got)) << i << ": " << got;
    } else if (!plus && !minus) {
      ASSERT_TRUE(r.lowest[i] <= got && got <= r.highest[i]) << i << ": " << got << ", reference " << r.output[i];
    } else if (++infinite_; !sure) {
      ++unsure_;
      ASSERT_FALSE(std::isfinite(got)) << i << ": " << got;
    } else if (plus && minus) {
      ASSERT_TRUE(std::isnan(got)) << i << ": " << got;
    } else {
      ASSERT_EQ(got, plus ? kInf : -kInf) << i;
    }
  }
}

TEST_P(GivenWeights, ReachTheSumUnlessTheirExpertIsNotHere) {
  std::mt19937 rng = test::rng();
  // So many columns that sm90_one_token has a block for each 16, not a cluster.
  std::vector<std::string> layers = {"hidden=2240 weights=bf16"};
  for (const auto& [format, name] : format::kFormats) layers.push_back("hidden=128 weights=" + std::string(name));
  for (const std::string& line : layers)
    for (const bool deterministic : {false, true})
      for (const bool leaves_out : {false, true}) {
        Case c;
        c.spec = parse_moe_spec("experts=8 top_k=4 inter=96 routed=1 " + line);
        c.spec.deterministic = deterministic;
        c.spec.routed_scale = leaves_out ? -0.75f : 1.0f;
        c.choice = Choice::unpacked;
        if (!backend().supports(c.spec)) continue;
        // All tokens, then each alone, which may have kernels of its own.
        c.tokens = kRows;
        SCOPED_TRACE(c.name() + (leaves_out ? ", an absent pair" : ""));
        Problem all = make_problem(c, rng);
        for (int64_t t = 0; t < kRows; ++t) {
          std::copy_n(kGiven[t], kTopK, all.given_weights.as<float>() + t * kTopK);
          if (leaves_out) all.ids.as<int32_t>()[t * kTopK + kLeftOut] = -1;
        }
        const auto layer = backend().prepare(ctx_, all.spec, all.weights);
        ASSERT_NO_FATAL_FAILURE(check(all, call(*layer, all, ctx_)));
        for (int64_t t = 0; t < kRows; ++t) {
          SCOPED_TRACE(fmt::format("token {} alone", t));
          Problem one = all;
          one.tokens = 1;
          one.hidden.assign(all.hidden.begin() + t * c.spec.hidden, all.hidden.begin() + (t + 1) * c.spec.hidden);
          one.hidden_tensor = all.hidden_tensor.rows(t, t + 1);
          one.ids = all.ids.rows(t, t + 1);
          one.given_weights = all.given_weights.rows(t, t + 1);
          ASSERT_NO_FATAL_FAILURE(check(one, call(*layer, one, ctx_)));
        }
      }
  if (infinite_ == 0) GTEST_SKIP() << backend().name() << " cannot run here";
  EXPECT_LT(unsure_, infinite_ / 4) << "of " << infinite_ << " infinite sums";
}

INSTANTIATE_TEST_SUITE_P(Moe, GivenWeights, ::testing::Range(size_t{0}, moe::backends().size()), backend_name);

}  // namespace
}  // namespace sluice::test
