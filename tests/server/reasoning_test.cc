// SPDX-License-Identifier: Apache-2.0
#include "server/reasoning.h"

#include <gtest/gtest.h>

namespace sluice::server {
namespace {

using Begin = ReasoningSplitter::Begin;

TEST(Reasoning, EveryWayToCutTheTextGivesTheSame) {
  const struct {
    Begin begin;
    const char *text, *reasoning, *content;
  } cases[]{
      {Begin::unknown, "<think>\nso </b> </thin k\n</think>\n\nyes <think>", "so </b> </thin k\n", "yes <think>"},
      {Begin::unknown, " \n<think>a</think>b", "a", "b"},
      {Begin::unknown, "no thoughts </think> here", "", "no thoughts </think> here"},
      {Begin::unknown, " <thin air", "", " <thin air"},
      {Begin::unknown, "<thi", "", "<thi"},
      {Begin::unknown, "", "", ""},
      {Begin::unknown, "<think></think>", "", ""},
      {Begin::thinking, "deep </</think> b", "deep </", "b"},
      {Begin::thinking, "never ends </thin", "never ends </thin", ""},
      {Begin::answering, "<think>plain</think>", "", "<think>plain</think>"},
  };
  for (const auto& c : cases) {
    const std::string text = c.text;
    for (size_t i = 0; i <= text.size(); ++i)
      for (size_t j = i; j <= text.size(); ++j) {
        ReasoningSplitter splitter(c.begin);
        ReasoningSplitter::Pieces all;
        const auto add = [&](const ReasoningSplitter::Pieces& p) {
          all.reasoning += p.reasoning;
          all.content += p.content;
        };
        for (const std::string& piece : {text.substr(0, i), text.substr(i, j - i), text.substr(j)})
          add(splitter.push(piece));
        add(splitter.finish());
        ASSERT_EQ(all.reasoning, c.reasoning) << text << " cut at " << i << ", " << j;
        ASSERT_EQ(all.content, c.content) << text << " cut at " << i << ", " << j;
      }
  }
}

TEST(Reasoning, PromptsSayHowAnswersBegin) {
  EXPECT_EQ(beginning_of_answer("assistant\n<think>\n"), Begin::thinking);
  EXPECT_EQ(beginning_of_answer("assistant\n<think>\n\n</think>\n\n"), Begin::answering);
  EXPECT_EQ(beginning_of_answer("assistant\n"), Begin::unknown);
  EXPECT_EQ(beginning_of_answer(""), Begin::unknown);
}

}  // namespace
}  // namespace sluice::server
