// SPDX-License-Identifier: Apache-2.0
// Compiled grammars of each kind against texts that are known to be valid or not.
#include <gtest/gtest.h>

#include "grammar/structural_tag.h"
#include "tests/grammar/grammar_case.h"

namespace sluice::grammar {
namespace {

TEST_F(Grammar, TakesWhatFitsAndNothingElse) {
  EXPECT_TRUE(accepts(schema(kPerson), R"({"name": "Ann \"x\" \u00e9", "age": 7, "tags": ["a","b"]})"));
  EXPECT_TRUE(accepts(schema(kPerson), "{\n  \"name\": \"\",\n  \"age\": 150\n}"));
  for (const char* wrong :
       {R"({"name": "Ann"})", R"({"name": "Ann", "age": 151})", R"({"name": "Ann", "age": 1, "x": 2})",
        R"({"name": "Ann", "age": 1, "tags": ["c"]})", R"({"name": "Ann", "age": 1)", "7", ""})
    EXPECT_FALSE(accepts(schema(kPerson), wrong)) << wrong;
  EXPECT_TRUE(accepts(regex("[a-c]{2,3}(x|yz)?"), "abcyz"));
  EXPECT_FALSE(accepts(regex("[a-c]{2,3}(x|yz)?"), "abcdx"));
  EXPECT_FALSE(accepts(regex("[a-c]{2,3}(x|yz)?"), "a"));
  EXPECT_TRUE(accepts(ebnf("root ::= \"(\" root \")\" | \"\""), "((()))"));
  EXPECT_FALSE(accepts(ebnf("root ::= \"(\" root \")\" | \"\""), "((())"));
  const std::vector<std::string> choices{"yes", "no \"or\"\n so \\", "\xc3\xa9t\xc3\xa9"};
  for (const std::string& choice : choices) EXPECT_TRUE(accepts(one_of(choices), choice)) << choice;
  EXPECT_FALSE(accepts(one_of(choices), "ye"));
  // A control character before what could be a digit of its number.
  const std::vector<std::string> lines{"yes\nbut",
                                       "no\x1f"
                                       "0f",
                                       "\x7f"
                                       "a"};
  for (const std::string& line : lines) EXPECT_TRUE(accepts(one_of(lines), line)) << line;
}

TEST_F(Grammar, OpenSchemasTakePropertiesThatTheyDoNotName) {
  Source open = schema(kPerson);
  open.closed = false;
  EXPECT_TRUE(accepts(open, R"({"name": "Ann", "age": 1, "x": [2, null]})"));
  EXPECT_TRUE(accepts(schema(R"({"type":"object","additionalProperties":true})"), R"({"a": {"b": [1, 2.5e3, "c"]}})"));
}

TEST_F(Grammar, ATriggerBeginsAStructure) {
  const std::vector<std::string> triggers{"<tool="};
  const std::vector<TagStructure> structures{
      {"<tool=f>",
       io::parse_json_value(R"({"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]})", ""),
       "</tool>"},
      {"<tool=g>", {true}, "</tool>"}};
  const Source free = structural_tag(triggers, structures);
  EXPECT_TRUE(accepts(free, "no call at all"));
  EXPECT_TRUE(accepts(free, R"(I call <tool=f>{"x": 3}</tool> and <tool=g>[1]</tool>.)"));
  EXPECT_FALSE(accepts(free, R"(<tool=f>{"x": "3"}</tool>)"));
  EXPECT_FALSE(accepts(free, "<tool=h>"));
  const Source one = structural_tag(triggers, structures, {.at_least_one = true, .stop_after_first = true});
  EXPECT_TRUE(accepts(one, R"(<tool=f>{"x": 3}</tool>)"));
  EXPECT_FALSE(accepts(one, "no call at all"));
  for (const Source& source : {free, one}) {
    EXPECT_TRUE(accepts(source, "<tool=f>{\"x\":\n" + std::string(kMostWhiteSpace - 1, ' ') + "3}</tool>"));
    EXPECT_FALSE(accepts(source, "<tool=f>{\"x\":\n" + std::string(kMostWhiteSpace, ' ') + "3}</tool>"));
  }
  // SGLang's form is the same constraint.
  const Source given = structural_tag(io::parse_json_value(
      R"({"type":"structural_tag","triggers":["<tool="],"structures":[{"begin":"<tool=f>","end":"</tool>","schema":)"
      R"({"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}},)"
      R"({"begin":"<tool=g>","schema":true,"end":"</tool>"}]})",
      ""));
  EXPECT_EQ(given, free);
}

}  // namespace
}  // namespace sluice::grammar
