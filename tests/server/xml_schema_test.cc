// SPDX-License-Identifier: Apache-2.0
// What any text under the constraint of a call with tags becomes: arguments that follow the function's schema.
#include <gtest/gtest.h>

#include <regex>

#include "grammar/structural_tag.h"
#include "sampling/choose.h"
#include "server/tool_calls/structural_tag.h"
#include "server/tool_calls/tool_call_formats.h"
#include "tests/grammar/grammar_case.h"
#include "tests/server/tool_transcripts.h"
#include "tests/support/byte_vocabulary.h"
#include "tests/support/random.h"

namespace sluice::server {
namespace {

constexpr const char* kSchema =
    R"({"type":"object","properties":{"city":{"type":"string","enum":["Paris"," R\nm "]},"word":{"const":"a b"},)"
    R"("name":{"type":"string","minLength":3,"maxLength":5},"code":{"type":"string","pattern":"^ [\\^b]{1,2}$"},)"
    R"("day":{"type":"string","format":"date"},"some":{"anyOf":[{"type":"null"},{"type":"string","maxLength":3}]},)"
    R"("count":{"type":"integer","minimum":0,"maximum":20}},"required":)"
    R"(["city","word","name","code","day","some","count"]})";

size_t characters(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & '\xC0') != '\x80'; }));
}

TEST(ToolCalls, ArgumentsBetweenTagsFollowTheSchema) {
  if (!grammar::why_not_available().empty()) GTEST_SKIP() << grammar::why_not_available();
  grammar::GrammarCompiler compiler(test::byte_vocabulary());
  Tool tool;
  tool.name = "f";
  tool.parameters = io::parse_json_value(kSchema, "the schema");
  const Tools tools{tool};
  auto random = test::rng();
  for (const char* name : {"qwen3_coder", "glm45"}) {
    const CallFormat& format = *tool_call_format(name);
    const auto grammar = compiler.compile(grammar::structural_tag(
        io::parse_json_value(structural_tag(format, tools, {.required = true, .parallel = false}), "the tag")));
    for (int round = 0; round < 100; ++round) {
      grammar::GrammarState state(grammar);
      std::string text;
      std::vector<uint32_t> mask(static_cast<size_t>(sampling::mask_words(256)));
      while (text.size() < 5000) {
        state.fill_mask(mask);
        std::vector<int32_t> allowed, spaces;
        for (int32_t id = 0; id < 256; ++id)
          if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0)
            (id == ' ' || id == '\n' ? spaces : allowed).push_back(id);
        if (allowed.empty() && spaces.empty()) break;
        // White space as often as all else.
        const auto& from = allowed.empty() || (!spaces.empty() && random() % 2 == 0) ? spaces : allowed;
        const int32_t id = from[random() % from.size()];
        ASSERT_TRUE(state.accept(id));
        text += static_cast<char>(id);
      }
      ASSERT_TRUE(state.may_end()) << text;
      const Parsed whole = parse(format, tools, {text}, {.constrained = true});
      std::vector<std::string_view> pieces;
      for (size_t i = 0; i < text.size(); ++i) pieces.push_back(std::string_view(text).substr(i, 1));
      ASSERT_EQ(parse(format, tools, pieces, {.constrained = true}), whole) << text;
      ASSERT_EQ(whole.count, 1u) << text;
      const size_t begin = whole.calls.find('{'), end = whole.calls.rfind('}');
      const io::JsonValue arguments = io::parse_json_value(whole.calls.substr(begin, end + 1 - begin), text);
      const auto string = [&](const char* key) { return *arguments.find(key)->as<std::string>(); };
      EXPECT_TRUE(string("city") == "Paris" || string("city") == " R\nm ") << text;
      EXPECT_EQ(string("word"), "a b") << text;
      EXPECT_TRUE(characters(string("name")) >= 3 && characters(string("name")) <= 5) << text;
      EXPECT_TRUE(std::regex_match(string("code"), std::regex(" [\\^b]{1,2}"))) << text;
      EXPECT_TRUE(std::regex_match(string("day"), std::regex("\\d{4}-\\d\\d-\\d\\d"))) << text;
      if (!arguments.find("some")->is_null()) EXPECT_LE(characters(string("some")), 3u) << text;
      EXPECT_LE(*arguments.find("count")->as<int64_t>(), 20) << text;
    }
  }
}

}  // namespace
}  // namespace sluice::server
