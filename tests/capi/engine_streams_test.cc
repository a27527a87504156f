// SPDX-License-Identifier: Apache-2.0
// Requests under way in an engine: descriptors that wake, cancellation, a full queue, pauses, other weights, the end.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/capi/engine_case.h"

namespace {

TEST_F(CapiEngine, ADescriptorWakesAnEventLoop) {
  const int fd = eventfd(0, EFD_NONBLOCK);
  const auto prompt = encode("Once upon a time");
  sluice_stream* stream = submit({request(prompt, 4)}, fd);
  Answer a;
  for (int32_t state = 0; state != SLUICE_STREAM_DONE;) {
    uint64_t woken = 0;
    ::fcntl(fd, F_SETFL, 0);  // a blocking read in place of an event loop
    ASSERT_EQ(::read(fd, &woken, sizeof woken), 8);
    ::fcntl(fd, F_SETFL, O_NONBLOCK);
    do {
      auto event = SLUICE_INIT(sluice_event);
      ASSERT_EQ(sluice_stream_next(stream, 0, &event, &state), SLUICE_OK);
      if (state == SLUICE_STREAM_EVENT) add(a, event);
    } while (state == SLUICE_STREAM_EVENT);
  }
  EXPECT_EQ(a.ids.size(), 4u);
  sluice_stream_destroy(stream);
  ::close(fd);
  const auto r = request(prompt, 1);
  EXPECT_EQ(sluice_engine_submit(engine_, &r, 1, fd, &stream), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_engine_submit(engine_, &r, 1, -1, &stream), SLUICE_INVALID_ARGUMENT);
}

TEST_F(CapiEngine, ARefusedCallTakesNoEvent) {
  const auto prompt = encode("Once upon a time");
  const Answer expected = run({request(prompt, 4)}).at({0, 0});
  sluice_stream* stream = submit({request(prompt, 4)});
  expect_idle();  // every event has come
  int32_t state = -1;
  EXPECT_EQ(sluice_stream_next(stream, 1000, nullptr, &state), SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(sluice_last_error(), "out is NULL; it must be given");
  sluice_event zeros{};
  EXPECT_EQ(sluice_stream_next(stream, 1000, &zeros, &state), SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(sluice_last_error(), "out.struct_size is 0; set it with SLUICE_INIT");
  EXPECT_EQ(state, SLUICE_STREAM_WAITING);
  auto event = SLUICE_INIT(sluice_event);
  EXPECT_EQ(sluice_stream_next(stream, 1000, &event, nullptr), SLUICE_INVALID_ARGUMENT);
  const Answers answers = read_all(stream);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers.at({0, 0}).ids, expected.ids);
  EXPECT_EQ(answers.at({0, 0}).finish, SLUICE_FINISH_LENGTH);
  sluice_stream_destroy(stream);
}

// A later version of the header has more fields.
struct NewerRequest {
  sluice_request known;
  int64_t more;
};

TEST_F(CapiEngine, RequestsOfANewerCaller) {
  const auto prompt = encode(kPrompt), other = encode("Once upon a time");
  NewerRequest both[] = {{request(prompt, 5), 0}, {request(other, 3), 0}};
  for (NewerRequest& r : both) r.known.struct_size = sizeof r;
  sluice_stream* stream = nullptr;
  ASSERT_EQ(sluice_engine_submit(engine_, &both[0].known, 2, 0, &stream), SLUICE_OK) << sluice_last_error();
  const Answers answers = read_all(stream);
  sluice_stream_destroy(stream);
  const Answers expected = run({request(prompt, 5), request(other, 3)});
  ASSERT_EQ(answers.size(), 2u);
  for (const auto& [key, a] : answers) EXPECT_EQ(a.ids, expected.at(key).ids);

  const auto refused = [&](const char* sentence) {
    EXPECT_EQ(sluice_engine_submit(engine_, &both[0].known, 2, 0, &stream), SLUICE_INVALID_ARGUMENT);
    EXPECT_EQ(stream, nullptr);
    EXPECT_STREQ(sluice_last_error(), sentence);
  };
  both[1].more = 1;
  refused("requests[1] sets a field that this version of the library does not know");
  both[1].known.struct_size = 0;
  refused(
      ("requests[1].struct_size is 0; accepted: " + std::to_string(sizeof both[0]) + ", as requests[0] has").c_str());
  both[0].known.struct_size = 3;
  refused(("requests[0].struct_size is 3; set it with SLUICE_INIT, " + std::to_string(sizeof(sluice_request)) +
           " bytes now")
              .c_str());
}

TEST_F(CapiEngine, CancelledAndAbandonedRequestsGiveTheirPlaces) {
  const auto prompt = encode("Once upon a time");
  auto r = request(prompt, 2000);
  r.ignore_eos = 1;
  expect_once_in_time([&] {
    sluice_stream* stream = submit({r, r});
    sluice_stream_cancel(stream);
    const auto answers = read_all(stream);
    sluice_stream_destroy(stream);
    return was_cancelled(answers.at({0, 0})) && was_cancelled(answers.at({1, 0}));
  });
  sluice_stream* left = submit({r, r, r, r});
  ASSERT_EQ(sluice_engine_pause(engine_, SLUICE_PAUSE_IN_PLACE), SLUICE_OK);  // so that they do not end by themselves
  sluice_stream_destroy(left);
  expect_idle();
  ASSERT_EQ(sluice_engine_continue(engine_), SLUICE_OK);
  auto info = SLUICE_INIT(sluice_engine_info);
  ASSERT_EQ(sluice_engine_get_info(engine_, &info), SLUICE_OK);
  EXPECT_EQ(info.max_running, 4);
  EXPECT_GT(info.cache_bytes, 0);
}

TEST_F(CapiEngine, AFullQueueIsBusy) {
  const auto prompt = encode("Once upon a time");
  auto r = request(prompt, 2000);
  r.ignore_eos = 1;
  ASSERT_EQ(sluice_engine_pause(engine_, SLUICE_PAUSE_IN_PLACE), SLUICE_OK);  // so that none of them ends
  sluice_stream* all = submit(std::vector<sluice_request>(12, r));            // a call is taken whole
  sluice_stream* none = nullptr;
  EXPECT_EQ(sluice_engine_submit(engine_, &r, 1, 0, &none), SLUICE_BUSY) << sluice_last_error();
  EXPECT_EQ(none, nullptr);
  sluice_stream_destroy(all);
  expect_idle();
  ASSERT_EQ(sluice_engine_continue(engine_), SLUICE_OK);
}

TEST_F(CapiEngine, OtherWeightsTakeOver) {
  EXPECT_EQ(sluice_engine_update_weights(engine_, "/nowhere"), SLUICE_NOT_FOUND);
  const auto prompt = encode(kPrompt);
  EXPECT_EQ(run({request(prompt, 4)}).at({0, 0}).text, " he went down the");
  auto r = request(prompt, 2000);
  r.ignore_eos = 1;
  expect_once_in_time([&] {
    sluice_stream* running = submit({r});
    EXPECT_EQ(sluice_engine_update_weights(engine_, kFolder.c_str()), SLUICE_OK) << sluice_last_error();
    const Answer a = read_all(running).at({0, 0});
    sluice_stream_destroy(running);
    return was_cancelled(a);
  });
  ASSERT_EQ(sluice_engine_flush_cache(engine_), SLUICE_OK);
  EXPECT_EQ(run({request(prompt, 4)}).at({0, 0}).text, " he went down the");
}

// A paused engine takes requests and answers none; what was running ends, begins again, or goes on.
TEST_F(CapiEngine, PausesHoldWhatRuns) {
  const auto prompt = encode(kPrompt);
  for (const sluice_pause mode : {SLUICE_PAUSE_ABORT, SLUICE_PAUSE_RETRACT, SLUICE_PAUSE_IN_PLACE}) {
    sluice_stream* stream = submit({request(prompt, 48)});
    auto event = SLUICE_INIT(sluice_event);
    int32_t state = 0;
    Answer a;
    while (state != SLUICE_STREAM_EVENT) ASSERT_EQ(sluice_stream_next(stream, 1000, &event, &state), SLUICE_OK);
    add(a, event);
    ASSERT_EQ(sluice_engine_pause(engine_, mode), SLUICE_OK);
    sluice_stream* waiting = submit({request(prompt, 3)});
    ASSERT_EQ(sluice_stream_next(waiting, 50, &event, &state), SLUICE_OK);
    EXPECT_EQ(state, SLUICE_STREAM_WAITING);
    ASSERT_EQ(sluice_engine_update_weights(engine_, kFolder.c_str()), SLUICE_OK) << sluice_last_error();
    ASSERT_EQ(sluice_engine_continue(engine_), SLUICE_OK);
    for (state = 0; state != SLUICE_STREAM_DONE;) {
      ASSERT_EQ(sluice_stream_next(stream, 1000, &event, &state), SLUICE_OK);
      if (state == SLUICE_STREAM_EVENT) add(a, event);
    }
    EXPECT_EQ(read_all(waiting).at({0, 0}).text, " he went down");
    if (a.finish == SLUICE_FINISH_CANCELLED) {
      EXPECT_EQ(mode, SLUICE_PAUSE_ABORT);
      EXPECT_LT(a.ids.size(), 48u);
    } else {  // with SLUICE_PAUSE_ABORT it ended before the pause
      EXPECT_EQ(a.text, kContinuation);
    }
    sluice_stream_destroy(stream);
    sluice_stream_destroy(waiting);
  }
  EXPECT_EQ(sluice_engine_pause(engine_, 3), SLUICE_INVALID_ARGUMENT);
}

// Streams may be read and destroyed after their engine.
TEST(CapiEngineEnd, StreamsOutliveTheEngine) {
  auto options = SLUICE_INIT(sluice_engine_options);
  options.threads = 1;
  std::vector<std::string> progress;
  options.user = &progress;
  options.progress = [](void* user, const char* what, int64_t, int64_t, const char*) {
    static_cast<std::vector<std::string>*>(user)->push_back(what);
  };
  sluice_engine* engine = nullptr;
  ASSERT_EQ(sluice_engine_create(kFolder.c_str(), &options, &engine), SLUICE_OK) << sluice_last_error();
  EXPECT_FALSE(progress.empty());
  const std::vector<int32_t> prompt{5, 6, 7};
  auto r = SLUICE_INIT(sluice_request);
  r.prompt = prompt.data();
  r.prompt_count = prompt.size();
  r.ignore_eos = 1;
  sluice_stream* stream = nullptr;
  ASSERT_EQ(sluice_engine_submit(engine, &r, 1, 0, &stream), SLUICE_OK);
  sluice_engine_destroy(engine);
  EXPECT_EQ(read_all(stream).at({0, 0}).finish, SLUICE_FINISH_CANCELLED);
  sluice_stream_destroy(stream);
}

}  // namespace
