// SPDX-License-Identifier: Apache-2.0
// An engine of dummy weights that takes a trainer's tensors: what it answers is what an engine answers that loaded the
// folder with the same tensors.
#include <algorithm>
#include <atomic>
#include <future>
#include <random>

#include "engine/live_engine.h"
#include "io/tensor_values.h"
#include "tests/engine/fixture.h"
#include "tests/io/temp_dir.h"
#include "tests/support/random.h"

namespace sluice::engine {
namespace {

const std::vector<int32_t> kPrompt{20, 45, 77, 101, 13, 7, 8, 9, 10, 11, 12};

std::string bundled() { return std::string(SLUICE_SOURCE_DIR) + "/models/tiny-nemotron-h"; }

model::LoadOptions options_of(const std::filesystem::path& folder, const std::string& quantization = "") {
  model::LoadOptions o;
  o.path = folder;
  o.quantization = quantization;
  return o;
}

std::unique_ptr<LiveEngine> start(const model::LoadOptions& options) {
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

Answer ask(LiveEngine& engine) {
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

void expect_same(const Answer& a, const Answer& b) {
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

void expect_same_tensors(const io::Checkpoint& a, const io::Checkpoint& b) {
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

struct Case {
  const char *name, *folder;  // of tests/fixtures, of the source, or of SLUICE_TEST_MODELS
  std::string path() const {
    const std::string text = folder;
    if (text.starts_with("trained/")) return test::test_models() + text.substr(7);
    return std::string(SLUICE_SOURCE_DIR) + "/" + text;
  }
};

class DummyUpdate : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (std::string(GetParam().folder).starts_with("trained/")) SLUICE_SKIP_WITHOUT_MODELS();
  }
};
// Experts one by one and fused; names with both prefixes; a prediction layer with and without tensors that it can do
// without; a tied head.
INSTANTIATE_TEST_SUITE_P(Checkpoints, DummyUpdate,
                         testing::Values(Case{"qwen3_moe", "tests/fixtures/qwen3-moe"},
                                         Case{"nemotron_h", "tests/fixtures/nemotron-h"},
                                         Case{"deepseek_v3", "tests/fixtures/deepseek-v3"},
                                         Case{"bundled", "models/tiny-nemotron-h"},
                                         Case{"trained_qwen3_moe", "trained/tiny-qwen3-moe"},
                                         Case{"trained_deepseek_v3", "trained/tiny-deepseek-v3"}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(DummyUpdate, GivesTheFoldersAnswers) {
  Trainer trainer(GetParam().path());
  const auto loaded = start(trainer.loaded);
  const Answer expected = ask(*loaded);
  EXPECT_FALSE(loaded->sent());
  for (const bool at_once : {false, true}) {
    SCOPED_TRACE(at_once ? "between begin_update and end_update" : "each call for itself");
    const auto engine = start(trainer.dummies);
    const Answer of_dummies = ask(*engine);
    EXPECT_NE(of_dummies.tokens, expected.tokens);
    trainer.replaced = 0;
    if (at_once) engine->begin_update();
    bool complete = false;
    for (const NamedTensors& bucket : trainer.buckets()) {
      EXPECT_EQ(engine->sent()->complete(), complete);
      EXPECT_EQ(trainer.replaced > 0, !at_once && complete);
      trainer.send(*engine, bucket);
      complete = engine->sent()->complete();
      if (!complete) {
        EXPECT_LT(engine->sent()->come, engine->sent()->needed);
        EXPECT_TRUE(trainer.checkpoint.contains(engine->sent()->missing) || engine->weights().bytes() == 0);
      }
    }
    ASSERT_TRUE(complete) << engine->sent()->missing << " of " << engine->sent()->needed;
    EXPECT_EQ(engine->sent()->come, engine->sent()->needed);
    if (at_once) {
      expect_same(ask(*engine), of_dummies);
      EXPECT_EQ(engine->weights().bytes(), 0);
      engine->end_update(trainer.counted());
      EXPECT_EQ(trainer.replaced, 1);
    }
    expect_same(ask(*engine), expected);
    expect_same_tensors(engine->weights(), trainer.checkpoint);

    // From here on as of a folder: tensor by tensor.
    const std::string name = engine->weights().names().back();
    const Tensor zeros = trainer.checkpoint.tensor(name).clone().zero();
    trainer.replaced = 0;
    trainer.send(*engine, {{name, zeros}});
    loaded->update({{name, zeros}}, {});
    EXPECT_EQ(trainer.replaced, 1);
    expect_same(ask(*engine), ask(*loaded));
    expect_same_tensors(engine->weights(), loaded->weights());
    trainer.send(*engine, trainer.named(name));
    loaded->update(trainer.named(name), {});
    expect_same(ask(*engine), expected);
  }
}

TEST_P(DummyUpdate, EveryTensorOfAnotherShapeIsRefused) {
  Trainer trainer(GetParam().path());
  const auto engine = start(trainer.dummies);
  // The name of the embedding says which prefix the others have; experts are fused or not by what came first.
  NamedTensors first = trainer.tensors;
  std::erase_if(first, [](const auto& t) {
    return t.first.find("embed") == t.first.npos && t.first.find("experts") == t.first.npos;
  });
  engine->update(first, {});
  const int64_t come = engine->sent()->come;
  ASSERT_GT(come, 0);
  int refused = 0;
  for (const auto& [name, tensor] : trainer.tensors) {
    Shape other = tensor.shape();
    other.back() += 1;
    // Without memory: whoever read a byte of it would crash.
    const NamedTensors bad{{name, Tensor(tensor.dtype(), other, nullptr, nullptr)}};
    for (const bool update : {false, true})
      expect_refused(ErrorCode::invalid_argument,
                     {"\"" + name + "\"", sluice::to_string(other), "accepted: " + sluice::to_string(tensor.shape())},
                     [&] { update ? engine->update(bad, {}) : engine->check_update(bad); });
    ++refused;
  }
  EXPECT_EQ(refused, static_cast<int>(trainer.tensors.size()));
  EXPECT_EQ(engine->sent()->come, come);
}

TEST(DummyUpdates, AreQuantisedToTheLoadersBits) {
  for (const char* format : {"mxfp8", "nvfp4_online"}) {
    SCOPED_TRACE(format);
    Trainer trainer(bundled(), format);
    const Answer expected = ask(*start(trainer.loaded));
    const auto engine = start(trainer.dummies);
    EXPECT_NE(ask(*engine).tokens, expected.tokens);
    trainer.send_all(*engine);
    expect_same(ask(*engine), expected);
    expect_same_tensors(engine->weights(), trainer.checkpoint);
  }
}

TEST(DummyUpdates, OddTensorsAreRefusedOrKept) {
  Trainer trainer(bundled());
  const auto engine = start(trainer.dummies);
  const Answer of_dummies = ask(*engine);
  const auto [name, tensor] = trainer.tensors.front();
  expect_refused(ErrorCode::invalid_argument, {"\"" + name + "\"", "given twice"}, [&] {
    engine->update({{name, tensor}, {name, tensor}}, {});
  });
  // Larger than anything in such a model: nobody asked for it.
  expect_refused(ErrorCode::invalid_argument, {"\"x\"", "[1099511627776]", "accepted: at most"}, [&] {
    engine->check_update({{"x", Tensor(DType::f32, {int64_t{1} << 40}, nullptr, nullptr)}});
  });
  EXPECT_EQ(engine->sent()->come, 0);
  engine->update({{"model.layers.0.rotary_emb.inv_freq", Tensor(DType::f32, {8}).zero()}}, {});
  EXPECT_EQ(engine->sent()->come, 0) << "the model does not need it";
  // Of two of one name the later one counts.
  engine->update({{name, tensor.clone().zero()}}, {});
  EXPECT_EQ(engine->sent()->come, 1);
  expect_same(ask(*engine), of_dummies);
  trainer.send_all(*engine);
  expect_same(ask(*engine), ask(*start(trainer.loaded)));
  EXPECT_TRUE(engine->weights().contains("model.layers.0.rotary_emb.inv_freq"));
}

TEST(DummyUpdates, OneMissingTensorIsTheErrorOfTheEnd) {
  Trainer trainer(bundled());
  const auto engine = start(trainer.dummies);
  const Answer of_dummies = ask(*engine);
  engine->begin_update();
  engine->end_update({});  // of nothing
  engine->begin_update();
  const NamedTensors last{trainer.tensors.back()};
  trainer.tensors.pop_back();
  trainer.send_all(*engine);
  const int64_t all = engine->sent()->needed;
  expect_refused(ErrorCode::invalid_argument,
                 {fmt::format("{} of {} tensors have come", all - 1, all), "\"" + last[0].first + "\" is missing"},
                 [&] { engine->end_update(trainer.counted()); });
  EXPECT_EQ(trainer.replaced, 0);
  expect_same(ask(*engine), of_dummies);
  EXPECT_EQ(engine->sent()->come, all - 1) << "what came stays";
  engine->begin_update();
  trainer.send(*engine, last);
  engine->end_update(trainer.counted());
  EXPECT_EQ(trainer.replaced, 1);
  expect_same(ask(*engine), ask(*start(trainer.loaded)));
}

// The dummies are gone when the loader refuses the last tensor, and must be there again.
TEST(DummyUpdates, WhatTheLoaderRefusesLeavesTheDummies) {
  Trainer trainer(bundled());
  const auto engine = start(trainer.dummies);
  const Answer of_dummies = ask(*engine);
  const std::string name = "backbone.norm_f.weight";
  const auto at =
      std::find_if(trainer.tensors.begin(), trainer.tensors.end(), [&](auto& t) { return t.first == name; });
  std::iter_swap(at, trainer.tensors.end() - 1);
  const NamedTensors good{trainer.tensors.back()};
  trainer.tensors.pop_back();
  trainer.send_all(*engine);
  expect_refused(ErrorCode::bad_file, {name, "int32"}, [&] {
    engine->update({{name, Tensor(DType::i32, good[0].second.shape()).zero()}}, trainer.counted());
  });
  EXPECT_EQ(trainer.replaced, 0);
  expect_same(ask(*engine), of_dummies);
  EXPECT_EQ(engine->weights().bytes(), 0);
  trainer.send(*engine, good);
  EXPECT_EQ(trainer.replaced, 1);
  expect_same(ask(*engine), ask(*start(trainer.loaded)));
}

TEST(DummyUpdates, ReleasedMemoryComesBack) {
  Trainer trainer(bundled());
  const auto engine = start(trainer.dummies);
  const Answer of_dummies = ask(*engine), expected = ask(*start(trainer.loaded));
  const MemoryTags both{.weights = true, .kv_cache = true};
  // Dummies are made again, without what had come for a model that never was complete.
  engine->update({trainer.tensors.front()}, {});
  engine->release_memory(both);
  expect_refused(ErrorCode::busy, {"weights and kv_cache"}, [&] { ask(*engine); });
  expect_refused(ErrorCode::busy, {"released"}, [&] { engine->update({trainer.tensors.front()}, {}); });
  engine->resume_memory(both);
  EXPECT_EQ(engine->sent()->come, 0);
  expect_same(ask(*engine), of_dummies);
  // A trainer's tensors must come again, those too that the model can do without.
  const NamedTensors optional{{"model.layers.0.rotary_emb.inv_freq", Tensor(DType::f32, {8}).zero()}};
  engine->update(optional, {});
  trainer.send_all(*engine);
  expect_same(ask(*engine), expected);
  for (int step = 0; step < 2; ++step) {
    engine->release_memory(both);
    engine->resume_memory({.weights = true});
    expect_refused(ErrorCode::busy, {"kv_cache"}, [&] { ask(*engine); });
    engine->resume_memory({.kv_cache = true});
    expect_refused(ErrorCode::busy, {"have not come again"}, [&] { ask(*engine); });
    trainer.replaced = 0;
    trainer.send_all(*engine);
    expect_refused(ErrorCode::busy, {"1 tensors", optional[0].first}, [&] { ask(*engine); });
    EXPECT_EQ(engine->sent()->missing, optional[0].first);
    EXPECT_EQ(trainer.replaced, 0);
    trainer.send(*engine, optional);
    EXPECT_EQ(trainer.replaced, 1);
    expect_same(ask(*engine), expected);
  }
}

TEST(DummyUpdates, AFolderTakesTheirPlace) {
  Trainer trainer(bundled());
  const auto engine = start(trainer.dummies);
  engine->update({trainer.tensors.front()}, {});
  engine->reload([&] { return trainer.loaded; }, {});
  const Answer expected = ask(*start(trainer.loaded));
  expect_same(ask(*engine), expected);
  EXPECT_FALSE(engine->sent());
  expect_refused(ErrorCode::invalid_argument, {"\"x\""}, [&] {
    engine->update({{"x", Tensor(DType::f32, {1}).zero()}}, {});
  });
  engine->release_memory({.weights = true});
  engine->resume_memory({.weights = true});
  expect_same(ask(*engine), expected);
  // And back.
  engine->reload([&] { return trainer.dummies; }, {});
  EXPECT_EQ(engine->sent()->come, 0);
  trainer.send_all(*engine);
  expect_same(ask(*engine), expected);
}

// Answers that a pause keeps go on with the new weights; they hold the dummies until these are complete.
TEST(DummyUpdates, WhatRunsGoesOn) {
  Trainer trainer(bundled());
  const auto engine = start(trainer.dummies);
  std::promise<void> begun, done;
  std::atomic<bool> first = true;
  FinishReason reason = FinishReason::none;
  engine->submit(request(kPrompt, 400), [&](const Event& e) {
    if (first.exchange(false)) begun.set_value();
    if (e.reason == FinishReason::none) return;
    reason = e.reason;
    done.set_value();
  });
  begun.get_future().wait();
  engine->pause(PauseMode::in_place);
  trainer.send_all(*engine);
  EXPECT_EQ(trainer.replaced, 1);
  engine->resume();
  done.get_future().wait();
  EXPECT_EQ(reason, FinishReason::length);
  expect_same(ask(*engine), ask(*start(trainer.loaded)));
}

}  // namespace
}  // namespace sluice::engine
