// SPDX-License-Identifier: Apache-2.0
// A whole model through the shared library: the bundled checkpoint, whose card says how it continues a prompt.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "sluice/sluice.hpp"
#include "tests/capi/bundled_model.h"
#include "tests/io/temp_dir.h"

namespace {
std::atomic<int> allocations_until_failure{-1};  // negative: none fails
}

// Before the C library's in the order of symbols, so the shared library calls this one.
extern "C" void* aligned_alloc(size_t alignment, size_t bytes) {
  static const auto next = reinterpret_cast<void* (*)(size_t, size_t)>(dlsym(RTLD_NEXT, "aligned_alloc"));
  if (allocations_until_failure > 0 && --allocations_until_failure == 0) return nullptr;
  return next(alignment, bytes);
}

namespace {

sluice_model_options float32() {
  auto options = sluice::Model::default_options();
  options.dtype = "float32";
  return options;
}

sluice_generate_options greedy(int64_t tokens) {
  auto options = SLUICE_INIT(sluice_generate_options);
  options.max_new_tokens = tokens;
  return options;
}

class CapiModel : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    sluice::Context context(2);
    model_ = new sluice::Model(context, kFolder, float32());
  }
  static void TearDownTestSuite() { delete model_; }
  static const sluice::Model* model_;
};
const sluice::Model* CapiModel::model_ = nullptr;

TEST(CapiModelOptions, DeterministicGivesTheSameText) {
  sluice::Context context(2);
  auto options = float32();
  options.deterministic = 1;
  const sluice::Model model(context, kFolder, options);
  std::string text;
  model.generate(model.encode(kPrompt), greedy(12), [&](int32_t, std::string_view piece) {
    text += piece;
    return true;
  });
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(kContinuation.substr(0, text.size()), text);
}

// Zeroed structs say what c.h documents: BF16 as stored, no cut of the distribution at any temperature.
TEST(CapiModelOptions, ZerosAreTheDefaults) {
  sluice::Context context(2);
  const auto text_of = [&](const sluice_model_options* options, double top_p) {
    sluice_model* model = nullptr;
    EXPECT_EQ(sluice_model_load(context.get(), kFolder.c_str(), options, &model), SLUICE_OK) << sluice_last_error();
    std::vector<int32_t> ids(64);
    size_t count = 0;
    EXPECT_EQ(sluice_model_encode(model, kPrompt.data(), kPrompt.size(), ids.data(), ids.size(), &count), SLUICE_OK);
    auto generate = greedy(24);
    generate.temperature = 1;
    generate.seed = 7;
    generate.top_p = top_p;
    std::string text;
    const auto append = [](void* user, int32_t, const char* piece) {
      *static_cast<std::string*>(user) += piece;
      return 0;
    };
    EXPECT_EQ(sluice_model_generate(model, ids.data(), count, &generate, append, &text, nullptr), SLUICE_OK);
    sluice_model_destroy(model);
    return text;
  };
  const auto zeros = SLUICE_INIT(sluice_model_options);
  auto stated = zeros;
  stated.dtype = "bfloat16";
  stated.moe_backend = "auto";
  stated.load_format = "auto";
  const std::string text = text_of(nullptr, 0);
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(text_of(&zeros, 0), text);
  EXPECT_EQ(text_of(&stated, 1), text);
}

TEST_F(CapiModel, ContinuesAsItsCardSays) {
  std::string streamed;
  std::vector<int32_t> ids;
  const auto result = model_->generate(model_->encode(kPrompt), greedy(48), [&](int32_t id, std::string_view text) {
    ids.push_back(id);
    streamed += text;
    return true;
  });
  EXPECT_EQ(streamed, kContinuation);
  EXPECT_EQ(model_->decode(ids), kContinuation);
  EXPECT_EQ(result.tokens, 48);
  EXPECT_FALSE(result.stopped);
  EXPECT_FALSE(result.cancelled);
  EXPECT_GT(result.decode_seconds, 0);
}

TEST_F(CapiModel, SessionStepsGiveTheSameText) {
  sluice::Session session(*model_, 128);
  for (int round = 0; round < 2; ++round) {
    std::vector<int32_t> next = model_->encode(kPrompt), made;
    const auto prompt = static_cast<int64_t>(next.size());
    for (int i = 0; i < 48; ++i) {
      const auto logits = session.append(next);
      next = {static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin())};
      made.push_back(next[0]);
    }
    EXPECT_EQ(session.length(), prompt + 47);
    EXPECT_EQ(model_->decode(made), kContinuation) << "round " << round;
    session.reset();
    EXPECT_EQ(session.length(), 0);
  }
}

TEST_F(CapiModel, EncodesAndDecodesTheGoldens) {
  std::ifstream file(kFolder + "/tokenizer_golden.json");
  const auto golden = nlohmann::json::parse(file);
  int cases = 0;
  for (const auto& row : golden.is_array() ? golden : golden.begin().value()) {
    const auto text = row.at("text").get<std::string>();
    EXPECT_EQ(model_->encode(text), row.at("ids").get<std::vector<int32_t>>()) << text;
    ++cases;
  }
  EXPECT_GT(cases, 20);
}

// Each byte is U+FFFD, which a vocabulary of bytes has as three ids.
TEST_F(CapiModel, TextThatIsNotUtf8IsEncoded) {
  const std::string latin(20, '\xe9');
  std::vector<int32_t> ids(200);
  size_t count = 0;
  ASSERT_EQ(sluice_model_encode(model_->get(), latin.data(), latin.size(), ids.data(), ids.size(), &count), SLUICE_OK);
  ids.resize(count);
  EXPECT_GT(count, latin.size() + 8);
  EXPECT_EQ(model_->encode(latin), ids);
}

TEST_F(CapiModel, SmallBuffersSayWhatTheyNeed) {
  const auto ids = model_->encode(kPrompt);
  int32_t two[2] = {-1, -1};
  size_t count = 0;
  EXPECT_EQ(sluice_model_encode(model_->get(), kPrompt.data(), kPrompt.size(), two, 2, &count),
            SLUICE_BUFFER_TOO_SMALL);
  EXPECT_EQ(count, ids.size());
  EXPECT_EQ(two[1], ids[1]);
  char text[6];
  size_t needed = 0;
  EXPECT_EQ(sluice_model_decode(model_->get(), ids.data(), ids.size(), 0, text, sizeof text, &needed),
            SLUICE_BUFFER_TOO_SMALL);
  EXPECT_EQ(needed, kPrompt.size() + 1);
  EXPECT_STREQ(text, "Henry");
}

TEST_F(CapiModel, CallbackCancelsOrThrows) {
  const auto prompt = model_->encode(kPrompt);
  int calls = 0;
  const auto result = model_->generate(prompt, greedy(48), [&](int32_t, std::string_view) { return ++calls < 5; });
  EXPECT_EQ(calls, 5);
  EXPECT_TRUE(result.cancelled);
  EXPECT_THROW(
      model_->generate(prompt, greedy(48), [](int32_t, std::string_view) -> bool { throw std::logic_error("mine"); }),
      std::logic_error);
}

TEST_F(CapiModel, AResultIsLookedAtBeforeTheWork) {
  const auto prompt = model_->encode(kPrompt);
  const auto options = greedy(4);
  int calls = 0;
  sluice_generated zeros{};
  const auto count_call = [](void* user, int32_t, const char*) { return ++*static_cast<int*>(user), 0; };
  EXPECT_EQ(sluice_model_generate(model_->get(), prompt.data(), prompt.size(), &options, count_call, &calls, &zeros),
            SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(sluice_last_error(), "result.struct_size is 0; set it with SLUICE_INIT");
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(sluice_model_encode(model_->get(), kPrompt.data(), kPrompt.size(), nullptr, 0, nullptr),
            SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(sluice_last_error(), "count is NULL; it must be given");
}

TEST_F(CapiModel, MoreTokensThanTheLongestSequence) {
  const int64_t longest = model_->info().max_positions;
  const auto refused = [&](size_t count, int64_t tokens, const std::string& sentence) {
    const std::vector<int32_t> ids(count, 5);
    const auto options = greedy(tokens);
    EXPECT_EQ(sluice_model_generate(model_->get(), ids.data(), ids.size(), &options, nullptr, nullptr, nullptr),
              SLUICE_INVALID_ARGUMENT);
    EXPECT_EQ(sluice_last_error(), sentence);
  };
  const std::string longest_text = std::to_string(longest);
  for (const int64_t tokens : {longest - 2, std::numeric_limits<int64_t>::max()})
    refused(3, tokens,
            "options.max_new_tokens is " + std::to_string(tokens) + "; accepted: at most " +
                std::to_string(longest - 3) + ", what 3 ids leave of the model's longest sequence, " + longest_text);
  refused(static_cast<size_t>(longest), 1,
          "ids has " + longest_text + " tokens; the model's longest sequence is " + longest_text +
              ", and leaves no room for an answer");
}

// The context serves one call at a time, and the callback is inside of one.
TEST_F(CapiModel, ACallbackThatCallsBackIsRefused) {
  const auto prompt = model_->encode(kPrompt);
  sluice::Session session(*model_, 16);
  int calls = 0;
  const auto refused = [](sluice_status status) {
    EXPECT_EQ(status, SLUICE_INVALID_ARGUMENT);
    EXPECT_NE(std::string(sluice_last_error()).find("callback"), std::string::npos) << sluice_last_error();
  };
  const auto result = model_->generate(prompt, greedy(3), [&](int32_t id, std::string_view) {
    ++calls;
    refused(sluice_session_append(session.get(), &id, 1, nullptr));
    const auto options = greedy(1);
    refused(sluice_model_generate(model_->get(), &id, 1, &options, nullptr, nullptr, nullptr));
    EXPECT_FALSE(model_->encode("what runs nothing is free").empty());
    EXPECT_NO_THROW(sluice::Session(*model_, 16));
    return true;
  });
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(result.tokens, 3);
  EXPECT_EQ(session.length(), 0);
  session.append(prompt);  // and afterwards nothing is left of it
  EXPECT_THROW(
      model_->generate(prompt, greedy(3), [&](int32_t id, std::string_view) { return !session.append({id}).empty(); }),
      sluice::Error);
}

TEST_F(CapiModel, TheHeadHasAFormatOfItsOwn) {
  sluice::Context context(1);
  auto options = sluice::Model::default_options();
  options.quantization = "mxfp4";
  const int64_t bf16 = sluice::Model(context, kFolder, options).info().weight_bytes;
  options.quantization_head = "mxfp8";
  EXPECT_LT(sluice::Model(context, kFolder, options).info().weight_bytes, bf16);
}

TEST_F(CapiModel, IdsThatHaveNoLogitsAreRefusedBeforeTheWeights) {
  const sluice::io::TempDir dir;  // without tensors
  std::filesystem::create_symlink(std::filesystem::path(kFolder) / "tokenizer.json", dir.path() / "tokenizer.json");
  nlohmann::json config = nlohmann::json::parse(std::ifstream(kFolder + "/config.json"));
  config["vocab_size"] = 100;
  std::ofstream(dir.path() / "config.json") << config;
  try {
    sluice::Context context(1);
    sluice::Model(context, dir.path().string(), float32());
    FAIL() << "loaded";
  } catch (const sluice::Error& e) {
    EXPECT_NE(std::string(e.what()).find("has ids up to 4095, but config.json's vocab_size is 100"), std::string::npos)
        << e.what();
  }
}

// Of a folder without tensors: the same model each time, and another one than the checkpoint's.
TEST_F(CapiModel, DummyWeightsNeedTheConfigurationAlone) {
  const sluice::io::TempDir dir;
  for (const char* name : {"config.json", "tokenizer.json"})
    std::filesystem::create_symlink(std::filesystem::path(kFolder) / name, dir.path() / name);
  sluice::Context context(2);
  EXPECT_THROW(sluice::Model(context, dir.path().string(), float32()), sluice::Error);
  auto options = float32();
  options.load_format = "dummy";
  const auto ids = model_->encode(kPrompt);
  const auto logits_of = [&](const sluice::Model& model) { return sluice::Session(model, 64).append(ids); };
  const sluice::Model dummy(context, dir.path().string(), options);
  EXPECT_EQ(dummy.info().vocab, model_->info().vocab);
  EXPECT_EQ(dummy.info().layers, model_->info().layers);
  const std::vector<float> logits = logits_of(dummy);
  EXPECT_TRUE(std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }));
  EXPECT_EQ(logits_of(sluice::Model(context, dir.path().string(), options)), logits);
  EXPECT_NE(logits_of(*model_), logits);
  options.load_format = "auto";
  EXPECT_EQ(logits_of(sluice::Model(context, kFolder, options)), logits_of(*model_));
}

TEST_F(CapiModel, RefusalsAreSentences) {
  sluice::Context context(1);
  EXPECT_THROW(sluice::Model(context, "/nowhere"), sluice::Error);
  EXPECT_NE(std::string(sluice_last_error()).find("/nowhere"), std::string::npos);
  auto options = sluice::Model::default_options();
  options.dtype = "float16";
  EXPECT_THROW(sluice::Model(context, kFolder, options), sluice::Error);
  EXPECT_NE(std::string(sluice_last_error()).find("float16"), std::string::npos);
  options = sluice::Model::default_options();
  options.quantization = "int3";
  EXPECT_THROW(sluice::Model(context, kFolder, options), sluice::Error);
  options.quantization = "mxfp4", options.quantization_head = "q8_0";
  EXPECT_THROW(sluice::Model(context, kFolder, options), sluice::Error);
  EXPECT_NE(std::string(sluice_last_error()).find("quantization_head is \"q8_0\"; accepted: bf16"), std::string::npos);
  options = sluice::Model::default_options();
  options.kv_cache_dtype = "fp8_e5m2";
  EXPECT_THROW(sluice::Model(context, kFolder, options), sluice::Error);
  EXPECT_NE(std::string(sluice_last_error()).find("kv_cache_dtype is \"fp8_e5m2\"; accepted: auto"), std::string::npos);
  options.dtype = "float32", options.kv_cache_dtype = "bfloat16";
  EXPECT_THROW(sluice::Model(context, kFolder, options), sluice::Error);
  options = sluice::Model::default_options();
  options.load_format = "pt";
  EXPECT_THROW(sluice::Model(context, kFolder, options), sluice::Error);
  EXPECT_STREQ(sluice_last_error(), "options.load_format is \"pt\"; accepted: auto, dummy");

  EXPECT_THROW(model_->generate({}, greedy(1)), sluice::Error);
  EXPECT_THROW(model_->generate({-1}, greedy(1)), sluice::Error);
  EXPECT_THROW(model_->generate({1 << 30}, greedy(1)), sluice::Error);
  EXPECT_THROW(model_->generate({1}, greedy(0)), sluice::Error);
  EXPECT_THROW(model_->generate({1}, greedy(1 << 20)), sluice::Error);
  auto speculative = greedy(4);
  speculative.speculative_steps = 2;
  EXPECT_EQ(model_->info().has_draft, 0);
  EXPECT_EQ(model_->info().row_invariant, 1);
  try {
    model_->generate({1}, speculative);
    FAIL();
  } catch (const sluice::Error& e) {
    EXPECT_EQ(e.status(), SLUICE_UNSUPPORTED) << e.what();
  }

  sluice::Session session(*model_, 8);
  EXPECT_THROW(session.append({}), sluice::Error);
  EXPECT_THROW(session.append(std::vector<int32_t>(9, 5)), sluice::Error);
  EXPECT_THROW(session.append({5, 1 << 30}), sluice::Error);
  EXPECT_EQ(session.length(), 0);
  EXPECT_NO_THROW(session.append(std::vector<int32_t>(8, 5)));
  EXPECT_THROW(sluice::Session(*model_, 0), sluice::Error);
  EXPECT_EQ(sluice_session_append(nullptr, nullptr, 0, nullptr), SLUICE_INVALID_ARGUMENT);
}

// Fails the n-th of the library's allocations of working memory from now on, for every n there is: inside each layer.
TEST_F(CapiModel, AFailureInsideAStepIsNotAppliedTwice) {
  const std::vector<int32_t> first = model_->encode(kPrompt);
  std::vector<int32_t> second;
  while (second.size() < 200) second.insert(second.end(), first.begin(), first.end());
  // More rows than the session and the pool have seen, so that they allocate; a fresh pool and session each time.
  const auto attempt = [&](int fail_at, const auto& then) {
    sluice::Context context(1);
    const sluice::Model model(context, kFolder, float32());
    sluice::Session session(model, 256);
    session.append(first);
    allocations_until_failure = fail_at;
    sluice_status status = SLUICE_OK;
    try {
      session.append(second);
    } catch (const sluice::Error& e) {
      status = e.status();
    }
    const bool failed = allocations_until_failure == 0;
    allocations_until_failure = -1;
    EXPECT_EQ(status, failed && status != SLUICE_OK ? SLUICE_OUT_OF_MEMORY : SLUICE_OK);
    then(session, status);
    return failed;
  };
  std::vector<float> expected;
  {
    sluice::Session session(*model_, 256);
    session.append(first);
    expected = session.append(second);
  }
  int failures = 0;
  for (int n = 1;; ++n) {
    SCOPED_TRACE("allocation " + std::to_string(n));
    const bool failed = attempt(n, [&](sluice::Session& session, sluice_status status) {
      if (status == SLUICE_OK) return;
      ++failures;
      EXPECT_EQ(session.length(), static_cast<int64_t>(first.size()));
      try {  // either refused, or as if nothing had happened
        EXPECT_EQ(session.append(second), expected);
      } catch (const sluice::Error& e) {
        EXPECT_EQ(e.status(), SLUICE_INVALID_ARGUMENT);
        EXPECT_NE(std::string(e.what()).find("sluice_session_reset"), std::string::npos) << e.what();
        session.reset();
        session.append(first);
        EXPECT_EQ(session.append(second), expected);
      }
    });
    if (!failed || HasFailure()) break;
  }
  EXPECT_GE(failures, 2) << "before and after layers have run";
  // A caller's mistake is noticed before anything runs.
  sluice::Session session(*model_, 256);
  session.append(first);
  EXPECT_THROW(session.append({5, 1 << 30}), sluice::Error);
  EXPECT_EQ(session.append(second), expected);
}

TEST_F(CapiModel, SessionsOfSeveralThreads) {
  const auto prompt = model_->encode(kPrompt);
  std::vector<float> logits[2];
  std::vector<std::thread> threads;
  for (auto& mine : logits) {
    threads.emplace_back([&] {
      sluice::Session session(*model_, 64);
      for (int32_t id : prompt) mine = session.append({id});
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(logits[0], logits[1]);
}

TEST(CapiLoad, ProgressAndLogReachTheCaller) {
  sluice::Context context(1);
  struct Seen {
    int64_t done = 0, total = -1;
  } seen;
  ASSERT_EQ(sluice_context_set_progress(
                context.get(),
                [](void* user, const char*, int64_t done, int64_t total, const char*) {
                  *static_cast<Seen*>(user) = {done, total};
                },
                &seen),
            SLUICE_OK);
  const sluice::Model model(context, kFolder);
  EXPECT_GT(seen.total, 0);
  EXPECT_EQ(seen.done, seen.total);
}

}  // namespace
