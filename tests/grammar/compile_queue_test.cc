// SPDX-License-Identifier: Apache-2.0
// Which grammars are compiled when, with compilations that end when the test says so.
#include "grammar/compile_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "base/error.h"

namespace sluice::grammar {
namespace {

using std::chrono::milliseconds;

Source pattern(const std::string& text) { return {Kind::regex, text}; }

// Compilations that wait for end(), "slow" ones at work. What begins with "bad" is refused, "memory" finds none.
class Stage {
 public:
  CompileQueue::Make make() {
    return [this](const Source& source, const Prepared&) {
      std::unique_lock lock(mutex_);
      ++begun_[source.text];
      changed_.notify_all();
      const auto ended = [&] { return all_ || ended_.count(source.text) > 0; };
      while (source.text.starts_with("slow") && !ended()) {
        lock.unlock();
        for (int i = 0; i < 100; ++i) std::this_thread::yield();  // time on the processor
        lock.lock();
      }
      changed_.wait(lock, ended);
      if (source.text.starts_with("bad")) fail(ErrorCode::invalid_argument, "it is bad");
      if (source.text.starts_with("memory")) throw std::bad_alloc();
      // No grammar that anybody looks into.
      const auto number = std::make_shared<int>(0);
      return CompileQueue::Compiled{GrammarPtr(number, reinterpret_cast<const CompiledGrammar*>(number.get())), 100};
    };
  }
  void end(const std::string& text) {
    const std::lock_guard lock(mutex_);
    ended_.insert(text);
    changed_.notify_all();
  }
  void end_all() {
    const std::lock_guard lock(mutex_);
    all_ = true;
    changed_.notify_all();
  }
  int begun(const std::string& text) {
    const std::lock_guard lock(mutex_);
    return begun_[text];
  }
  void wait_until_begun(const std::string& text) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return begun_[text] > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, int> begun_;
  std::set<std::string> ended_;
  bool all_ = false;
};

class CompileQueueTest : public testing::Test {
 protected:
  ~CompileQueueTest() override {
    stage_.end_all();
    wait_until([&] { return queue_->stats().pending == 0; });  // threads use the stage,
    queue_->on_change(nullptr);                                // and this
  }
  void start(CompilerLimits limits) {
    queue_ = std::make_shared<CompileQueue>(stage_.make(), limits);
    queue_->on_change([this] {
      const std::lock_guard lock(mutex_);
      ++changes_;
      changed_.notify_all();
    });
  }
  template <class Done>
  static void wait_until(Done done) {
    while (!done()) std::this_thread::sleep_for(milliseconds(1));
  }
  std::string refusal(const std::string& text) {
    try {
      return queue_->try_compile(pattern(text)) ? "compiled" : "pending";
    } catch (const Error& error) {
      return fmt::format("{} {}", error.code() == ErrorCode::busy ? "busy:" : "refused:", error.what());
    }
  }

  Stage stage_;
  std::shared_ptr<CompileQueue> queue_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int changes_ = 0;
};

constexpr double kLong = 1e6;  // seconds that no test waits

TEST_F(CompileQueueTest, EqualOnesAreCompiledOnceAndNobodyWaits) {
  start({.seconds = kLong, .patience = kLong});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(refusal("a"), "pending");
  EXPECT_TRUE(queue_->pending_until(pattern("a")));
  EXPECT_FALSE(queue_->pending_until(pattern("other")));
  std::vector<std::thread> threads;  // others do wait
  std::vector<GrammarPtr> got(4);
  for (GrammarPtr& g : got) threads.emplace_back([&] { g = queue_->compile(pattern("a")); });
  stage_.wait_until_begun("a");
  stage_.end("a");
  for (std::thread& t : threads) t.join();
  EXPECT_FALSE(queue_->pending_until(pattern("a")));
  for (const GrammarPtr& g : got) EXPECT_EQ(g, queue_->try_compile(pattern("a")));
  EXPECT_EQ(stage_.begun("a"), 1);
  EXPECT_EQ(queue_->stats().compiled, 1);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return changes_ == 1; });
}

TEST_F(CompileQueueTest, FewRunAtOnceAndFewWait) {
  start({.seconds = kLong, .patience = kLong, .waiting = 2, .at_once = 2});
  for (const char* text : {"a", "b", "c", "d"}) EXPECT_EQ(refusal(text), "pending");
  stage_.wait_until_begun("a");
  stage_.wait_until_begun("b");
  EXPECT_EQ(refusal("e"), "busy: 2 grammars wait to be compiled; try again later");
  EXPECT_EQ(refusal("c"), "pending") << "one that waits already";
  EXPECT_EQ(stage_.begun("c"), 0);
  EXPECT_EQ(queue_->stats().pending, 4U);
  stage_.end("b");
  stage_.wait_until_begun("c");
  EXPECT_EQ(stage_.begun("d"), 0) << "in order";
  stage_.end("a");
  stage_.wait_until_begun("d");
  EXPECT_EQ(refusal("e"), "pending");
}

TEST_F(CompileQueueTest, RefusalsAreRememberedButNotWantOfMemory) {
  start({.seconds = kLong, .patience = kLong});
  stage_.end_all();
  EXPECT_THROW(queue_->compile(pattern("bad")), Error);
  EXPECT_EQ(refusal("bad"), "refused: the regular expression cannot be compiled: it is bad");
  EXPECT_EQ(stage_.begun("bad"), 1);
  EXPECT_EQ(queue_->stats().refused, 2);
  EXPECT_THROW(queue_->compile(pattern("memory")), Error);
  EXPECT_THROW(queue_->compile(pattern("memory")), Error);
  EXPECT_EQ(stage_.begun("memory"), 2);
  EXPECT_THROW(queue_->try_compile(pattern("(")), Error) << "without a thread";
  EXPECT_EQ(stage_.begun("("), 0);
}

TEST_F(CompileQueueTest, TheSlowAreRefusedAndMakeRoom) {
  start({.seconds = 0.02, .patience = kLong, .at_once = 1, .late = 1});
  const auto wait_for_refusal = [&](const std::string& text) {
    wait_until([&] { return !queue_->pending_until(pattern(text)); });
    EXPECT_EQ(refusal(text), fmt::format("refused: the regular expression of {} bytes takes longer than 0.02 s to "
                                         "compile; a simpler one is needed",
                                         text.size()));
  };
  EXPECT_EQ(refusal("slow"), "pending");
  wait_for_refusal("slow");
  // It is set aside: the next runs beside it. That one is slow too, and there is no more room.
  EXPECT_EQ(refusal("slower"), "pending");
  wait_for_refusal("slower");
  EXPECT_EQ(refusal("third"), "pending");
  EXPECT_EQ(stage_.begun("third"), 0);
  // What comes late is there all the same, and makes room to set another aside.
  stage_.end("slow");
  wait_until([&] { return refusal("slow") == "compiled"; });
  wait_for_refusal("slower");
  stage_.wait_until_begun("third");
}

TEST_F(CompileQueueTest, WaitingHasAnEnd) {
  start({.seconds = kLong, .patience = 0.02, .at_once = 1, .late = 0});
  EXPECT_EQ(refusal("a"), "pending");
  EXPECT_EQ(refusal("b"), "pending");
  for (const char* text : {"a", "b"}) {
    wait_until([&] { return !queue_->pending_until(pattern(text)); });
    try {
      queue_->compile(pattern(text));
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::busy) << error.what();
    }
  }
  EXPECT_EQ(stage_.begun("b"), 0);
  stage_.end_all();
  wait_until([&] { return refusal("a") == "compiled" && refusal("b") == "compiled"; });
}

}  // namespace
}  // namespace sluice::grammar
