// SPDX-License-Identifier: Apache-2.0
// The compiler itself: its cache, its counters, threads, and compilations that take too long.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/grammar/grammar_case.h"

namespace sluice::grammar {
namespace {

TEST_F(Grammar, TheCacheIsBoundedAndCounts) {
  GrammarCompiler small(vocabulary(), {.cached_grammars = 2});
  const GrammarPtr first = small.compile(regex("a"));
  EXPECT_EQ(small.compile(regex("a")), first);
  small.compile(regex("b"));
  small.compile(regex("c"));
  EXPECT_EQ(small.stats().cached, 2u);
  EXPECT_EQ(small.stats().compiled, 3);
  EXPECT_EQ(small.stats().hits, 1);
  EXPECT_NE(small.compile(regex("a")), first);  // it was the oldest
  EXPECT_THROW(small.compile(regex("(")), Error);
  EXPECT_EQ(small.stats().refused, 1);
  GrammarState still(first);  // a dropped grammar stays with those who use it
  EXPECT_TRUE(still.accept_bytes("a"));
}

TEST_F(Grammar, ManyThreadsAskAtOnce) {
  GrammarCompiler shared(vocabulary());
  std::vector<std::thread> threads;
  std::vector<GrammarPtr> got(16);
  for (size_t i = 0; i < got.size(); ++i)
    threads.emplace_back([&, i] { got[i] = shared.compile(regex(i % 2 == 0 ? "[0-9]+" : "[a-z]+")); });
  for (std::thread& t : threads) t.join();
  for (size_t i = 2; i < got.size(); ++i) EXPECT_EQ(got[i], got[i % 2]);
  EXPECT_EQ(shared.stats().compiled, 2);
}

TEST_F(Grammar, ACompilationThatTakesTooLongIsRefused) {
  // Not looked at before 5 ms, in which kPerson may be done: strings whose repetitions are counted take a hundred times
  // that.
  GrammarCompiler hasty(vocabulary(), {.seconds = 1e-6});
  bool refused = false;
  // This thread may sleep on beyond the 5 ms, on a busy machine until the compilation is over: then the next one.
  for (int length = 200; length < 240 && !refused; length += 2) try {
      hasty.compile(
          schema(fmt::format(R"({{"type": "object", "properties": {{"a": {{"type": "string", "maxLength": {}}},
                                                                          "b": {{"type": "string", "maxLength": {}}}}}}})",
                             length, length + 1)));
    } catch (const Error& error) {
      refused = true;
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("takes longer than"), std::string::npos) << error.what();
    }
  EXPECT_TRUE(refused) << "within a microsecond";
  while (hasty.stats().pending > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // it goes on by itself
}

}  // namespace
}  // namespace sluice::grammar
