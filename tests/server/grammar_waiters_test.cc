// SPDX-License-Identifier: Apache-2.0
// Requests that wait for their grammars, without the requests.
#include "server/grammar_waiters.h"

#include <gtest/gtest.h>

#include <future>

#include "grammar/compiler.h"
#include "tests/server/fake_engine.h"

namespace sluice::server {
namespace {

using grammar::Kind;
using grammar::Source;

class GrammarWaitersTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!grammar::why_not_available().empty()) GTEST_SKIP() << grammar::why_not_available();
  }
  // Of its own, so that nothing is compiled yet.
  static model::ModelInfo info() {
    model::ModelInfo out;
    out.vocab = 4096;
    return out;
  }
  const std::shared_ptr<const ServedModel> model_ = std::make_shared<const ServedModel>(
      std::vector<std::string>{"tiny"}, tiny_folder(), text::Tokenizer(io::read_tokenizer(tiny_folder())), info(),
      SamplingDefaults());
};

TEST_F(GrammarWaitersTest, CallsWhenTheGrammarIsThere) {
  GrammarWaiters waiters(8);
  waiters.watch(model_);
  for (int i = 0; i < 20; ++i) {
    const Source source{Kind::regex, fmt::format("a{{1,{}}}b", 5 + i)};
    EXPECT_FALSE(model_->grammars().try_compile(source));
    std::promise<bool> called;
    ASSERT_TRUE(waiters.wait(source, [&] { called.set_value(model_->grammars().try_compile(source) != nullptr); }));
    EXPECT_TRUE(called.get_future().get()) << "called too early";
  }
  // One that the compiler has never heard of has nothing to wait for, nor has one that it refuses.
  for (const char* text : {"never asked for", "(", "a{1,24}b"}) {
    std::promise<void> called;
    ASSERT_TRUE(waiters.wait({Kind::regex, text}, [&] { called.set_value(); }));
    called.get_future().wait();
  }
  EXPECT_EQ(waiters.waiting(), 0U);
}

TEST_F(GrammarWaitersTest, HasRoomForSoManyAndLetsGoOfThem) {
  // It takes a while: strings whose repetitions are counted, each of its own length.
  const auto slow_one = [](int attempt) {
    std::string properties;
    for (int i = 0; i < 6; ++i)
      properties +=
          fmt::format(R"({}"p{}":{{"type":"string","maxLength":{}}})", i == 0 ? "" : ",", i, 200 + 6 * attempt + i);
    return Source{Kind::json_schema, R"({"type":"object","properties":{)" + properties + "}}"};
  };
  std::atomic<int> called{0};
  Source slow;
  for (int attempt = 0;; ++attempt) {
    called = 0;
    slow = slow_one(attempt);
    GrammarWaiters waiters(2);
    waiters.watch(model_);
    ASSERT_FALSE(model_->grammars().try_compile(slow));
    EXPECT_TRUE(waiters.wait(slow, [&] { ++called; }));
    EXPECT_TRUE(waiters.wait(slow, [&] { ++called; }));
    const bool third = waiters.wait(slow, [&] { ++called; });
    // On a busy machine it may be there before all have asked.
    if (attempt < 20 && model_->grammars().try_compile(slow)) {
      while (waiters.waiting() > 0) std::this_thread::yield();
      continue;
    }
    EXPECT_FALSE(third);
    waiters.release();
    while (waiters.waiting() > 0) std::this_thread::yield();
    std::promise<void> later;
    EXPECT_TRUE(waiters.wait(slow, [&] { later.set_value(); }));
    later.get_future().wait();
    break;
  }
  EXPECT_EQ(called, 2);
  {
    GrammarWaiters waiters(2);
    waiters.watch(model_);
    EXPECT_TRUE(waiters.wait(slow, [&] { ++called; }));
  }  // does not wait for it
  while (model_->grammars().stats().pending > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace
}  // namespace sluice::server
