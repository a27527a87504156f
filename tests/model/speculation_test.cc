// SPDX-License-Identifier: Apache-2.0
// Drafts change how fast a text comes, never the text: greedy and sampled, for every number of drafts, fixed and as
// they pay, for drafts that are mostly right, mostly wrong, and the model's own. The oracle is generation without
// drafts, which golden_test.cc holds against transformers.
#include <chrono>

#include "model/generate.h"
#include "tests/model/fixture.h"
#include "tests/model/guessing_model.h"
#include "tests/support/random.h"
#include "tests/support/test_name.h"

namespace sluice::model {
namespace {

constexpr int64_t kMaxTokens = 110;

std::string fixture(const std::string& name) { return std::string(SLUICE_SOURCE_DIR) + "/tests/fixtures/" + name; }

struct Text {
  std::vector<int32_t> prompt;
  GenerateOptions options;
  Generated plain;
};

// Every way to choose a token and to end a text, with what comes without drafts.
std::vector<Text> texts(const Model& model) {
  std::mt19937 random = test::rng();
  Context ctx = test_context();
  Generator plain(ctx, model, kMaxTokens);
  std::vector<Text> out;
  for (int i = 0; i < 8; ++i) {
    Text t;
    for (size_t n = 1 + random() % 40; n > 0; --n)
      t.prompt.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(model.info().vocab)));
    t.options.max_new_tokens = 1 + static_cast<int64_t>(random() % 60);
    t.options.sampling.temperature = i % 2 == 0 ? 0 : 0.8;
    t.options.sampling.seed = random();
    if (i / 2 == 1) t.options.sampling.repetition_penalty = 1.3;
    if (i / 2 == 2) t.options.sampling.top_p = 0.7;
    t.plain = plain.run(t.prompt, t.options);
    if (i / 2 == 3) {
      t.options.stop_tokens = {t.plain.ids[t.plain.ids.size() / 2]};
      t.plain = plain.run(t.prompt, t.options);
    }
    out.push_back(t);
  }
  return out;
}

// One generator for all texts, so that it goes on with what it has learned of earlier ones.
void expect_plain_texts(const Model& model, const std::vector<Text>& all, Generator::Config config) {
  config.max_tokens = kMaxTokens;
  Context ctx = test_context();
  Generator generator(ctx, model, config);
  int64_t drafted = 0, new_tokens = 0;
  for (const Text& t : all) {
    const Generated run = generator.run(t.prompt, t.options);
    ASSERT_EQ(run.ids, t.plain.ids) << config.speculative_steps << " drafts";
    EXPECT_EQ(run.reason, t.plain.reason);
    EXPECT_LE(run.forwards, t.plain.forwards);
    EXPECT_LE(run.accepted, run.drafted);
    drafted += run.drafted;
    new_tokens += static_cast<int64_t>(run.ids.size());
  }
  EXPECT_TRUE(config.adaptive_drafts || drafted > 0) << "of " << new_tokens << " tokens";
}

void expect_plain_texts(const Model& model, const std::vector<Text>& all,
                        std::initializer_list<int> depths = {1, 2, 3, 4, 5, 6}) {
  for (const bool adaptive : {false, true})
    for (const bool overlap : {false, true})
      for (const int steps : depths) {
        SCOPED_TRACE(fmt::format("adaptive {}, overlap {}", adaptive, overlap));
        // A short chunk: the head's cache is filled across chunks.
        expect_plain_texts(
            model, all,
            {.speculative_steps = steps, .prefill_chunk = 16, .overlap = overlap, .adaptive_drafts = adaptive});
      }
}

struct Case {
  const char* folder;
  DType dtype;
};
class GeneratorDrafts : public testing::TestWithParam<Case> {};

TEST_P(GeneratorDrafts, OfAnyQualityKeepTheText) {
  const auto model = load(fixture(GetParam().folder), GetParam().dtype);
  const std::vector<Text> all = texts(*model);
  for (const int wrong : {0, 40, 100}) {
    SCOPED_TRACE(fmt::format("{} % wrong", wrong));
    GuessingModel guessing(*model, wrong);
    for (const Text& t : all) {
      std::vector<int32_t> ids = t.prompt;
      ids.insert(ids.end(), t.plain.ids.begin(), t.plain.ids.end());
      guessing.learn(ids);
    }
    expect_plain_texts(guessing, all, {1, 2, 5});
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, GeneratorDrafts,
                         testing::Values(Case{"qwen3-moe", DType::f32}, Case{"nemotron-h", DType::bf16},
                                         Case{"deepseek-v3", DType::f32}, Case{"deepseek-v3", DType::bf16}),
                         [](const auto& p) {
                           return test::test_name(std::string(p.param.folder) + "_" +
                                                  std::string(to_string(p.param.dtype)));
                         });

TEST(OwnDrafts, KeepTheText) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto model = load(fixture("deepseek-v3"), dtype);
    expect_plain_texts(*model, texts(*model));
  }
}

TEST(OwnDrafts, OfTheTrainedModelKeepTheText) {
  SLUICE_SKIP_WITHOUT_MODELS();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto model = load(test::test_models() + "/tiny-deepseek-v3", dtype);
    expect_plain_texts(*model, texts(*model));
  }
}

// A model whose passes take long and whose drafts are quick and right, and one whose drafts take long. The text is one
// of which some tokens follow more than one other, so not all are guessed.
TEST(AdaptiveDrafts, AreMadeWhereTheyPay) {
  const auto model = load(fixture("deepseek-v3"), DType::f32);
  Context ctx = test_context();
  const std::vector<int32_t> prompt{5, 9, 200, 33};
  const GenerateOptions options{.max_new_tokens = 100, .sampling = {}, .stop_tokens = {}};
  const Generated plain = Generator(ctx, *model, kMaxTokens).run(prompt, options);
  std::vector<int32_t> all = prompt;
  all.insert(all.end(), plain.ids.begin(), plain.ids.end());
  int longer = 1;
  const auto run = [&](int forward_ms, int draft_ms, bool overlap, int caller_ms = 0) {
    GuessingModel guessing(*model, 0);
    guessing.learn(all);
    guessing.forward_time = std::chrono::milliseconds(forward_ms * longer);
    guessing.draft_time = std::chrono::milliseconds(draft_ms * longer);
    Generator generator(
        ctx, guessing, {.max_tokens = kMaxTokens, .speculative_steps = 3, .overlap = overlap, .adaptive_drafts = true});
    const Generated out = generator.run(prompt, options, [&](int32_t) {
      std::this_thread::sleep_for(std::chrono::milliseconds(caller_ms * longer));
      return true;
    });
    EXPECT_EQ(out.ids, plain.ids);
    return out;
  };
  for (const bool overlap : {false, true}) {
    SCOPED_TRACE(overlap);
    // What else takes time on a busy machine must not decide: if it does, all takes longer.
    Generated quick, slow, delayed;
    for (longer = 1; longer <= 16; longer *= 2) {
      quick = run(10, 0, overlap);
      if (quick.accepted > 25 && quick.forwards < 80) break;
    }
    EXPECT_GT(quick.accepted, 25) << "of 99 tokens";
    EXPECT_LT(quick.forwards, 80);
    for (longer = 1; longer <= 16; longer *= 2) {
      slow = run(2, 20, overlap);
      EXPECT_GT(slow.drafted, 0) << "it has been tried";
      // What the caller does with a token takes as long for every number of drafts.
      delayed = run(2, 20, overlap, 10);
      if (slow.drafted < 45 && slow.forwards > 55 && delayed.drafted < 45) break;
    }
    EXPECT_LT(slow.drafted, 45);
    EXPECT_GT(slow.forwards, 55);
    EXPECT_LT(delayed.drafted, 45);
  }
}

// A text that has no drafts is generated ahead of the host as without a draft head: one surplus step at most.
TEST(AdaptiveDrafts, StopWhereTheyAreNeverRight) {
  const auto model = load(fixture("qwen3-moe"), DType::f32);
  Context ctx = test_context();
  const std::vector<int32_t> prompt{5, 9, 200, 33};
  const GenerateOptions options{.max_new_tokens = 100, .sampling = {}, .stop_tokens = {}};
  GuessingModel guessing(*model, 100);
  int64_t drafted = 80;
  for (int ms = 2; ms <= 32 && drafted >= 80; ms *= 2) {  // longer where the machine's load has decided
    guessing.forward_time = guessing.draft_time = std::chrono::milliseconds(ms);
    Generator generator(ctx, guessing, {.max_tokens = kMaxTokens, .speculative_steps = 4, .adaptive_drafts = true});
    drafted = 0;
    for (int i = 0; i < 5; ++i) {
      const Generated run = generator.run(prompt, options);
      EXPECT_EQ(run.ids.size(), 100u);
      if (i > 0) drafted += run.drafted;
    }
  }
  EXPECT_LT(drafted, 80) << "of 1584 that four drafts per step would be";
}

}  // namespace
}  // namespace sluice::model
