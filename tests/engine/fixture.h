// SPDX-License-Identifier: Apache-2.0
// Engines over the small checkpoints, and the answers that they gave.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "engine/engine.h"
#include "io/tokenizer_json.h"
#include "model/generate.h"
#include "model/models.h"
#include "tests/support/golden.h"

namespace sluice::engine {

inline ThreadPool& test_pool() {
  static ThreadPool pool(2);
  return pool;
}
inline Context test_context() { return Context{test_pool()}; }

inline std::string fixture_folder(const std::string& name) {
  return std::string(SLUICE_SOURCE_DIR) + "/tests/fixtures/" + name;
}

inline const model::Model& load(const std::string& folder, DType dtype = DType::f32) {
  static std::map<std::pair<std::string, DType>, std::unique_ptr<model::Model>> loaded;
  auto& model = loaded[{folder, dtype}];
  if (!model) {
    Context ctx = test_context();
    model::LoadOptions o;
    o.path = folder;
    o.dtype = dtype;
    model = model::load_model(ctx, o);
  }
  return *model;
}

// Of the bundled checkpoint: its ids below 331 spell bytes and short words, which is what the fixtures' models write.
inline const text::Tokenizer& tokenizer() {
  static const text::Tokenizer t(io::read_tokenizer(std::string(SLUICE_SOURCE_DIR) + "/models/tiny-nemotron-h"));
  return t;
}

// All events of one choice, merged into one.
struct Answer {
  std::vector<int32_t> tokens;
  std::string text;
  std::vector<sampling::TokenLogprob> logprobs, prompt_logprobs;
  Event last;
  int events = 0;
  FinishReason reason() const { return last.reason; }
};

class Collector {
 public:
  Sink sink() {
    return [this](const Event& e) {
      EXPECT_EQ(answers_[key(e)].last.reason, FinishReason::none) << "an event after the last one";
      Answer& a = answers_[key(e)];
      a.tokens.insert(a.tokens.end(), e.tokens.begin(), e.tokens.end());
      a.text += e.text;
      a.logprobs.insert(a.logprobs.end(), e.logprobs.begin(), e.logprobs.end());
      a.prompt_logprobs.insert(a.prompt_logprobs.end(), e.prompt_logprobs.begin(), e.prompt_logprobs.end());
      a.last = e;
      ++a.events;
    };
  }
  const Answer& of(RequestId id, int choice = 0) { return answers_[{id, choice}]; }

 private:
  static std::pair<RequestId, int> key(const Event& e) { return {e.request, e.choice}; }
  std::map<std::pair<RequestId, int>, Answer> answers_;
};

inline void run_all(Engine& engine) {
  while (engine.step()) {
  }
  ASSERT_TRUE(engine.idle());
  const Metrics m = engine.metrics();
  EXPECT_EQ(m.blocks_used, 0) << "leaked blocks";
  EXPECT_EQ(m.running + m.waiting + m.queued, 0);
}

inline Answer run_one(Engine& engine, const Request& request) {
  Collector c;
  const RequestId id = engine.add(request, c.sink());
  run_all(engine);
  return c.of(id);
}

inline Request request(std::vector<int32_t> prompt, int64_t max_tokens, double temperature = 0, uint64_t seed = 0) {
  Request r;
  r.prompt = std::move(prompt);
  r.params.max_tokens = max_tokens;
  r.params.ignore_eos = true;
  r.params.sampling.temperature = temperature;
  r.params.sampling.seed = seed;
  return r;
}

}  // namespace sluice::engine
