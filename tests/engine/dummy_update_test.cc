// SPDX-License-Identifier: Apache-2.0
// An engine of dummy weights that takes a trainer's tensors: what it answers is what an engine answers that loaded the
// folder with the same tensors.
#include <algorithm>
#include <atomic>
#include <future>

#include "tests/engine/trainer.h"

namespace sluice::engine {
namespace {

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
  expect_same_tensors(engine->weights(), trainer.checkpoint);
}

// What an engine of a folder refuses, once a model says which names there are.
TEST(DummyUpdates, UnknownNamesAreRefusedOfACompleteModel) {
  Trainer trainer(bundled());
  const auto engine = start(trainer.dummies);
  const NamedTensors early{{"model.layers.0.rotary_emb.inv_freq", Tensor(DType::f32, {8}).zero()}};
  const NamedTensors unknown{{"xyz", Tensor(DType::f32, {8}).zero()}};
  trainer.send(*engine, early);
  trainer.send_all(*engine);
  const Answer expected = ask(*engine);
  const int before = trainer.replaced;
  const auto [name, tensor] = trainer.tensors.front();
  const auto refused = [&] {
    for (const NamedTensors& given : {unknown, NamedTensors{{name, tensor.clone().zero()}, unknown[0]}})
      for (const bool update : {false, true})
        expect_refused(ErrorCode::invalid_argument, {"has no tensor \"xyz\""},
                       [&] { update ? engine->update(given, trainer.counted()) : engine->check_update(given); });
  };
  refused();
  engine->begin_update();
  refused();
  expect_refused(ErrorCode::invalid_argument, {"no tensor that the model uses"}, [&] { engine->end_update({}); });
  // A trainer that sends more than the model uses does so every time.
  trainer.send(*engine, early);
  EXPECT_EQ(trainer.replaced, before) << "nothing is in place";
  engine->begin_update();
  trainer.send(*engine, early);
  expect_refused(ErrorCode::invalid_argument, {"no tensor that the model uses"}, [&] { engine->end_update({}); });
  trainer.send(*engine, {trainer.tensors.front(), early[0]});
  EXPECT_EQ(trainer.replaced, before + 1);
  expect_same(ask(*engine), expected);
  expect_same_tensors(engine->weights(), trainer.checkpoint);
}

// The head of a model that has its embedding there: many trainers send it, some of them last.
TEST(DummyUpdates, ATiedHeadMayCome) {
  const std::string folder = std::string(SLUICE_SOURCE_DIR) + "/tests/fixtures/qwen3-moe";
  Trainer trainer(folder);
  std::string config = io::slurp(folder + "/config.json");
  const std::string untied = "\"tie_word_embeddings\": false";
  ASSERT_NE(config.find(untied), config.npos);
  config.replace(config.find(untied), untied.size(), "\"tie_word_embeddings\": true");
  trainer.configs.put("config.json", config);
  const NamedTensors head = trainer.named("lm_head.weight");
  std::erase_if(trainer.tensors, [&](const auto& t) { return t.first == head[0].first; });
  const auto engine = start(trainer.dummies);
  trainer.send_all(*engine);
  ASSERT_EQ(trainer.replaced, 1);
  const Answer expected = ask(*engine);
  trainer.send(*engine, head);
  EXPECT_EQ(trainer.replaced, 2);
  expect_same(ask(*engine), expected);
}

TEST(DummyUpdates, OneMissingTensorIsTheErrorOfTheEnd) {
  Trainer trainer(bundled());
  const auto engine = start(trainer.dummies);
  const Answer of_dummies = ask(*engine);
  engine->begin_update();
  expect_refused(ErrorCode::invalid_argument, {"no tensor that the model uses has come"},
                 [&] { engine->end_update({}); });
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
  // A trainer's tensors must come again, but for those that the model does not use.
  const NamedTensors last{trainer.tensors.back()};
  engine->update({{"model.layers.0.rotary_emb.inv_freq", Tensor(DType::f32, {8}).zero()}}, {});
  trainer.send_all(*engine);
  expect_same(ask(*engine), expected);
  for (int step = 0; step < 2; ++step) {
    engine->release_memory(both);
    engine->resume_memory({.weights = true});
    expect_refused(ErrorCode::busy, {"kv_cache"}, [&] { ask(*engine); });
    engine->resume_memory({.kv_cache = true});
    expect_refused(ErrorCode::busy, {"have not come again"}, [&] { ask(*engine); });
    trainer.replaced = 0;
    trainer.tensors.pop_back();
    trainer.send_all(*engine);
    trainer.tensors.push_back(last[0]);
    expect_refused(ErrorCode::busy, {"1 tensors", last[0].first}, [&] { ask(*engine); });
    EXPECT_EQ(engine->sent()->missing, last[0].first);
    EXPECT_EQ(trainer.replaced, 0);
    trainer.send(*engine, last);
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
