// SPDX-License-Identifier: Apache-2.0
// What the tests of other weights for a LiveEngine share: a trainer that has a checkpoint's tensors, and answers.
#pragma once

#include <algorithm>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/live_engine.h"
#include "io/tensor_values.h"
#include "tests/engine/fixture.h"
#include "tests/io/temp_dir.h"
#include "tests/support/random.h"

namespace sluice::engine {

inline const std::vector<int32_t> kPrompt{20, 45, 77, 101, 13, 7, 8, 9, 10, 11, 12};

inline std::string bundled() { return std::string(SLUICE_SOURCE_DIR) + "/models/tiny-nemotron-h"; }

inline model::LoadOptions options_of(const std::filesystem::path& folder, const std::string& quantization = "") {
  model::LoadOptions o;
  o.path = folder;
  o.quantization = quantization;
  return o;
}

inline std::unique_ptr<LiveEngine> start(const model::LoadOptions& options) {
  Context ctx = test_context();
  EngineConfig config;
  config.cache_tokens = 2048;
  config.block_size = 4;
  return std::make_unique<LiveEngine>(ctx, model::load_live_model(ctx, options), options, &tokenizer(), config);
}

// A checkpoint, and an engine of dummies in a folder that has its configurations alone.
struct Trainer {
  explicit Trainer(const std::string& folder, const std::string& quantization = "")
      : checkpoint(io::Checkpoint::open(folder)), loaded(options_of(folder, quantization)) {
    for (const char* name : {"config.json", "generation_config.json"})
      if (std::filesystem::exists(checkpoint.folder() / name)) configs.put(name, io::slurp(checkpoint.folder() / name));
    dummies = options_of(configs.path(), quantization);
    dummies.dummy = true;
    for (const std::string& name : checkpoint.names()) tensors.emplace_back(name, checkpoint.tensor(name).clone());
    std::shuffle(tensors.begin(), tensors.end(), random);
  }

  // In their order, at least two.
  std::vector<NamedTensors> buckets() {
    std::vector<NamedTensors> out(2);
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (i > 1 && random() % 16 == 0) out.emplace_back();
      out[i == 0 ? 0 : std::max<size_t>(1, out.size() - 1)].push_back(tensors[i]);
    }
    return out;
  }
  Replacement counted() {
    return {.in_place = [this] { ++replaced; }};
  }
  void send(LiveEngine& engine, const NamedTensors& some) {
    engine.check_update(some);
    engine.update(some, counted());
  }
  void send_all(LiveEngine& engine) {
    for (const NamedTensors& bucket : buckets()) send(engine, bucket);
  }
  NamedTensors named(const std::string& name) const {
    return {*std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.first == name; })};
  }

  std::mt19937 random = test::rng();
  io::TempDir configs;
  io::Checkpoint checkpoint;
  model::LoadOptions loaded, dummies;
  NamedTensors tensors;
  int replaced = 0;
};

inline Answer ask(LiveEngine& engine) {
  Request r = request(kPrompt, 12);
  r.params.logprobs = true;
  r.params.prompt_logprobs_from = 0;
  Collector c;
  std::promise<void> done;
  const RequestId id = engine.submit(r, [&, sink = c.sink()](const Event& e) {
    sink(e);
    if (e.reason != FinishReason::none) done.set_value();
  });
  done.get_future().wait();
  return c.of(id);
}

inline void expect_same(const Answer& a, const Answer& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.text, b.text);
  const auto values = [](const Answer& x) {
    std::vector<float> out;
    for (const auto* list : {&x.prompt_logprobs, &x.logprobs})
      for (const sampling::TokenLogprob& t : *list) out.push_back(t.chosen.logprob);
    return out;
  };
  EXPECT_EQ(values(a), values(b));
}

inline void expect_same_tensors(const io::Checkpoint& a, const io::Checkpoint& b) {
  ASSERT_EQ(a.names(), b.names());
  EXPECT_EQ(a.bytes(), b.bytes());
  for (const std::string& name : a.names())
    EXPECT_EQ(io::checksum(a.tensor(name)), io::checksum(b.tensor(name))) << name;
}

template <class F>
void expect_refused(ErrorCode code, std::initializer_list<std::string> words, F&& call) {
  try {
    call();
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string& word : words)
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << word << ": " << error.what();
  }
}

}  // namespace sluice::engine
