// SPDX-License-Identifier: Apache-2.0
// A row's logits are the same bits whatever the batch: chunks, single rows, other sequences, drafts that were
// partly taken back. Speculative decoding depends on this. And decoding allocates nothing.
#include "model/decoder.h"
#include "model/generate.h"
#include "tests/model/fixture.h"
#include "tests/support/counting_new.h"
#include "tests/support/test_name.h"

namespace sluice::model {
namespace {

// The fixtures, and the trained checkpoint that the repository carries: its sizes suit formats with scale groups.
std::string folder_of(const std::string& name) {
  return std::string(SLUICE_SOURCE_DIR) + (name.starts_with("tiny-") ? "/models/" : "/tests/fixtures/") + name;
}

struct Case {
  const char* folder;
  DType dtype;
  const char* quantization = "";
};
std::string name_of_case(const testing::TestParamInfo<Case>& p) {
  std::string name = std::string(p.param.folder) + "_" + std::string(to_string(p.param.dtype));
  if (*p.param.quantization) name += std::string("_") + p.param.quantization;
  return test::test_name(name);
}

class Invariance : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    model_ = load(folder_of(GetParam().folder), GetParam().dtype, GetParam().quantization);
    vocab_ = static_cast<size_t>(model_->info().vocab);
    for (size_t i = 0; i < 48; ++i) ids_.push_back(static_cast<int32_t>((i * i * 31 + i * 7919 + 5) % vocab_));
    TestRunner whole(*model_);
    expected_ = whole.forward({{0, ids_}});
  }
  // Bits of the rows [first, first + rows) of the undivided run.
  void expect_same(const std::vector<float>& logits, size_t row, size_t first, size_t rows, const std::string& what) {
    ASSERT_EQ(
        0, std::memcmp(logits.data() + row * vocab_, expected_.data() + first * vocab_, rows * vocab_ * sizeof(float)))
        << what;
  }
  std::vector<int32_t> tokens(size_t first, size_t count) const { return part(ids_, first, count); }

  std::unique_ptr<Model> model_;
  std::vector<int32_t> ids_;
  size_t vocab_ = 0;
  std::vector<float> expected_;
};

TEST_P(Invariance, ChunksAndSingleRows) {
  for (const size_t chunk : {1, 3, 4, 17, 64}) {
    TestRunner runner(*model_, 1, 32);
    for (size_t at = 0; at < ids_.size(); at += chunk) {
      const size_t n = std::min(chunk, ids_.size() - at);
      expect_same(runner.forward({{0, tokens(at, n), static_cast<int64_t>(at)}}), 0, at, n,
                  "chunks of " + std::to_string(chunk));
    }
  }
}

TEST_P(Invariance, MixedBatch) {
  // Three sequences at different places: one decodes, one is in its prompt, one verifies drafts.
  TestRunner runner(*model_, 3, 16, 640, 4);
  runner.forward({{0, tokens(0, 20)}, {2, tokens(0, 9)}});
  const auto logits = runner.forward({{1, tokens(0, 30)}, {0, tokens(20, 1), 20}, {2, tokens(9, 4), 9, true}});
  expect_same(logits, 0, 0, 30, "prompt");
  expect_same(logits, 30, 20, 1, "decode");
  expect_same(logits, 31, 9, 4, "verify");
}

TEST_P(Invariance, RollbackForEveryAcceptedLength) {
  TestRunner runner(*model_, 2, 16, 640, 5);
  int64_t context = 11;
  runner.forward({{1, tokens(0, 11)}});
  for (const int64_t accepted : {0, 1, 2, 3, 4, 5, 5, 1}) {
    // The first `accepted` rows are right, the others some other tokens.
    auto rows = tokens(static_cast<size_t>(context), 5);
    for (auto r = static_cast<size_t>(accepted); r < 5; ++r) rows[r] = (rows[r] + 1) % static_cast<int32_t>(vocab_);
    const auto logits = runner.forward({{1, rows, context, true}});
    expect_same(logits, 0, static_cast<size_t>(context), static_cast<size_t>(accepted), "accepted rows");
    runner.commit(1, accepted);
    context += accepted;
  }
  expect_same(runner.forward({{1, tokens(static_cast<size_t>(context), 2), context}}), 0, static_cast<size_t>(context),
              2, "after the rollbacks");
}

TEST_P(Invariance, SlotsAreClearedForNewSequences) {
  TestRunner runner(*model_);
  runner.forward({{0, tokens(5, 20)}});
  expect_same(runner.forward({{0, tokens(0, 7)}}), 0, 0, 7, "second sequence in a slot");
}

TEST_P(Invariance, DecodingAllocatesNothing) {
  Context ctx = test_context();
  Generator generator(ctx, *model_, 200);
  GenerateOptions o;
  o.max_new_tokens = 40;
  std::vector<int64_t> counts;
  counts.reserve(64);
  const auto count = [&](int32_t) { return counts.push_back(allocations.load()), true; };
  const auto prompt = tokens(0, 5);
  generator.run(prompt, o, count);
  EXPECT_GT(counts[3], 0) << "the counter is not in use";
  EXPECT_EQ(counts.back() - counts[3], 0) << "allocations while decoding";
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Invariance,
                         testing::Values(Case{"qwen3-moe", DType::f32}, Case{"qwen3-moe", DType::bf16},
                                         Case{"nemotron-h", DType::f32}, Case{"nemotron-h", DType::bf16},
                                         Case{"deepseek-v3", DType::f32}, Case{"deepseek-v3", DType::bf16}),
                         name_of_case);
// Scales that are taken from activations must come from the row alone.
INSTANTIATE_TEST_SUITE_P(Quantised, Invariance,
                         testing::Values(Case{"qwen3-moe", DType::bf16, "fp8"},
                                         Case{"deepseek-v3", DType::bf16, "fp8_channel"},
                                         Case{"deepseek-v3", DType::bf16, "fp8_block"},
                                         Case{"tiny-nemotron-h", DType::bf16, "mxfp8"},
                                         Case{"tiny-nemotron-h", DType::bf16, "nvfp4_online"},
                                         Case{"tiny-nemotron-h", DType::bf16, "mxfp4"}),
                         name_of_case);

class Speculation : public testing::TestWithParam<DType> {};

TEST_P(Speculation, GivesThePlainText) {
  SLUICE_SKIP_WITHOUT_MODELS();
  const auto model = load(test::test_models() + "/tiny-deepseek-v3", GetParam());
  const test::GoldenFile golden(test::test_models() + "/tiny-deepseek-v3/golden.safetensors");
  const auto ids = golden.values<int32_t>("input_ids");
  Context ctx = test_context();
  for (const double temperature : {0.0, 0.8}) {
    GenerateOptions o;
    o.sampling.temperature = temperature;
    o.sampling.seed = 7;
    for (const size_t length : {1, 16, 70}) {
      o.max_new_tokens = 60;
      const auto plain = Generator(ctx, *model, 200).run(part(ids, 0, length), o);
      for (int steps = 1; steps <= 5; ++steps) {
        // A short prefill chunk: the head's cache is filled across chunks.
        Generator generator(ctx, *model, 200, steps, 32);
        const auto run = generator.run(part(ids, 0, length), o);
        EXPECT_EQ(run.ids, plain.ids) << steps << " steps";
        EXPECT_LE(run.forwards, plain.forwards);
        EXPECT_EQ(run.accepted + run.forwards + 1, static_cast<int64_t>(run.ids.size()));
        if (temperature == 0)
          std::printf("    %d steps: accept rate %.3f, length %.2f\n", steps, run.accept_rate(), run.accept_length());
        // The end may fall anywhere inside an accepted run.
        for (const size_t at : {1, 2, 3, 7, 20}) {
          GenerateOptions cut = o;
          cut.max_new_tokens = static_cast<int64_t>(at);
          EXPECT_EQ(generator.run(part(ids, 0, length), cut).ids, part(plain.ids, 0, at));
          cut.max_new_tokens = 60;
          cut.stop_tokens = {plain.ids[at]};
          const auto stopped = generator.run(part(ids, 0, length), cut);
          const auto first = std::find(plain.ids.begin(), plain.ids.end(), plain.ids[at]) - plain.ids.begin();
          EXPECT_EQ(stopped.ids, part(plain.ids, 0, static_cast<size_t>(first) + 1));
          EXPECT_EQ(stopped.reason, FinishReason::stop);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Speculation, testing::Values(DType::f32, DType::bf16),
                         [](const auto& p) { return std::string(to_string(p.param)); });

// The model reports the row invariance of its experts' backend.
TEST(RowInvariance, NeedsThatOfEveryMoeBlock) {
  struct Experts : moe::MoeLayer {
    explicit Experts(bool invariant) : invariant_(invariant) {}
    const MoeSpec& spec() const override { return spec_; }
    int64_t weight_bytes() const override { return 0; }
    int64_t workspace_bytes(int64_t) const override { return 0; }
    bool row_invariant() const override { return invariant_; }
    void run(Context&, const moe::MoeArgs&) const override {}
    void refit(Context&, const weights::ExpertWeights&) override {}
    bool invariant_;
    MoeSpec spec_;
  };
  const auto made = [](std::initializer_list<bool> layers) {
    Decoder::Parts parts;
    parts.embedding = Tensor(DType::f32, {4, 8});
    for (const bool invariant : layers) {
      MoeBlock m;
      m.experts = std::make_shared<Experts>(invariant);
      parts.sublayers.push_back({ops::RmsNorm(), std::move(m), true});
    }
    return Decoder(std::move(parts)).info().row_invariant;
  };
  EXPECT_TRUE(made({}));
  EXPECT_TRUE(made({true, true}));
  EXPECT_FALSE(made({false, true}));
  EXPECT_FALSE(made({true, false}));
  for (const char* name : {"qwen3-moe", "nemotron-h", "deepseek-v3"})
    EXPECT_TRUE(load(std::string(SLUICE_SOURCE_DIR) + "/tests/fixtures/" + name, DType::f32)->info().row_invariant);
}

}  // namespace
}  // namespace sluice::model
