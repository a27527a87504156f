// SPDX-License-Identifier: Apache-2.0
#include "server/prompt_scores.h"

#include <gtest/gtest.h>

namespace sluice::server {
namespace {

engine::Event event_of(int choice, std::vector<int32_t> tokens, size_t scores = 0,
                       engine::FinishReason reason = engine::FinishReason::none) {
  engine::Event e;
  e.choice = choice;
  e.tokens = std::move(tokens);
  e.prompt_logprobs.resize(scores);
  e.reason = reason;
  return e;
}

// The events that came through, as "choice:tokens@version ".
struct Log {
  PromptScores scores;
  std::string text;

  void take(const engine::Event& event, const std::string& version) {
    scores.in_order(event, version, [&](const engine::Event& e, const std::string& v) {
      text += std::to_string(e.choice) + ":" + std::to_string(e.tokens.size()) + "@" + v + " ";
    });
  }
};

TEST(PromptScores, OtherChoicesWaitForTheLastOfThem) {
  Log log{PromptScores(true), ""};
  log.take(event_of(1, {7}), "old");
  log.take(event_of(0, {}, 512), "old");
  log.take(event_of(1, {8, 9}, 0, engine::FinishReason::length), "old");
  EXPECT_EQ(log.text, "");
  log.take(event_of(0, {5}, 88), "new");
  EXPECT_EQ(log.text, "0:1@new 1:1@old 1:2@old ");
  EXPECT_EQ(log.scores.tokens().size(), 600u);
  log.take(event_of(2, {4}), "new");
  EXPECT_EQ(log.text, "0:1@new 1:1@old 1:2@old 2:1@new ");
}

TEST(PromptScores, AnEndOfTheFirstChoiceEndsTheWaiting) {
  Log log{PromptScores(true), ""};
  log.take(event_of(1, {7}), "0");
  log.take(event_of(0, {}, 3, engine::FinishReason::cancelled), "0");
  EXPECT_EQ(log.text, "0:0@0 1:1@0 ");
}

TEST(PromptScores, NobodyWaitsWhereNoneAreWanted) {
  Log log{PromptScores(false), ""};
  log.take(event_of(1, {7}), "0");
  log.take(event_of(0, {}, 1), "0");  // an answer without tokens scores its last token for itself
  EXPECT_EQ(log.text, "1:1@0 0:0@0 ");
  EXPECT_TRUE(log.scores.tokens().empty());
}

}  // namespace
}  // namespace sluice::server
