// SPDX-License-Identifier: Apache-2.0
// Drafts through the shared library: the text with any number of them is the text without, for a model and an engine.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sluice/sluice.hpp"

namespace {

// The small model with a draft head, and as much of the bundled checkpoint's tokenizer as its vocabulary holds.
class CapiSpeculation : public testing::Test {
 protected:
  void SetUp() override {
    const std::filesystem::path source = SLUICE_SOURCE_DIR;
    std::string name = (std::filesystem::temp_directory_path() / "sluice-capi-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    for (const char* file : {"config.json", "model.safetensors"})
      std::filesystem::create_symlink(source / "tests/fixtures/deepseek-v3" / file, folder_ / file);
    nlohmann::json tokenizer = nlohmann::json::parse(std::ifstream(source / "models/tiny-nemotron-h/tokenizer.json"));
    nlohmann::json &words = tokenizer["model"]["vocab"], kept = nlohmann::json::object();
    for (const auto& [word, id] : words.items())
      if (id < kVocab) kept[word] = id;
    words = kept;
    tokenizer["model"]["merges"] = nlohmann::json::array();
    std::ofstream(folder_ / "tokenizer.json") << tokenizer;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static constexpr int kVocab = 331;
  std::filesystem::path folder_;
  const std::vector<int32_t> prompt_{5, 9, 200, 33};
};

sluice_generate_options tokens(double temperature, int steps, int fixed) {
  auto o = SLUICE_INIT(sluice_generate_options);
  o.max_new_tokens = 60;
  o.temperature = temperature;
  o.seed = 11;
  o.ignore_eos = 1;
  o.speculative_steps = steps;
  o.speculative_fixed_steps = fixed;
  return o;
}

TEST_F(CapiSpeculation, OfAModelKeepsTheText) {
  sluice::Context context(2);
  const sluice::Model model(context, folder_);
  ASSERT_EQ(model.info().has_draft, 1);
  const auto generate = [&](const sluice_generate_options& o) {
    std::vector<int32_t> ids;
    const sluice_generated made = model.generate(prompt_, o, [&](int32_t id, std::string_view) {
      ids.push_back(id);
      return true;
    });
    EXPECT_EQ(made.tokens, static_cast<int64_t>(ids.size()));
    return ids;
  };
  for (const double temperature : {0.0, 0.9}) {
    const std::vector<int32_t> plain = generate(tokens(temperature, 0, 0));
    EXPECT_EQ(plain.size(), 60u);
    for (const int fixed : {0, 1})
      for (int steps = 1; steps <= 4; ++steps)
        EXPECT_EQ(generate(tokens(temperature, steps, fixed)), plain) << steps << ", fixed " << fixed;
    // A program that was compiled before there was a choice.
    auto older = tokens(temperature, 2, 0);
    older.struct_size = offsetof(sluice_generate_options, speculative_fixed_steps);
    EXPECT_EQ(generate(older), plain);
  }
}

struct Drafted {
  std::vector<int32_t> ids;
  int64_t drafted = 0;
};

TEST_F(CapiSpeculation, OfAnEngineKeepsTheText) {
  const auto generate = [&](double temperature, int steps, int fixed) {
    auto options = SLUICE_INIT(sluice_engine_options);
    options.threads = 2;
    options.speculative_steps = steps;
    options.speculative_fixed_steps = fixed;
    Drafted out;
    sluice_engine* engine = nullptr;
    EXPECT_EQ(sluice_engine_create(folder_.c_str(), &options, &engine), SLUICE_OK) << sluice_last_error();
    if (engine == nullptr) return out;
    auto r = SLUICE_INIT(sluice_request);
    r.prompt = prompt_.data();
    r.prompt_count = prompt_.size();
    r.max_new_tokens = 60;
    r.temperature = temperature;
    r.seed = 11;
    r.ignore_eos = 1;
    sluice_stream* stream = nullptr;
    EXPECT_EQ(sluice_engine_submit(engine, &r, 1, 0, &stream), SLUICE_OK) << sluice_last_error();
    for (int32_t state = SLUICE_STREAM_WAITING; stream != nullptr && state != SLUICE_STREAM_DONE;) {
      auto event = SLUICE_INIT(sluice_event);
      EXPECT_EQ(sluice_stream_next(stream, 1000, &event, &state), SLUICE_OK) << sluice_last_error();
      if (state != SLUICE_STREAM_EVENT) continue;
      out.ids.insert(out.ids.end(), event.tokens, event.tokens + event.token_count);
      out.drafted = event.drafted;
    }
    sluice_stream_destroy(stream);
    sluice_engine_destroy(engine);
    return out;
  };
  for (const double temperature : {0.0, 0.9}) {
    const Drafted plain = generate(temperature, 0, 0);
    EXPECT_EQ(plain.ids.size(), 60u);
    EXPECT_EQ(plain.drafted, 0);
    for (const int steps : {1, 3}) {
      const Drafted fixed = generate(temperature, steps, 1);
      EXPECT_EQ(fixed.ids, plain.ids);
      EXPECT_GT(fixed.drafted, 0);
      EXPECT_EQ(generate(temperature, steps, 0).ids, plain.ids);
    }
  }
}

}  // namespace
