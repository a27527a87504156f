// SPDX-License-Identifier: Apache-2.0
// Speculation changes how fast a text comes, never the text: greedy and sampled, in batches, with keys and values and
// with recurrent states to take back, for drafts that are mostly right, mostly wrong, and the model's own.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <random>

#include "tests/engine/fixture.h"
#include "tests/model/guessing_model.h"
#include "tests/support/random.h"
#include "tests/support/test_name.h"

namespace sluice::engine {
namespace {

using model::GuessingModel;

struct Case {
  const char* folder;
  DType dtype;
};

class Speculation : public testing::TestWithParam<Case> {};

// How many of the drafts of a text are right, where `learned` has a successor for each token and each verification
// takes as many drafts as there are steps, unless the text ends before.
int64_t right_drafts(const std::map<int32_t, int32_t>& learned, const std::vector<int32_t>& text, size_t steps) {
  int64_t all = 0;
  for (size_t i = 0; i + 1 < text.size();) {
    const size_t drafts = std::min(steps, text.size() - i - 2);
    size_t right = 0;
    while (right < drafts && learned.at(text[i + right]) == text[i + right + 1]) ++right;
    all += static_cast<int64_t>(right);
    i += right + 1;
  }
  return all;
}

TEST_P(Speculation, GivesThePlainTextsInBatches) {
  const model::Model& model = load(fixture_folder(GetParam().folder), GetParam().dtype);
  std::mt19937 random = test::rng();
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) {
    std::vector<int32_t> prompt(1 + random() % 30);
    for (int32_t& t : prompt) t = static_cast<int32_t>(random() % 331);
    requests.push_back(request(prompt, 1 + static_cast<int64_t>(random() % 40), i % 3 == 0 ? 0.7 : 0.0, random()));
    if (i % 4 == 1) requests.back().params.sampling.repetition_penalty = 1.2;
    for (int32_t t = 0; i % 4 == 2 && t < 331; ++t) requests.back().params.bad_words.push_back({t, t});
    for (int32_t t = 0; i % 6 == 3 && t < 331; t += 3) requests.back().params.sampling.allowed_tokens.push_back(t);
  }
  EngineConfig config;
  config.context_length = 128;
  config.block_size = 8;
  Engine plain(test_context(), model, nullptr, config);
  std::vector<Answer> expected;
  for (const Request& r : requests) expected.push_back(run_one(plain, r));
  for (const int wrong : {0, 40, 100})
    for (const int steps : {1, 4}) {
      GuessingModel guessing(model, wrong);
      for (size_t i = 0; i < requests.size(); ++i) {
        std::vector<int32_t> all = requests[i].prompt;
        all.insert(all.end(), expected[i].tokens.begin(), expected[i].tokens.end());
        guessing.learn(all);
      }
      config.speculative_steps = steps;
      for (const int64_t memory : {0, 200}) {  // 200 tokens: with pre-emptions
        config.cache_tokens = memory;
        config.prefill_chunk = memory == 0 ? 512 : 9;
        config.adaptive_drafts = memory != 0 && steps == 4;  // some steps without drafts, and with fewer
        Engine engine(test_context(), guessing, nullptr, config);
        Collector c;
        std::vector<RequestId> ids;
        for (const Request& r : requests) ids.push_back(engine.add(r, c.sink()));
        run_all(engine);
        int64_t tokens = 0, accepted = 0;
        for (size_t i = 0; i < requests.size(); ++i) {
          ASSERT_EQ(c.of(ids[i]).tokens, expected[i].tokens) << "wrong " << wrong << ", steps " << steps;
          tokens += c.of(ids[i]).last.usage.completion_tokens;
          accepted += c.of(ids[i]).last.usage.accepted;
        }
        const Metrics m = engine.metrics();
        EXPECT_EQ(m.generation_tokens, tokens);
        EXPECT_EQ(m.accepted, accepted);
        EXPECT_GT(m.drafted, 0);
        if (wrong == 0 && memory == 0) {  // no text is begun again
          int64_t right = 0;
          for (const Answer& a : expected)
            right += right_drafts(guessing.learned, a.tokens, static_cast<size_t>(steps));
          EXPECT_EQ(m.accepted, right);
        }
        EXPECT_TRUE(wrong != 100 || m.accept_rate() < 0.2) << m.accept_rate();  // one guess in 331 is right
        EXPECT_NEAR(m.accept_length(), 1 + static_cast<double>(m.accepted) / static_cast<double>(m.verify_rounds),
                    1e-12);
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Speculation,
                         testing::Values(Case{"qwen3-moe", DType::f32}, Case{"nemotron-h", DType::f32},
                                         Case{"nemotron-h", DType::bf16}, Case{"deepseek-v3", DType::f32}),
                         [](const auto& p) {
                           return test::test_name(std::string(p.param.folder) + "_" +
                                                  std::string(to_string(p.param.dtype)));
                         });

// A model whose passes take long and whose drafts are quick and right, and one whose drafts take long.
TEST(AdaptiveDrafts, AreMadeWhereTheyPay) {
  const model::Model& model = load(fixture_folder("deepseek-v3"));
  const Request r = request({5, 9, 200, 33}, 100);
  EngineConfig config;
  config.context_length = 128;
  Engine plain(test_context(), model, nullptr, config);
  const std::vector<int32_t> expected = run_one(plain, r).tokens;
  config.speculative_steps = 3;
  config.adaptive_drafts = true;
  int longer = 1;
  const auto run = [&](int forward_ms, int draft_ms, bool overlap) {
    GuessingModel guessing(model, 0);
    std::vector<int32_t> all = r.prompt;
    all.insert(all.end(), expected.begin(), expected.end());
    guessing.learn(all);
    guessing.forward_time = std::chrono::milliseconds(forward_ms * longer);
    guessing.draft_time = std::chrono::milliseconds(draft_ms * longer);
    config.overlap = overlap;
    Engine engine(test_context(), guessing, nullptr, config);
    EXPECT_EQ(run_one(engine, r).tokens, expected);
    return engine.metrics();
  };
  for (const bool overlap : {false, true}) {
    Metrics quick, slow;
    // What else takes time on a busy machine must not decide: if it does, all takes longer.
    for (longer = 1; longer <= 16; longer *= 2) {
      // Some tokens follow more than one other, so not all are guessed.
      quick = run(10, 0, overlap);
      if (quick.accepted > 25 && quick.steps < 80) break;
    }
    EXPECT_GT(quick.accepted, 25) << "of 99 tokens";
    EXPECT_LT(quick.steps, 80);
    for (longer = 1; longer <= 16; longer *= 2) {
      slow = run(2, 20, overlap);
      EXPECT_GT(slow.drafted, 0) << "it has been tried";
      if (slow.verify_rounds < 15) break;
    }
    EXPECT_LT(slow.verify_rounds, 15);
  }
}

// Where a row's logits depend on the number of rows, a batch that verifies drafts chooses other tokens than one row
// does.
TEST(SpeculativeModels, MustBeRowInvariant) {
  GuessingModel guessing(load(fixture_folder("qwen3-moe")), 0), varying(load(fixture_folder("qwen3-moe")), 0);
  varying.depend_on_the_batch();
  EngineConfig config;
  const auto expect_refused = [](const auto& body) {
    try {
      body();
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::unsupported);
      EXPECT_NE(std::string(e.what()).find("deterministic"), std::string::npos) << e.what();
    }
  };
  Context ctx = test_context();
  Engine without(test_context(), varying, nullptr, config);
  EXPECT_EQ(run_one(without, request({5, 6}, 3)).tokens.size(), 3u);
  EXPECT_NO_THROW(model::Generator(ctx, varying, 32));
  config.speculative_steps = 2;
  expect_refused([&] { Engine(test_context(), varying, nullptr, config); });
  expect_refused([&] { model::Generator(ctx, varying, 32, 2); });
  Engine engine(test_context(), guessing, nullptr, config);
  expect_refused([&] { engine.replace_model(varying); });
  EXPECT_EQ(run_one(engine, request({5, 6}, 3)).tokens.size(), 3u);
}

// Stop conditions anywhere inside an accepted run.
TEST(SpeculativeStops, CutAcceptedRuns) {
  const model::Model& model = load(fixture_folder("nemotron-h"));
  const std::vector<int32_t> prompt{20, 45, 77, 101, 13};
  EngineConfig config;
  Engine plain(test_context(), model, &tokenizer(), config);
  const Answer whole = run_one(plain, request(prompt, 40, 1, 4));
  GuessingModel guessing(model, 0);
  std::vector<int32_t> all = prompt;
  all.insert(all.end(), whole.tokens.begin(), whole.tokens.end());
  guessing.learn(all);
  config.speculative_steps = 4;
  Engine engine(test_context(), guessing, &tokenizer(), config);
  for (size_t n = 1; n <= 40; ++n) {
    const Answer cut = run_one(engine, request(prompt, static_cast<int64_t>(n), 1, 4));
    ASSERT_EQ(cut.tokens,
              std::vector<int32_t>(whole.tokens.begin(), whole.tokens.begin() + static_cast<std::ptrdiff_t>(n)));
    Request r = request(prompt, 40, 1, 4);
    r.params.stop_tokens = {whole.tokens[n - 1]};
    const auto end = std::find(whole.tokens.begin(), whole.tokens.end(), whole.tokens[n - 1]) + 1;
    ASSERT_EQ(run_one(engine, r).tokens, std::vector<int32_t>(whole.tokens.begin(), end));
  }
  for (size_t begin = 0; begin + 3 < whole.text.size(); ++begin) {
    const std::string stop = whole.text.substr(begin, 3);
    if (static_cast<unsigned char>(stop[0]) >= 0x80 || static_cast<unsigned char>(stop[1]) >= 0x80 ||
        static_cast<unsigned char>(stop[2]) >= 0x80)
      continue;
    Request r = request(prompt, 40, 1, 4);
    r.params.stop = {stop};
    const Answer a = run_one(engine, r), b = run_one(plain, r);
    ASSERT_EQ(a.text, whole.text.substr(0, whole.text.find(stop)));
    ASSERT_EQ(a.tokens, b.tokens);
  }
}

// Three tokens after one prompt for many seeds; returns them by seed.
std::vector<std::vector<int32_t>> sample(const model::Model& model, const std::vector<int32_t>& prompt, int count,
                                         double temperature, int steps, Metrics& metrics) {
  EngineConfig config;
  config.max_running = 64;
  config.max_queued = 1000;
  config.context_length = 64;
  config.block_size = 4;
  config.speculative_steps = steps;
  Engine engine(test_context(), model, nullptr, config);
  Collector c;
  std::vector<RequestId> ids;
  for (int i = 0; i < count; ++i) {
    while (engine.queued() >= 500) engine.step();
    ids.push_back(engine.add(request(prompt, 3, temperature, 1000 + static_cast<uint64_t>(i)), c.sink()));
  }
  run_all(engine);
  metrics = engine.metrics();
  std::vector<std::vector<int32_t>> out;
  for (const RequestId id : ids) out.push_back(c.of(id).tokens);
  return out;
}

// softmax(logits / temperature) after the tokens, without engine and sampler.
std::vector<double> exact_distribution(const model::Model& model, const std::vector<int32_t>& tokens,
                                       double temperature) {
  Context ctx = test_context();
  const auto n = static_cast<int64_t>(tokens.size());
  const int32_t block = 0;
  model::Runner runner(ctx, model, {.cache = {.blocks = 1, .block_size = 64}, .rows = n, .sequence_tokens = 64});
  runner.add({0, tokens, 0, {&block, 1}, 1});
  runner.run();
  std::vector<float> logits(static_cast<size_t>(model.info().vocab));
  runner.read_logits(0, 1, logits.data());
  std::vector<double> p(logits.size());
  double total = 0;
  for (size_t i = 0; i < p.size(); ++i) total += p[i] = std::exp(logits[i] / temperature);
  for (double& x : p) x /= total;
  return p;
}

// Pearson's chi-square of counts against p; classes with fewer than five expected are pooled (Cochran's rule).
struct ChiSquare {
  double value = 0;
  int freedom = -1;
};
ChiSquare chi_square(const std::map<int32_t, int>& counts, int n, const std::vector<double>& p) {
  ChiSquare out;
  double rest_p = 1;
  int rest = n;
  const auto add = [&](double count, double expected) {
    out.value += (count - expected) * (count - expected) / expected;
    ++out.freedom;
  };
  for (size_t t = 0; t < p.size(); ++t) {
    if (p[t] * n < 5) continue;
    const auto found = counts.find(static_cast<int32_t>(t));
    const int count = found == counts.end() ? 0 : found->second;
    add(count, p[t] * n);
    rest -= count;
    rest_p -= p[t];
  }
  if (rest_p * n > 1) add(rest, rest_p * n);
  return out;
}

// Rejection sampling leaves the target's distribution. The drafts are what mostly follows, so that many are accepted;
// the second token comes out of verifying one. The bound is four standard deviations above chi-square's mean.
TEST(SpeculativeDistribution, IsTheTargets) {
  const model::Model& model = load(fixture_folder("nemotron-h"));
  constexpr int kSamples = 6000;
  constexpr double kTemperature = 0.3;
  const std::vector<int32_t> prompt{17, 230, 4, 99};
  Metrics metrics;
  const auto plain = sample(model, prompt, kSamples, kTemperature, 0, metrics);
  std::map<int32_t, std::map<int32_t, int>> followers;
  for (const auto& t : plain)
    for (size_t i = 0; i < 2; ++i) ++followers[t[i]][t[i + 1]];
  GuessingModel guessing(model, 0);
  for (const auto& [token, counts] : followers)
    guessing.learned[token] = std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
                                return a.second < b.second;
                              })->first;
  const auto speculative = sample(guessing, prompt, kSamples, kTemperature, 2, metrics);
  EXPECT_EQ(speculative, plain) << "the uniform numbers are those of the plain run";
  std::printf("    accept rate %.3f of %ld drafts\n", metrics.accept_rate(), metrics.drafted);
  EXPECT_GT(metrics.accept_rate(), 0.05);
  std::map<int32_t, std::map<int32_t, int>> seconds;
  for (const auto& t : speculative) ++seconds[t[0]][t[1]];
  int tested = 0;
  for (const auto& [first, counts] : seconds) {
    int n = 0;
    for (const auto& [token, count] : counts) n += count;
    if (n < 300) continue;
    ++tested;
    std::vector<int32_t> tokens = prompt;
    tokens.push_back(first);
    const std::vector<double> p = exact_distribution(model, tokens, kTemperature);
    const ChiSquare chi = chi_square(counts, n, p);
    EXPECT_LT(chi.value, chi.freedom + 4 * std::sqrt(2.0 * chi.freedom) + 4) << "after token " << first;
    // The draft is accepted exactly as often as the target would choose it.
    const auto draft = static_cast<size_t>(guessing.learned[first]);
    const double accepted = counts.count(static_cast<int32_t>(draft)) > 0 ? counts.at(static_cast<int32_t>(draft)) : 0;
    EXPECT_NEAR(accepted / n, p[draft], 5 * std::sqrt(p[draft] * (1 - p[draft]) / n));
    std::printf("    after %d: n %d, chi2 %.1f of %d degrees, draft accepted %.3f, p %.3f\n", first, n, chi.value,
                chi.freedom, accepted / n, p[draft]);
  }
  EXPECT_GT(tested, 0);
}

// The bare rule on a distribution that is known in closed form: a certain draft d is accepted with probability p(d),
// and the token that comes out has the distribution p, not only where the draft was accepted.
TEST(SpeculativeDistribution, OfTheRule) {
  const std::vector<double> p{0.5, 0.25, 0.15, 0.1};
  constexpr int kSamples = 100000;
  for (int32_t draft = 0; draft < 4; ++draft) {
    std::vector<int> counts(4);
    sampling::Sampler sampler({.temperature = 1, .seed = 77});
    for (int i = 0; i < kSamples; ++i) {
      std::vector<float> logits;
      for (const double x : p) logits.push_back(static_cast<float>(std::log(x)));
      std::vector<sampling::LogitEdit> edits;
      sampling::ChooseScratch scratch;
      sampling::Sampled out;
      sampling::choose_token(sampler.row(0, i + draft * kSamples, {}, {}, edits), {}, logits, scratch, out);
      ++counts[static_cast<size_t>(out.token)];
    }
    double chi2 = 0;
    for (size_t t = 0; t < 4; ++t) chi2 += std::pow(counts[t] - p[t] * kSamples, 2) / (p[t] * kSamples);
    EXPECT_LT(chi2, 21.1);  // 3 degrees of freedom, 0.0001
    const double accepted = counts[static_cast<size_t>(draft)] / double{kSamples};
    EXPECT_NEAR(accepted, p[static_cast<size_t>(draft)], 5 * std::sqrt(0.25 / kSamples));
  }
}

}  // namespace
}  // namespace sluice::engine
