// SPDX-License-Identifier: Apache-2.0
// What is refused because it is wrong or would have no effect, and the sentence that says so.
#include <gtest/gtest.h>

#include "tests/grammar/grammar_case.h"

namespace sluice::grammar {
namespace {

TEST_F(Grammar, RefusalsSayWhatIsWrong) {
  expect_refused(regex("a("), "1 groups that are not closed");
  expect_refused(regex("a)"), "closes a group at byte 1 that was not opened");
  expect_refused(regex("[a"), "the regular expression cannot be compiled: ");
  expect_refused(ebnf("root ::= \"a\"\nother = \"b\""), "line 2");
  expect_refused(ebnf("start ::= \"a\""), "root");
  expect_refused(ebnf("root ::= nobody"), "nobody");
  expect_refused(schema("{"), "the JSON schema");
  expect_refused(schema(R"({"type":"strnig"})"), "strnig");
  expect_refused(schema(R"({"type":"integer","minimum":5,"maximum":4})"), "minimum");
  expect_refused(schema(R"({"type":"string","pattern":"("})"), "pattern");
  for (const char* lookaround : {"a(?=b)", "(?<=a)b", "a(?!b)", "\\1(a)"})
    EXPECT_NE(refusal(regex(lookaround)), "") << lookaround;
  for (const char* refused : {"a^b", "a$b", "a(?=b)"})
    EXPECT_EQ(refusal(regex(refused)).find("ignored"), std::string::npos) << refusal(regex(refused));
  EXPECT_EQ(refusal(schema(R"({"type":"string","pattern":"a$b"})")).find("ignored"), std::string::npos);
}

// What the library passes over is refused: it must not look as if it held.
TEST_F(Grammar, KeywordsWithoutEffectAreRefused) {
  for (const char* text :
       {R"({"not":{"type":"string"}})", R"({"type":"object","if":{"required":["a"]},"then":{}})",
        R"({"type":"array","items":{},"uniqueItems":true})",
        R"({"type":"array","items":{},"contains":{"type":"null"}})",
        R"({"type":"object","properties":{"a":{"type":"integer"}},"dependentRequired":{"a":["b"]}})",
        R"({"type":"object","properties":{"a":{"type":"null"}},"anyOf":[{"required":["a"]}]})",
        R"({"$ref":"#/$defs/a","minimum":3,"$defs":{"a":{"type":"integer"}}})", R"({"enum":["a","bc"],"minLength":2})",
        R"({"type":"string","enum":["a",1]})", R"({"minLength":2})", R"({"required":["a"]})",
        R"({"allOf":[{"type":"integer"},{"minimum":3}]})", R"({"type":"number","multipleOf":0.5})",
        R"({"type":"string","pattern":"a*","maxLength":3})", R"({"$ref":"http://example.org/schema"})",
        R"({"oneOf":[{"type":"integer"},{"type":"number"}]})"})
    EXPECT_NE(refusal(schema(text)), "") << text;
  // What says nothing about the value is no keyword, and neither is what nobody refers to.
  for (const char* text :
       {R"({"type":"string","title":"t","description":"d","default":"x","examples":["y"],"x-order":3})",
        R"({"$schema":"https://json-schema.org/draft/2020-12/schema","type":"null","$defs":{"a":{"not":{}}}})",
        R"({"$ref":"#/$defs/a","description":"d","$defs":{"a":{"type":"integer"}}})",
        R"({"type":"string","enum":["a"]})", R"({"type":"array","items":{"type":"null"},"uniqueItems":false})"})
    EXPECT_EQ(refusal(schema(text)), "") << text;
}

}  // namespace
}  // namespace sluice::grammar
