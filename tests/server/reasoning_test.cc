// SPDX-License-Identifier: Apache-2.0
#include "server/reasoning/think.h"

#include <gtest/gtest.h>

namespace sluice::server {
namespace {

using State = ReasoningParser::State;

TEST(Reasoning, EveryWayToCutTheTextGivesTheSame) {
  const struct {
    State begin;
    const char *text, *reasoning, *content;
  } cases[]{
      {State::unknown, "<think>\nso </b> </thin k\n</think>\n\nyes <think>", "so </b> </thin k\n", "yes <think>"},
      {State::unknown, " \n<think>a</think>b", "a", "b"},
      {State::unknown, "no thoughts </think> here", "", "no thoughts </think> here"},
      {State::unknown, " <thin air", "", " <thin air"},
      {State::unknown, "<thi", "", "<thi"},
      {State::unknown, "", "", ""},
      {State::unknown, "<think></think>", "", ""},
      {State::thinking, "deep </</think> b", "deep </", "b"},
      {State::thinking, "never ends </thin", "never ends </thin", ""},
      {State::answering, "<think>plain</think>", "", "<think>plain</think>"},
  };
  for (const auto& c : cases) {
    const std::string text = c.text;
    for (size_t i = 0; i <= text.size(); ++i)
      for (size_t j = i; j <= text.size(); ++j) {
        for (const bool tags_stay : {false, true}) {
          ThinkParser parser(c.begin, tags_stay);
          std::string reasoning, content, all;
          const auto add = [&](const std::vector<ReasoningPart>& parts) {
            for (const ReasoningPart& part : parts) {
              (part.thought ? reasoning : content) += part.text;
              all += part.text;
            }
          };
          for (const std::string& piece : {text.substr(0, i), text.substr(i, j - i), text.substr(j)})
            add(parser.push(piece));
          add(parser.finish());
          if (tags_stay)
            ASSERT_EQ(all, text) << " cut at " << i << ", " << j;
          else
            ASSERT_EQ(reasoning, c.reasoning) << text << " cut at " << i << ", " << j;
          ASSERT_EQ(content, c.content) << text << " cut at " << i << ", " << j;
        }
      }
  }
}

// The parts of a text that one format makes, thoughts in brackets.
std::string parted(const ReasoningFormat& format, const std::vector<std::string>& pieces, bool tags_stay = false) {
  const auto parser = format.parser({"<|start|>assistant", "", tags_stay});
  std::string thought, content;
  const auto add = [&](const std::vector<ReasoningPart>& parts) {
    for (const ReasoningPart& part : parts) (part.thought && !tags_stay ? thought : content) += part.text;
  };
  for (const std::string& piece : pieces) add(parser->push(piece));
  add(parser->finish());
  return tags_stay ? content : "[" + thought + "]" + content;
}

TEST(Reasoning, HarmonysChannels) {
  const std::string start = "<|start|>assistant",
                    call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}";
  const std::pair<std::string, std::string> cases[]{
      {"<|channel|>analysis<|message|>Hm. a < b<|end|>" + start + "<|channel|>final<|message|>Yes.<|return|>",
       "[Hm. a < b]Yes."},
      {"<|channel|>analysis<|message|>Hm.<|end|>" + start + "<|channel|>commentary<|message|>I look.<|end|>" + start +
           call,
       "[Hm.]I look." + start + call},
      {call + "<|call|>", "[]" + call + "<|call|>"},
      {" to=functions.f<|channel|>commentary json<|message|>{}",
       "[] to=functions.f<|channel|>commentary json<|message|>{}"},
      {"<|channel|>analysis<|message|>a<|end|>" + start + "<|channel|>analysis<|message|>b<|end|>", "[ab]"},
      {"<|channel|>analysis<|message|>never ends <|en", "[never ends <|en]"},
      {"no channels <|at all", "[]no channels <|at all"},
      {"<|channel|>ana", "[]<|channel|>ana"},
      {"<|channel|>" + std::string(600, 'x') + "<|message|>", "[]<|channel|>" + std::string(600, 'x') + "<|message|>"},
      {"", "[]"},
  };
  const ReasoningFormat& format = *reasoning_format("gpt-oss");
  for (const auto& [text, expected] : cases)
    for (size_t i = 0; i <= text.size(); ++i) {
      ASSERT_EQ(parted(format, {text.substr(0, i), text.substr(i)}), expected) << "cut at " << i;
      ASSERT_EQ(parted(format, {text.substr(0, i), text.substr(i)}, true), text) << "cut at " << i;
    }
}

TEST(Reasoning, TheTemplateChoosesTheFormat) {
  const auto chosen = [](const char* text) {
    const ReasoningFormat* format = reasoning_format_of(text);
    return format == nullptr ? std::string("none") : std::string(format->names[0]);
  };
  EXPECT_EQ(chosen("{{ messages }}"), "none");
  EXPECT_EQ(chosen("{{ content.split('</think>')[-1] }}"), "qwen3");
  EXPECT_EQ(chosen("<|start|>assistant<|channel|>analysis<|message|>"), "gpt-oss");
  for (const char* name : {"qwen3", "deepseek-r1", "deepseek_r1", "gpt-oss", "openai_gptoss", "glm45", "kimi_k2"})
    EXPECT_NE(reasoning_format(name), nullptr) << name;
  // DeepSeek-R1 thinks without saying so.
  EXPECT_EQ(parted(*reasoning_format("deepseek-r1"), {"Hm.</think>Yes."}), "[Hm.]Yes.");
  EXPECT_EQ(parted(*reasoning_format("qwen3"), {"Hm.</think>Yes."}), "[]Hm.</think>Yes.");
}

TEST(Reasoning, PromptsSayHowAnswersBegin) {
  EXPECT_EQ(beginning_of_answer("assistant\n<think>\n"), State::thinking);
  EXPECT_EQ(beginning_of_answer("assistant\n<think>\n\n</think>\n\n"), State::answering);
  EXPECT_EQ(beginning_of_answer("assistant\n"), State::unknown);
  EXPECT_EQ(beginning_of_answer(""), State::unknown);
}

}  // namespace
}  // namespace sluice::server
