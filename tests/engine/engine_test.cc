// SPDX-License-Identifier: Apache-2.0
// One request at a time and few together: how answers end, what their events report, cancelling, errors.
#include "engine/engine.h"

#include <cmath>
#include <numeric>

#include "tests/engine/fixture.h"
#include "text/utf8.h"

namespace sluice::engine {
namespace {

const model::Model& fixture_model() { return load(fixture_folder("qwen3-moe")); }

Engine make_engine(EngineConfig config = {}, const model::Model& model = fixture_model()) {
  if (config.cache_tokens == 0) config.cache_tokens = 4096;
  return Engine(test_context(), model, &tokenizer(), config);
}

const std::vector<int32_t> kPrompt{20, 45, 77, 101, 13};

TEST(Engine, EndsAtStopTokens) {
  Engine engine = make_engine();
  const std::vector<int32_t> whole = run_one(engine, request(kPrompt, 30, 1, 3)).tokens;
  Request r = request(kPrompt, 30, 1, 3);
  r.params.stop_tokens = {whole[10], whole[20]};
  const auto first =
      std::find_if(whole.begin(), whole.end(), [&](int32_t t) { return t == whole[10] || t == whole[20]; });
  const Answer a = run_one(engine, r);
  EXPECT_EQ(a.tokens, std::vector<int32_t>(whole.begin(), first + 1));
  EXPECT_EQ(a.reason(), FinishReason::stop);
  EXPECT_EQ(a.last.stop_token, *first);
  EXPECT_EQ(a.text, tokenizer().decode(std::vector<int32_t>(whole.begin(), first), true)) << "trimmed";
  r.params.include_stop = true;
  EXPECT_EQ(run_one(engine, r).text, tokenizer().decode(std::vector<int32_t>(whole.begin(), first + 1), true));
}

TEST(Engine, TheModelsOwnEndTokens) {
  Engine engine = make_engine();
  ASSERT_FALSE(engine.model_info().stop_tokens.empty());
  const int32_t eos = engine.model_info().stop_tokens.front();
  Request r = request(kPrompt, 12);
  r.params.sampling.logit_bias = {{eos, 100.0f}};
  EXPECT_EQ(run_one(engine, r).tokens, std::vector<int32_t>(12, eos)) << "ignore_eos";
  r.params.ignore_eos = false;
  const Answer a = run_one(engine, r);
  EXPECT_EQ(a.tokens, std::vector<int32_t>{eos});
  EXPECT_EQ(a.last.stop_token, eos);
  r.params.min_tokens = 5;
  const Answer late = run_one(engine, r);
  EXPECT_EQ(late.tokens.size(), 6u);
  EXPECT_EQ(late.tokens.back(), eos);
}

TEST(Engine, BadWordsNeverStandInTheAnswer) {
  Engine engine = make_engine();
  Request r = request(kPrompt, 40, 1, 3);
  const std::vector<int32_t> free = run_one(engine, r).tokens;
  // A token alone, a pair and a triple of the free answer: each would have been chosen.
  const std::vector<std::vector<int32_t>> words{{free[4]}, {free[10], free[11]}, {free[20], free[21], free[22]}};
  for (const auto& word : words) {
    r.params.bad_words = {word};
    const std::vector<int32_t> tokens = run_one(engine, r).tokens;
    EXPECT_EQ(tokens.size(), 40u);
    EXPECT_EQ(std::search(tokens.begin(), tokens.end(), word.begin(), word.end()), tokens.end());
    const auto first = std::search(free.begin(), free.end(), word.begin(), word.end()) - free.begin();
    EXPECT_TRUE(
        std::equal(free.begin(), free.begin() + first + static_cast<std::ptrdiff_t>(word.size()) - 1, tokens.begin()))
        << "not before it must";
  }
  // The prompt's own words do not count.
  r.params.bad_words = {{kPrompt.back(), free[0]}};
  EXPECT_EQ(run_one(engine, r).tokens, free);
}

TEST(Engine, AnAnswerWithoutATokenLeftStops) {
  Engine engine = make_engine();
  Request r = request(kPrompt, 10, 1, 3);
  r.params.sampling.allowed_tokens = {40, 41};
  EXPECT_EQ(run_one(engine, r).tokens.size(), 10u);
  r.params.bad_words = {{40, 40}, {40, 41}, {41, 40}, {41, 41}};
  const Answer a = run_one(engine, r);
  EXPECT_EQ(a.tokens.size(), 1u);
  EXPECT_EQ(a.reason(), FinishReason::stop);
  EXPECT_EQ(a.last.stop_token, std::nullopt);
  r.params.bad_words = {{40}, {41}};
  EXPECT_TRUE(run_one(engine, r).tokens.empty());
  EXPECT_EQ(engine.metrics().blocks_used, 0);
  EXPECT_EQ(run_one(engine, request(kPrompt, 10)).tokens.size(), 10u);
}

TEST(Engine, StopStringsAcrossTokens) {
  Engine engine = make_engine();
  const Answer whole = run_one(engine, request(kPrompt, 60, 1, 11));
  ASSERT_EQ(whole.text, tokenizer().decode(whole.tokens, true));
  ASSERT_GT(whole.text.size(), 20u);
  int across = 0;
  for (size_t begin = 0; begin < whole.text.size(); ++begin)
    for (const size_t length : {1, 2, 5, 9}) {
      const std::string stop = whole.text.substr(begin, length);
      if (begin % 3 != 0 || text::to_valid_utf8(stop) != stop) continue;
      Request r = request(kPrompt, 60, 1, 11);
      r.params.stop = {"never this", stop};
      const Answer a = run_one(engine, r);
      ASSERT_EQ(a.text, whole.text.substr(0, whole.text.find(stop))) << stop;
      ASSERT_EQ(a.reason(), FinishReason::stop);
      ASSERT_EQ(a.last.stop_string, stop);
      ASSERT_LE(a.tokens.size(), whole.tokens.size());
      // The tokens go just as far as needed.
      const auto n = a.tokens.size();
      ASSERT_EQ(a.tokens,
                std::vector<int32_t>(whole.tokens.begin(), whole.tokens.begin() + static_cast<std::ptrdiff_t>(n)));
      across += tokenizer().bytes_of(a.tokens.back()).size() < stop.size() ? 1 : 0;
    }
  EXPECT_GT(across, 5) << "none of the stop strings spans two tokens";
}

TEST(Engine, StreamsWholeCharacters) {
  // Single bytes of a two-byte character: forced by their bias, one after another by the frequency penalty.
  const auto byte_token = [](char byte) {
    for (int32_t id = 0; id < 331; ++id)
      if (tokenizer().bytes_of(id) == std::string_view(&byte, 1)) return id;
    return -1;
  };
  const int32_t first = byte_token('\xc3'), second = byte_token('\xa9');
  ASSERT_TRUE(first >= 0 && second >= 0);
  Engine engine = make_engine();
  int cut_off = 0;
  for (const int64_t length : {8, 9}) {  // one of them ends inside a character
    Request r = request(kPrompt, length);
    r.params.sampling.logit_bias = {{first, 100.0f}, {second, 99.0f}};
    r.params.sampling.frequency_penalty = 2;
    std::string text;
    std::vector<int32_t> tokens;
    engine.add(r, [&](const Event& e) {
      EXPECT_EQ(text::to_valid_utf8(e.text), e.text);
      text += e.text;
      tokens.insert(tokens.end(), e.tokens.begin(), e.tokens.end());
    });
    run_all(engine);
    EXPECT_EQ(text, tokenizer().decode(tokens));
    EXPECT_NE(text.find("\xc3\xa9"), std::string::npos);
    cut_off += tokens.back() == first && text.ends_with("\xef\xbf\xbd") ? 1 : 0;
  }
  EXPECT_EQ(cut_off, 1);
}

TEST(Engine, SeveralAnswers) {
  Engine engine = make_engine({.block_size = 4});
  std::vector<int32_t> prompt(30);
  std::iota(prompt.begin(), prompt.end(), 40);
  Request r = request(prompt, 8, 1, 5);
  const Answer single = run_one(engine, r);
  engine.flush_cache();
  const Metrics before = engine.metrics();
  r.params.n = 4;
  Collector c;
  const RequestId id = engine.add(r, c.sink());
  run_all(engine);
  EXPECT_EQ(c.of(id, 0).tokens, single.tokens) << "the first one does not depend on n";
  for (int i = 1; i < 4; ++i) {
    EXPECT_EQ(c.of(id, i).tokens.size(), 8u);
    EXPECT_NE(c.of(id, i).tokens, c.of(id, i - 1).tokens);
    EXPECT_EQ(c.of(id, i).last.usage.cached_tokens, 28) << "the prompt is computed once";
  }
  EXPECT_EQ(engine.metrics().cached_tokens - before.cached_tokens, 3 * 28);
}

TEST(Engine, Logprobs) {
  const model::Model& model = fixture_model();
  const test::GoldenFile golden(fixture_folder("qwen3-moe") + "/golden.safetensors");
  const auto logits = golden.values<float>("logits");
  auto ids = golden.values<int32_t>("input_ids");
  ids.resize(48);
  const auto vocab = static_cast<size_t>(model.info().vocab);
  const auto expected = [&](size_t row, int32_t token) {
    double total = 0;
    for (size_t i = 0; i < vocab; ++i) total += std::exp(static_cast<double>(logits[row * vocab + i]));
    return logits[row * vocab + static_cast<size_t>(token)] - std::log(total);
  };
  for (const int64_t chunk : {512, 10})
    for (const int64_t from : {0, 1, 20, 47}) {
      Engine engine = make_engine({.prefill_chunk = chunk, .block_size = 4});
      run_one(engine, request(ids, 2));  // a warm prefix cache must not swallow rows
      Request r = request(ids, 1);
      r.params.logprobs = true;
      r.params.top_logprobs = 3;
      r.params.logprob_tokens = {7, 5};
      r.params.prompt_logprobs_from = from;
      // Of the model's own distribution, whatever the sampling.
      r.params.sampling.temperature = 2;
      r.params.sampling.logit_bias = {{5, 3.0f}};
      const Answer a = run_one(engine, r);
      ASSERT_EQ(a.prompt_logprobs.size(), 48 - static_cast<size_t>(std::max<int64_t>(from, 1)));
      for (size_t i = 0; i < a.prompt_logprobs.size(); ++i) {
        const size_t position = static_cast<size_t>(std::max<int64_t>(from, 1)) + i;
        EXPECT_EQ(a.prompt_logprobs[i].chosen.token, ids[position]);
        EXPECT_NEAR(a.prompt_logprobs[i].chosen.logprob, expected(position - 1, ids[position]), 1e-4);
        EXPECT_EQ(a.prompt_logprobs[i].top.size(), 3u);
        ASSERT_EQ(a.prompt_logprobs[i].asked.size(), 2u);
        EXPECT_NEAR(a.prompt_logprobs[i].asked[0].logprob, expected(position - 1, 7), 1e-4);
      }
      ASSERT_EQ(a.logprobs.size(), 1u);
      EXPECT_EQ(a.logprobs[0].chosen.token, a.tokens[0]);
      EXPECT_NEAR(a.logprobs[0].chosen.logprob, expected(47, a.tokens[0]), 1e-4);
      EXPECT_NEAR(a.logprobs[0].asked.at(1).logprob, expected(47, 5), 1e-4);
      // Scoring alone.
      r.params.max_tokens = 0;
      r.params.logprobs = false;
      const Answer scored = run_one(engine, r);
      EXPECT_TRUE(scored.tokens.empty());
      EXPECT_EQ(scored.reason(), FinishReason::length);
      ASSERT_EQ(scored.prompt_logprobs.size(), a.prompt_logprobs.size());
    }
}

TEST(Engine, CancellingFreesEverythingAtOnce) {
  for (const char* folder : {"qwen3-moe", "nemotron-h"})
    for (int steps = 0; steps < 8; ++steps) {
      Engine engine = make_engine({.prefill_chunk = 3, .block_size = 4}, load(fixture_folder(folder)));
      Collector c;
      Request r = request(std::vector<int32_t>(10, 50), 40);
      r.params.n = 3;
      const RequestId id = engine.add(r, c.sink()), other = engine.add(request(kPrompt, 10), c.sink());
      for (int i = 0; i < steps; ++i) engine.step();
      EXPECT_TRUE(engine.cancel(id));
      EXPECT_FALSE(engine.cancel(id));
      for (int i = 0; i < 3; ++i) EXPECT_EQ(c.of(id, i).reason(), FinishReason::cancelled);
      EXPECT_LE(engine.metrics().blocks_used, 4) << "only the other request's";
      run_all(engine);
      EXPECT_EQ(c.of(other).tokens.size(), 10u);
      EXPECT_EQ(engine.metrics().finished_cancelled, 3);
      EXPECT_EQ(engine.metrics().request_seconds.count(), 1) << "only of the answer that was not cut off";
      EXPECT_EQ(engine.metrics().answer_lengths.sum(), 10) << "that answer's";
      EXPECT_EQ(engine.metrics().longest_answers.count(), 1);
    }
}

// The bucket of a histogram that holds `value`, by trying all.
size_t bucket_of(const Histogram& h, double value) {
  size_t at = 0;
  while (at < h.bounds().size() && h.bounds()[at] < value) ++at;
  return at;
}

TEST(Engine, HistogramsOfPhasesAndLengths) {
  Engine engine = make_engine();
  Collector c;
  Request several = request(kPrompt, 12);
  several.params.n = 3;
  Request scored = request(std::vector<int32_t>(30, 50), 0);
  scored.params.prompt_logprobs_from = 0;
  const RequestId ids[] = {engine.add(several, c.sink()), engine.add(request(kPrompt, 1), c.sink()),
                           engine.add(scored, c.sink())};
  run_all(engine);
  const Metrics m = engine.metrics();
  const auto prompt = static_cast<double>(kPrompt.size());
  EXPECT_EQ(m.prompt_lengths.sum(), 4 * prompt + 30);
  EXPECT_EQ(m.answer_lengths.sum(), 3 * 12 + 1);
  EXPECT_EQ(m.longest_answers.sum(), 12 + 1 + 0) << "one value per request";
  EXPECT_EQ(m.longest_answers.count(), 3);
  EXPECT_EQ(m.answer_lengths.counts()[bucket_of(m.answer_lengths, 12)], 3);
  EXPECT_EQ(m.step_tokens.count(), m.steps);
  // Every row is a token of a prompt or of an answer, but an answer's last token has none.
  EXPECT_EQ(m.step_tokens.sum(), static_cast<double>(m.rows + 3 + 1));
  // Queue, prompt and answer make up the whole time, since each answer's last event had its last token.
  double queue = 0, first = 0, total = 0;
  for (const auto& [id, n] : {std::pair{ids[0], 3}, {ids[1], 1}, {ids[2], 1}})
    for (int i = 0; i < n; ++i) {
      const Usage& u = c.of(id, i).last.usage;
      queue += u.queue_seconds;
      first += u.completion_tokens > 0 ? u.first_token_seconds : u.total_seconds;
      total += u.total_seconds;
    }
  for (const Histogram* h : {&m.request_seconds, &m.prefill_seconds, &m.decode_seconds, &m.token_seconds})
    EXPECT_EQ(h->count(), 5);
  EXPECT_DOUBLE_EQ(m.request_seconds.sum(), total);
  // At most 20 differences, quotients and sums, none larger than the total.
  const double rounding = 20 * std::numeric_limits<double>::epsilon() * total;
  EXPECT_NEAR(m.prefill_seconds.sum(), first - queue, rounding);
  EXPECT_NEAR(m.decode_seconds.sum(), total - first, rounding);
  EXPECT_GT(m.decode_seconds.sum(), 0);
  // Three answers of 12 tokens have 11 gaps each, and the others none.
  EXPECT_NEAR(m.token_seconds.sum(), m.decode_seconds.sum() / 11, rounding);
}

TEST(Engine, RefusesWhenTheQueueIsFull) {
  Engine engine = make_engine({.max_running = 1, .max_queued = 3});
  Collector c;
  for (int i = 0; i < 3; ++i) engine.add(request(kPrompt, 4), c.sink());
  try {
    engine.add(request(kPrompt, 4), c.sink());
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::busy);
    EXPECT_STREQ(e.what(), "the queue is full: 3 answers wait; try again later");
  }
  engine.step();
  EXPECT_NO_THROW(engine.add(request(kPrompt, 4), c.sink()));
  run_all(engine);
  EXPECT_EQ(engine.metrics().requests_refused, 1);
}

TEST(Engine, AReaderThatThrowsEndsItsRequestOnly) {
  Engine engine = make_engine();
  Collector c;
  engine.add(request(kPrompt, 10), [](const Event&) { throw std::runtime_error("gone"); });
  const RequestId id = engine.add(request(kPrompt, 10), c.sink());
  run_all(engine);
  EXPECT_EQ(c.of(id).tokens.size(), 10u);
  EXPECT_EQ(engine.metrics().finished_cancelled, 1);
}

// A model whose logits are broken for one token, or that fails.
class BrokenModel : public model::Model {
 public:
  explicit BrokenModel(const model::Model& m) : inner_(m) {}
  const model::ModelInfo& info() const override { return inner_.info(); }
  const model::CacheShape& cache_shape() const override { return inner_.cache_shape(); }
  void forward(ops::Ops& ops, const model::Batch& batch, model::Cache& cache,
               const model::Outputs& out) const override {
    if (fails) fail(ErrorCode::out_of_memory, "no memory for this");
    inner_.forward(ops, batch, cache, out);
    for (int64_t i = 0; i < batch.logit_rows; ++i)
      if (batch.tokens[batch.logits_of[i]] == 99) static_cast<float*>(out.logits.row(i))[5] = NAN;
  }
  bool fails = false;

 private:
  const model::Model& inner_;
};

TEST(Engine, ErrorsEndTheSequencesThatTheyConcern) {
  BrokenModel model(fixture_model());
  Engine engine = make_engine({}, model);
  Collector c;
  const RequestId good = engine.add(request(kPrompt, 10), c.sink()), bad = engine.add(request({3, 99}, 10), c.sink());
  engine.step();
  EXPECT_EQ(c.of(bad).reason(), FinishReason::error);
  EXPECT_EQ(c.of(bad).last.error, "the logits at position 2 hold a NaN; the weights or their scales are broken");
  model.fails = true;
  engine.step();
  EXPECT_EQ(c.of(good).reason(), FinishReason::error);
  EXPECT_EQ(c.of(good).last.error, "no memory for this");
  model.fails = false;
  EXPECT_EQ(run_one(engine, request(kPrompt, 10)).tokens.size(), 10u);
  EXPECT_EQ(engine.metrics().finished_error, 2);
  Request score = request({3, 99, 4}, 0);
  score.params.prompt_logprobs_from = 0;
  const Answer scored = run_one(engine, score);
  EXPECT_EQ(scored.last.error, "the log probability at position 2 is NaN; the weights or their scales are broken");
  EXPECT_TRUE(scored.prompt_logprobs.empty());
}

TEST(Engine, ReplacingTheModelForgetsThePrefixes) {
  Engine engine = make_engine({.block_size = 4});
  const std::vector<int32_t> prompt(20, 33);
  const Answer before = run_one(engine, request(prompt, 5));
  EXPECT_THROW(engine.replace_model(load(fixture_folder("nemotron-h"))), Error);
  EXPECT_EQ(run_one(engine, request(prompt, 5)).last.usage.cached_tokens, 16);
  engine.replace_model(fixture_model());
  const Answer after = run_one(engine, request(prompt, 5));
  EXPECT_EQ(after.last.usage.cached_tokens, 0);
  EXPECT_EQ(after.tokens, before.tokens);
}

TEST(Engine, RefusesConfigurations) {
  EXPECT_THROW(make_engine({.context_length = -1}), Error);
  EXPECT_THROW(make_engine({.context_length = 1 << 20}), Error);
  EXPECT_THROW(make_engine({.max_running = 0}), Error);
  EXPECT_THROW(make_engine({.max_queued = 0}), Error);
  EXPECT_THROW(make_engine({.prefill_chunk = -2}), Error);
  EXPECT_THROW(make_engine({.block_size = 0}), Error);
  EXPECT_THROW(make_engine({.state_snapshots = -1}), Error);
  EXPECT_THROW(make_engine({.speculative_steps = 2}), Error) << "the model has no draft head";
}

TEST(Engine, TheCacheBoundsTheContext) {
  Engine engine = make_engine({.cache_tokens = 100, .block_size = 8});
  EXPECT_EQ(engine.limits().context_length, 104);
  Request r = request(kPrompt, 1);
  r.params.max_tokens.reset();
  EXPECT_EQ(run_one(engine, r).tokens.size(), 104 - kPrompt.size()) << "up to the context's end";
}

}  // namespace
}  // namespace sluice::engine
