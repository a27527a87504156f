// SPDX-License-Identifier: Apache-2.0
// An engine on the GPU that begins with dummy weights and gets a trainer's tensors, against one that loaded the folder.
#include <algorithm>
#include <future>

#include "engine/live_engine.h"
#include "gpu.h"
#include "tests/support/random.h"

namespace sluice::model {
namespace {

using engine::LiveEngine;

std::unique_ptr<LiveEngine> start(Gpu& gpu, const LoadOptions& options) {
  engine::EngineConfig config;
  config.cache_tokens = 2048;
  config.prefix_cache = false;
  return std::make_unique<LiveEngine>(gpu.ctx, load_live_model(gpu.ctx, options), options, nullptr, config);
}

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  bool operator==(const Answer&) const = default;
};

Answer ask(LiveEngine& engine) {
  engine::Request r;
  r.prompt = {20, 45, 77, 101, 13, 7, 8, 9, 10, 11, 12};
  r.params.max_tokens = 16;
  r.params.ignore_eos = true;
  r.params.logprobs = true;
  Answer answer;
  std::promise<void> done;
  engine.submit(r, [&](const engine::Event& e) {
    answer.tokens.insert(answer.tokens.end(), e.tokens.begin(), e.tokens.end());
    for (const sampling::TokenLogprob& t : e.logprobs) answer.logprobs.push_back(t.chosen.logprob);
    if (e.reason != engine::FinishReason::none) done.set_value();
  });
  done.get_future().wait();
  return answer;
}

TEST(DummyUpdateSm90, GivesTheFoldersAnswers) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  Gpu gpu;
  std::mt19937 random = test::rng();
  LoadOptions options;
  options.path = in_repository("models/tiny-nemotron-h");
  options.deterministic = true;
  const io::Checkpoint checkpoint = io::Checkpoint::open(options.path);
  engine::NamedTensors tensors;
  for (const std::string& name : checkpoint.names()) tensors.emplace_back(name, checkpoint.tensor(name).clone());
  for (const char* format : {"", "fp8", "mxfp8", "nvfp4_online"}) {
    SCOPED_TRACE(format);
    options.quantization = format;
    options.dummy = false;
    const Answer expected = ask(*start(gpu, options));
    ASSERT_EQ(expected.tokens.size(), 16u);
    options.dummy = true;
    const auto dummies = start(gpu, options);
    const Answer of_dummies = ask(*dummies);
    EXPECT_NE(of_dummies, expected);
    for (const bool at_once : {false, true}) {
      std::shuffle(tensors.begin(), tensors.end(), random);
      if (at_once) dummies->begin_update();
      for (size_t from = 0; from < tensors.size(); from += 30) {
        const auto begin = tensors.begin() + static_cast<std::ptrdiff_t>(from);
        dummies->update({begin, begin + static_cast<std::ptrdiff_t>(std::min<size_t>(30, tensors.size() - from))}, {});
      }
      if (at_once) dummies->end_update({});
      EXPECT_EQ(ask(*dummies), expected);
      // Some of them again: the modules that they do not touch are shared.
      dummies->update({tensors.begin(), tensors.begin() + 10}, {});
      EXPECT_EQ(ask(*dummies), expected);
      dummies->release_memory({.weights = true});
      dummies->resume_memory({.weights = true});
      EXPECT_THROW(ask(*dummies), Error) << "the tensors have not come again";
    }
  }
}

// The loader refuses the last tensor when the dummies' memory has been given back.
TEST(DummyUpdateSm90, DummiesAreMadeAgain) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  Gpu gpu;
  LoadOptions options;
  options.path = in_repository("models/tiny-nemotron-h");
  options.deterministic = true;
  options.dummy = true;
  const io::Checkpoint checkpoint = io::Checkpoint::open(options.path);
  const std::string last = "backbone.norm_f.weight";
  engine::NamedTensors tensors;
  for (const std::string& name : checkpoint.names())
    if (name != last) tensors.emplace_back(name, checkpoint.tensor(name).clone());
  const auto dummies = start(gpu, options);
  const Answer of_dummies = ask(*dummies);
  dummies->update(tensors, {});
  EXPECT_THROW(dummies->update({{last, Tensor(DType::i32, checkpoint.find(last)->shape).zero()}}, {}), Error);
  EXPECT_EQ(ask(*dummies), of_dummies);
  dummies->update({{last, checkpoint.tensor(last).clone()}}, {});
  options.dummy = false;
  EXPECT_EQ(ask(*dummies), ask(*start(gpu, options)));
}

}  // namespace
}  // namespace sluice::model
