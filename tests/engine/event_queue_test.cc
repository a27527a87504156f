// SPDX-License-Identifier: Apache-2.0
// Events between the engine's thread and a reader, against a queue that keeps every one.
#include "engine/event_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "tests/support/random.h"

namespace sluice::engine {
namespace {

constexpr std::chrono::milliseconds kNow{0};
using Choice = std::pair<size_t, int>;

Event event_of(int choice, int32_t token, bool last = false) {
  Event e;
  e.choice = choice;
  e.tokens = {token};
  e.text = std::to_string(token) + " ";
  e.usage.completion_tokens = token;
  if (last) e.reason = FinishReason::length;
  return e;
}

TEST(EventQueue, MergesWhatIsNotReadYet) {
  std::mt19937_64 random = test::rng<std::mt19937_64>();
  for (int round = 0; round < 200; ++round) {
    const size_t sources = 1 + random() % 5;
    const int choices = static_cast<int>(1 + random() % 3);
    EventQueue queue(static_cast<int64_t>(sources) * choices);
    std::map<Choice, std::vector<int32_t>> pushed, read;
    std::vector<Choice> open, waiting;  // waiting: in the order in which they are to be read
    for (size_t s = 0; s < sources; ++s)
      for (int c = 0; c < choices; ++c) open.emplace_back(s, c);
    int32_t token = 0;
    const auto take = [&] {
      const auto entry = queue.next(kNow);
      ASSERT_EQ(entry.has_value(), !waiting.empty());
      if (!entry) return;
      const Choice choice{entry->source, entry->event.choice};
      ASSERT_EQ(choice, waiting.front()) << "the one that has waited longest";
      waiting.erase(waiting.begin());
      std::vector<int32_t>& all = read[choice];
      all.insert(all.end(), entry->event.tokens.begin(), entry->event.tokens.end());
      EXPECT_EQ(all, pushed[choice]) << "everything so far";
      EXPECT_EQ(entry->event.usage.completion_tokens, all.back());
      EXPECT_EQ(entry->mark, all.back());
      std::string text;
      for (const int32_t t : entry->event.tokens) text += std::to_string(t) + " ";
      EXPECT_EQ(entry->event.text, text);
    };
    while (!open.empty() || !waiting.empty()) {
      EXPECT_FALSE(queue.done());
      if (!open.empty() && random() % 3 != 0) {
        const size_t at = random() % open.size();
        const Choice choice = open[at];
        const bool last = random() % 8 == 0;
        if (last) open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
        ++token;
        queue.push(choice.first, event_of(choice.second, token, last), token);
        pushed[choice].push_back(token);
        if (std::find(waiting.begin(), waiting.end(), choice) == waiting.end()) waiting.push_back(choice);
      } else {
        take();
      }
    }
    EXPECT_EQ(read, pushed);
    EXPECT_TRUE(queue.done());
    EXPECT_FALSE(queue.next(kNow));
  }
}

}  // namespace
}  // namespace sluice::engine
