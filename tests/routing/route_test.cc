// SPDX-License-Identifier: Apache-2.0
#include "routing/route.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/golden.h"
#include "tests/support/random.h"
#include "tests/support/reference_routing.h"

namespace sluice::routing {
namespace {

struct Batch {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Batch routed(Method m, const Params& p, Values logits, Values bias, int64_t tokens) {
  validate(m, p);
  Batch b;
  b.ids.assign(static_cast<size_t>(tokens * p.top_k), -7);
  b.weights.assign(b.ids.size(), NAN);
  std::vector<uint64_t> scratch(static_cast<size_t>(route_scratch_bytes(p) / 8));
  route(m, p, logits, bias, tokens, b.ids.data(), b.weights.data(), scratch.data());
  return b;
}

std::vector<double> wide(const std::vector<float>& x, size_t begin, size_t count) {
  return {x.begin() + static_cast<std::ptrdiff_t>(begin), x.begin() + static_cast<std::ptrdiff_t>(begin + count)};
}

// Checks a batch against the reference; returns the fraction of tokens whose choice float32 cannot tell for sure.
double check_batch(Method m, const Params& p, const std::vector<float>& x, const std::vector<float>& bias,
                   const Batch& b) {
  const auto experts = static_cast<size_t>(p.experts), k = static_cast<size_t>(p.top_k);
  const size_t tokens = x.size() / experts;
  size_t unsure = 0;
  for (size_t t = 0; t < tokens; ++t) {
    const auto expected = test::reference_route(m, p, wide(x, t * experts, experts), wide(bias, 0, bias.size()));
    if (!expected.certain) {
      ++unsure;
      continue;
    }
    for (size_t i = 0; i < k; ++i) {
      EXPECT_EQ(b.ids[t * k + i], expected.ids[i]) << name_of(kMethods, m) << " token " << t << " slot " << i;
      const double w = expected.weights[i];
      const double bound = (p.bf16 ? 0x1p-8 : 0x1p-22) * std::fabs(w) + expected.weight_error;
      EXPECT_NEAR(b.weights[t * k + i], w, bound) << name_of(kMethods, m) << " token " << t << " slot " << i;
      if (p.bf16) {
        EXPECT_EQ(b.weights[t * k + i], round_to_bf16(b.weights[t * k + i]));
      }
      if (::testing::Test::HasFailure()) return 1;
    }
  }
  return tokens ? static_cast<double>(unsure) / static_cast<double>(tokens) : 0;
}

struct Shape {
  int experts, top_k, groups, top_groups;
};

constexpr Shape kShapes[] = {{1, 1, 1, 1},   {2, 2, 1, 1},     {7, 3, 1, 1},     {32, 4, 4, 2},     {64, 6, 8, 3},
                             {128, 8, 1, 1}, {160, 6, 8, 3},   {256, 8, 8, 4},   {384, 8, 1, 1},    {512, 22, 4, 2},
                             {576, 8, 1, 1}, {2048, 32, 1, 1}, {256, 256, 1, 1}, {256, 8, 256, 64}, {96, 5, 32, 5}};

enum class Data { normal, negative, coarse, saturating };

void fill(Data kind, std::mt19937& rng, std::vector<float>& x, std::vector<float>& bias) {
  std::normal_distribution<float> normal;
  for (auto& v : x) {
    v = normal(rng) * 2;
    if (kind == Data::negative) v = -std::fabs(v) - 3;
    if (kind == Data::coarse) v = std::round(v * 2) / 2;  // exact ties everywhere
    if (kind == Data::saturating) v = std::round(v * 40);
  }
  for (auto& v : bias) {
    v = normal(rng) * 0.3f;
    if (kind == Data::negative) v = -std::fabs(v) - 1;  // zero-masking would let masked experts win
    if (kind == Data::coarse) v = std::round(v * 8) / 8;
    if (kind == Data::saturating) v = std::round(v * 4) / 4;
  }
}

TEST(Route, EveryMethodShapeTypeAndKindOfData) {
  std::mt19937 rng = test::rng();
  for (const auto& [m, name] : kMethods)
    for (const Shape& s : kShapes)
      for (Data kind : {Data::normal, Data::negative, Data::coarse, Data::saturating})
        for (bool bf16 : {false, true}) {
          Params p{s.experts, m == Method::llama4 ? 1 : s.top_k, 1, 1, 1.0f, true, bf16};
          if (m == Method::deepseek_v3) p.groups = s.groups, p.top_groups = s.top_groups;
          if (m == Method::deepseek_v3 || m == Method::minimax2) p.scale = 2.5f;
          if (m == Method::sigmoid_renorm) p.renormalize = rng() % 2 == 0;
          const int64_t tokens = s.experts > 300 ? 12 : 40;
          std::vector<float> x(static_cast<size_t>(tokens * s.experts)), bias(static_cast<size_t>(s.experts));
          fill(kind, rng, x, bias);
          const bool bf16_logits = rng() % 2 == 0, bf16_bias = rng() % 2 == 0, with_bias = rng() % 4 != 0;
          std::vector<bf16_t> x16, b16;
          if (bf16_logits)
            for (auto& v : x) x16.push_back(float_to_bf16(v)), v = bf16_to_float(x16.back());
          if (bf16_bias)
            for (auto& v : bias) b16.push_back(float_to_bf16(v)), v = bf16_to_float(b16.back());
          const Values xv{bf16_logits ? static_cast<void*>(x16.data()) : x.data(), bf16_logits};
          const Values bv{bf16_bias ? static_cast<void*>(b16.data()) : bias.data(), bf16_bias};
          const Batch b = routed(m, p, xv, with_bias ? bv : Values{}, tokens);
          const bool reads = with_bias && takes_bias(m);
          SCOPED_TRACE("experts " + std::to_string(s.experts) + " kind " + std::to_string(static_cast<int>(kind)));
          const double unsure = check_batch(m, p, x, reads ? bias : std::vector<float>{}, b);
          if (kind == Data::normal && s.experts < 64) {
            EXPECT_LE(unsure, 0.1) << name;
          }
          if (HasFailure()) return;
        }
}

TEST(Route, TiesGoToTheSmallerIdAndZeroSignsTie) {
  const std::vector<float> x = {0.0f, -0.0f, 3.0f, 0.0f, 3.0f, -1.0f};
  const Params p{6, 5, 1, 1, 1, true, false};
  const Batch b = routed(Method::topk, p, {x.data(), false}, {}, 1);
  EXPECT_EQ(b.ids, (std::vector<int32_t>{2, 4, 0, 1, 3}));
}

TEST(Route, ANanScoreIsChosenFirst) {
  for (const auto& [m, name] : kMethods)
    for (int nan = 0; nan < 8; ++nan) {
      std::vector<float> x = {0, 0, 1, 1, 5, 5, 6, 6};
      x[static_cast<size_t>(nan)] = NAN;
      Params p{8, m == Method::llama4 ? 1 : 2, 1, 1, 1, true, false};
      if (m == Method::deepseek_v3) p.groups = 4, p.top_groups = 2;
      const Batch b = routed(m, p, {x.data(), false}, {}, 1);
      // A softmax over all experts makes every score NaN, and ties go to the smaller id.
      if (m != Method::softmax && m != Method::renormalize_naive) {
        EXPECT_EQ(b.ids[0], nan) << name;
      }
      EXPECT_TRUE(std::isnan(b.weights[0])) << name << " " << nan;
    }
}

TEST(Route, SigmoidsThatAreExactlyZeroGiveZeroWeightsNotNan) {
  const std::vector<float> x(8, -200.0f);
  for (Method m : {Method::minimax2, Method::deepseek_v3, Method::sigmoid_renorm, Method::sigmoid}) {
    const Params p{8, 3, 1, 1, 1, true, false};
    const Batch b = routed(m, p, {x.data(), false}, {}, 1);
    EXPECT_EQ(b.ids, (std::vector<int32_t>{0, 1, 2})) << name_of(kMethods, m);
    EXPECT_EQ(b.weights, (std::vector<float>{0, 0, 0})) << name_of(kMethods, m);
  }
}

TEST(Route, GroupsAreMaskedWithMinusInfinity) {
  // All biased scores are negative; the experts of the lost group must not win by being zero.
  const std::vector<float> x(8, -5.0f);
  const std::vector<float> bias = {-1, -1, -1, -1, -2, -2, -2, -2};
  const Params p{8, 3, 2, 1, 1, true, false};
  const Batch b = routed(Method::deepseek_v3, p, {x.data(), false}, {bias.data(), false}, 1);
  EXPECT_EQ(b.ids, (std::vector<int32_t>{0, 1, 2}));
}

TEST(Route, AGroupedChoiceRoundsItsBiasInABf16Run) {
  // 1 + 2^-9 rounds to 1 in bfloat16, so that expert 0 ties with expert 1 and wins by its id.
  const std::vector<float> x(4, 0.0f), bias = {1.0f, 1.0f + 0x1p-9f, 0.0f, 0.0f};
  for (bool bf16 : {true, false}) {
    const Params p{4, 1, 2, 1, 1, true, bf16};
    EXPECT_EQ(routed(Method::deepseek_v3, p, {x.data(), false}, {bias.data(), false}, 1).ids[0], bf16 ? 0 : 1);
    const Params flat{4, 1, 1, 1, 1, true, bf16};
    EXPECT_EQ(routed(Method::deepseek_v3, flat, {x.data(), false}, {bias.data(), false}, 1).ids[0], 1);
  }
}

TEST(Route, NanAndInfinityStillGiveDistinctValidIds) {
  for (const auto& [m, name] : kMethods)
    for (float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
      std::vector<float> x(16, 0.5f);
      x[3] = x[9] = bad;
      const Params p{16, m == Method::llama4 ? 1 : 6, 1, 1, 1, true, true};
      Batch b = routed(m, p, {x.data(), false}, {}, 1);
      std::sort(b.ids.begin(), b.ids.end());
      EXPECT_TRUE(std::adjacent_find(b.ids.begin(), b.ids.end()) == b.ids.end()) << name;
      EXPECT_GE(b.ids.front(), 0);
      EXPECT_LT(b.ids.back(), 16);
    }
}

TEST(Route, NoTokensIsFine) {
  const Params p{16, 4};
  EXPECT_TRUE(routed(Method::renormalize, p, {}, {}, 0).ids.empty());
}

TEST(Route, ATokensRoutingDoesNotDependOnTheBatch) {
  std::mt19937 rng = test::rng();
  std::normal_distribution<float> normal;
  std::vector<float> x(16 * 64);
  for (auto& v : x) v = normal(rng);
  const Params p{64, 6, 1, 1, 1, true, true};
  const Batch all = routed(Method::sigmoid_renorm, p, {x.data(), false}, {}, 16);
  for (int64_t t = 0; t < 16; ++t) {
    const Batch one = routed(Method::sigmoid_renorm, p, Values{x.data(), false}.from(t * 64), {}, 1);
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(one.ids[i], all.ids[static_cast<size_t>(t) * 6 + i]);
      EXPECT_EQ(one.weights[i], all.weights[static_cast<size_t>(t) * 6 + i]);
    }
  }
}

TEST(Route, GivenRoutingIsReadAsItIs) {
  const std::vector<int32_t> ids = {5, -1, 300, 32767};
  const std::vector<float> weights = {0.5f, -2.0f, -0.0f, 1e-3f};
  std::vector<int32_t> packed, got(4, -9);
  std::vector<float> got_w(4, NAN);
  for (size_t i = 0; i < 4; ++i) packed.push_back(pack(ids[i], weights[i]));
  read_given(packed.data(), {}, 1.0f, 4, got.data(), got_w.data());
  EXPECT_EQ(got, ids);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(got_w[i], round_to_bf16(weights[i]));
  read_given(ids.data(), {weights.data(), false}, 1.0f, 4, got.data(), got_w.data());
  EXPECT_EQ(got, ids);
  EXPECT_EQ(got_w, weights);
  EXPECT_EQ(pack(3, -1.0f), 0x0003bf80);  // the published layout, by hand
}

TEST(Route, ContradictionsAreRefusedWithASentence) {
  const auto refused = [](Method m, const Params& p, const std::string& word) {
    try {
      validate(m, p);
      ADD_FAILURE() << "accepted: " << name_of(kMethods, m) << ", expected a sentence with " << word;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
    }
  };
  refused(Method::softmax, {0, 1}, "experts is 0");
  refused(Method::softmax, {8, 9}, "top_k is 9");
  refused(Method::softmax, {8, 0}, "top_k is 0");
  refused(Method::llama4, {8, 2}, "llama4");
  refused(Method::deepseek_v3, {10, 2, 4, 2}, "groups is 4");
  refused(Method::deepseek_v3, {8, 2, 4, 5}, "top_groups is 5");
  refused(Method::deepseek_v3, {8, 5, 4, 2}, "hold 4 experts");
  refused(Method::renormalize, {8, 2, 2, 1}, "only deepseek_v3 has groups");
  refused(Method::renormalize, {8, 2, 1, 1, 2.0f}, "routed_scale is 2");
  refused(Method::minimax2, {8, 2, 1, 1, NAN}, "routed_scale is nan");
  refused(Method::softmax, {8, 2, 1, 1, 1.0f, false}, "norm_topk");
}

TEST(Methods, TheListsAgree) {
  size_t count = 0;
  Methods::for_each([&]<class M> {
    ++count;
    EXPECT_NE(name_of(kMethods, M::kId), "?");
  });
  EXPECT_EQ(count, kMethods.size());
  for (size_t i = 0; i < kMethods.size(); ++i) EXPECT_EQ(static_cast<size_t>(kMethods[i].value), i);
}

// --- Hugging Face ----------------------------------------------------------------------------------------------------

void check_golden(const std::string& model, Method m, Params p, const std::string& bias_tensor) {
  const test::GoldenFile golden(test::test_models() + "/" + model + "/golden.safetensors");
  std::vector<float> bias;
  if (!bias_tensor.empty()) {
    const auto layer = std::to_string(golden.values<int32_t>("moe.layer").at(0));
    std::string name = bias_tensor;
    name.replace(name.find('#'), 1, layer);
    bias = test::GoldenModel(model).values<float>(name);
  }
  const auto logits = golden.values<float>("moe.router_logits");
  const auto ids = golden.values<int32_t>("moe.topk_ids");
  const auto weights = golden.values<float>("moe.topk_weights");
  const auto k = static_cast<size_t>(p.top_k);
  const auto tokens = static_cast<int64_t>(ids.size() / k);
  p.bf16 = false;  // the goldens are a float32 run
  const Batch b = routed(m, p, {logits.data(), false}, {bias.empty() ? nullptr : bias.data(), false}, tokens);
  double worst = 0;
  for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
    std::vector<std::pair<int, float>> got;
    for (size_t i = 0; i < k; ++i) got.emplace_back(b.ids[t * k + i], b.weights[t * k + i]);
    std::sort(got.begin(), got.end());
    for (size_t i = 0; i < k; ++i) {
      ASSERT_EQ(got[i].first, ids[t * k + i]) << "token " << t;
      worst = std::max(worst, std::fabs(got[i].second / static_cast<double>(weights[t * k + i]) - 1));
    }
  }
  std::printf("%s: %d tokens, ids equal, weights within %.1e relative\n", model.c_str(), static_cast<int>(tokens),
              worst);
  EXPECT_LT(worst, 2e-6);
}

TEST(HuggingFace, Qwen3Moe) {
  SLUICE_SKIP_WITHOUT_MODELS();
  check_golden("tiny-qwen3-moe", Method::renormalize, {32, 4}, "");
  check_golden("tiny-qwen3-moe", Method::renormalize_naive, {32, 4}, "");
}

TEST(HuggingFace, DeepseekV3) {
  SLUICE_SKIP_WITHOUT_MODELS();
  check_golden("tiny-deepseek-v3", Method::deepseek_v3, {32, 4, 4, 2, 2.5f},
               "model.layers.#.mlp.gate.e_score_correction_bias");
}

TEST(HuggingFace, NemotronH) {
  SLUICE_SKIP_WITHOUT_MODELS();
  check_golden("tiny-nemotron-h", Method::deepseek_v3, {16, 4, 1, 1, 2.5f},
               "backbone.layers.#.mixer.gate.e_score_correction_bias");
}

}  // namespace
}  // namespace sluice::routing
