// SPDX-License-Identifier: Apache-2.0
// An engine of the bundled checkpoint, and the answers that its streams give.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/sluice.hpp"
#include "tests/capi/bundled_model.h"

struct Answer {
  std::string text;
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  std::vector<std::vector<sluice_logprob>> top, asked;
  std::vector<sluice_logprob> prompt;
  sluice_finish finish = SLUICE_FINISH_NONE;
  int32_t stop_token = -1;
  std::string stop_string;
  int64_t cached = 0;
};

inline void add(Answer& a, const sluice_event& e) {
  EXPECT_EQ(a.finish, SLUICE_FINISH_NONE);
  EXPECT_EQ(e.text[e.text_bytes], '\0');
  a.text.append(e.text, e.text_bytes);
  a.ids.insert(a.ids.end(), e.tokens, e.tokens + e.token_count);
  for (size_t i = 0; i < e.logprob_count; ++i) {
    const sluice_token_logprobs& l = e.logprobs[i];
    a.logprobs.push_back(l.chosen.logprob);
    a.top.emplace_back(l.top, l.top + l.top_count);
    a.asked.emplace_back(l.asked, l.asked + l.asked_count);
  }
  for (size_t i = 0; i < e.prompt_logprob_count; ++i) a.prompt.push_back(e.prompt_logprobs[i].chosen);
  a.finish = e.finish;
  a.stop_token = e.stop_token;
  if (e.stop_string != nullptr) a.stop_string = e.stop_string;
  EXPECT_EQ(e.error, nullptr);
  a.cached = e.cached_tokens;
}

using Answers = std::map<std::pair<size_t, int>, Answer>;  // by request and choice

inline Answers read_all(sluice_stream* stream) {
  Answers answers;
  for (;;) {
    auto event = SLUICE_INIT(sluice_event);
    int32_t state = -1;
    const sluice_status status = sluice_stream_next(stream, 1000, &event, &state);
    EXPECT_EQ(status, SLUICE_OK) << sluice_last_error();
    if (status != SLUICE_OK || state == SLUICE_STREAM_DONE) return answers;
    if (state == SLUICE_STREAM_EVENT) add(answers[{event.request, event.choice}], event);
  }
}

class CapiEngine : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto model = SLUICE_INIT(sluice_model_options);
    model.dtype = "float32";
    auto options = SLUICE_INIT(sluice_engine_options);
    options.threads = 2;
    options.model = &model;
    options.max_running = 4;
    options.max_queued = 8;
    options.cache_tokens = 4096;
    ASSERT_EQ(sluice_engine_create(kFolder.c_str(), &options, &engine_), SLUICE_OK) << sluice_last_error();
  }
  static void TearDownTestSuite() { sluice_engine_destroy(engine_); }
  void SetUp() override { ASSERT_NE(engine_, nullptr); }

  static std::vector<int32_t> encode(const std::string& text) {
    std::vector<int32_t> ids(text.size() + 8);
    size_t count = 0;
    EXPECT_EQ(sluice_engine_encode(engine_, text.data(), text.size(), ids.data(), ids.size(), &count), SLUICE_OK);
    ids.resize(count);
    return ids;
  }
  static sluice_request request(const std::vector<int32_t>& prompt, int64_t tokens) {
    auto r = SLUICE_INIT(sluice_request);
    r.prompt = prompt.data();
    r.prompt_count = prompt.size();
    r.max_new_tokens = tokens;
    return r;
  }
  static sluice_stream* submit(const std::vector<sluice_request>& requests, int wake_fd = 0) {
    sluice_stream* stream = nullptr;
    EXPECT_EQ(sluice_engine_submit(engine_, requests.data(), requests.size(), wake_fd, &stream), SLUICE_OK)
        << sluice_last_error();
    return stream;
  }
  static Answers run(const std::vector<sluice_request>& requests) {
    sluice_stream* stream = submit(requests);
    Answers answers = read_all(stream);
    sluice_stream_destroy(stream);
    return answers;
  }
  // The engine's thread takes cancellations between two steps: until then their places are not free.
  static void expect_idle() {
    auto info = SLUICE_INIT(sluice_engine_info);
    for (int i = 0; i < 2000; ++i) {
      ASSERT_EQ(sluice_engine_get_info(engine_, &info), SLUICE_OK);
      if (info.running + info.queued == 0) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    FAIL() << info.running << " requests run and " << info.queued << " wait after 10 s";
  }
  // An answer may end before a busy machine lets this thread go on: `attempt` says whether it was in time.
  template <class Attempt>
  static void expect_once_in_time(const Attempt& attempt) {
    for (int i = 0; i < 100; ++i)
      if (attempt()) return;
    FAIL() << "every answer came to its end";
  }
  static bool was_cancelled(const Answer& a) {
    EXPECT_TRUE(a.finish == SLUICE_FINISH_CANCELLED || a.finish == SLUICE_FINISH_LENGTH) << a.finish;
    return a.finish == SLUICE_FINISH_CANCELLED;
  }
  static void expect_refusal(const sluice_request& r, const char* sentence) {
    sluice_stream* stream = nullptr;
    EXPECT_EQ(sluice_engine_submit(engine_, &r, 1, 0, &stream), SLUICE_INVALID_ARGUMENT);
    EXPECT_EQ(stream, nullptr);
    EXPECT_STREQ(sluice_last_error(), sentence);
  }

  inline static sluice_engine* engine_ = nullptr;
};
