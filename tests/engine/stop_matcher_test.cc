// SPDX-License-Identifier: Apache-2.0
#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/support/random.h"

namespace sluice::engine {
namespace {

struct Result {
  std::string text, matched;
  bool operator==(const Result&) const = default;
};

// The definition: the text up to the first end of any stop string, without it.
Result by_definition(const std::string& text, const std::vector<std::string>& stops, bool include) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string longest;
    for (const std::string& s : stops)
      if (s.size() <= end && text.substr(end - s.size(), s.size()) == s && s.size() > longest.size()) longest = s;
    if (!longest.empty()) return {text.substr(0, include ? end : end - longest.size()), longest};
  }
  return {text, ""};
}

TEST(StopMatcher, FindsTheSameHoweverTheTextIsCut) {
  std::mt19937 random = test::rng();
  const auto word = [&](size_t most) {
    std::string s;
    for (size_t n = 1 + random() % most; n > 0; --n) s += static_cast<char>('a' + random() % 2);
    return s;
  };
  int matches = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    for (size_t n = random() % 4; n > 0; --n) stops.push_back(word(7));
    const std::string text = word(30);
    const bool include = random() % 2 == 0;
    StopMatcher matcher(stops, include);
    std::string out;
    bool matched = false;
    for (size_t at = 0; at < text.size() && !matched;) {
      const size_t n = 1 + random() % 4;
      matched = matcher.push(text.substr(at, n), out);
      at += n;
      const std::string so_far = text.substr(0, at);
      ASSERT_EQ(so_far.compare(0, out.size(), out), 0) << "out is no beginning of the text";
      if (matched) break;
      // Held back is only what may become a stop string.
      const std::string held = so_far.substr(std::min(out.size(), so_far.size()));
      const auto may_grow = [&](const std::string& stop) { return stop.starts_with(held); };
      ASSERT_TRUE(held.empty() || std::any_of(stops.begin(), stops.end(), may_grow)) << held;
    }
    if (!matched) matcher.finish(out);
    ASSERT_EQ((Result{out, matched ? matcher.matched() : ""}), by_definition(text, stops, include)) << text;
    matches += matched ? 1 : 0;
  }
  EXPECT_GT(matches, 3000);
}

}  // namespace
}  // namespace sluice::engine
