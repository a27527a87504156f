// SPDX-License-Identifier: Apache-2.0
// Strings of a JSON schema: what JSON writes in them, and their length.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "grammar/structural_tag.h"
#include "tests/grammar/grammar_case.h"
#include "tests/support/byte_vocabulary.h"

namespace sluice::grammar {
namespace {

// Inside of a string, what JSON does not write as it is; xgrammar alone takes some of these. Text comes as tokens of
// one byte, as control characters are left out of the vocabulary.
TEST_F(Grammar, StringsAreJson) {
  GrammarCompiler by_bytes(test::byte_vocabulary());
  const auto accepts = [&](const Source& source, const std::string& text) {
    GrammarState state(by_bytes.compile(source));
    for (const char c : text)
      if (!state.accept(static_cast<unsigned char>(c))) return false;
    return state.may_end();
  };
  for (const char* text :
       {R"({"type":"string"})", R"({"type":"string","maxLength":5})", R"({"type":"string","minLength":1})",
        R"({"type":"string","pattern":"^[^z]*$"})", R"({"type":"string","pattern":"^\\S*$"})",
        R"({"type":"string","pattern":"^(.|\\n)*$"})",
        R"({"anyOf":[{"type":"string","maxLength":9},{"type":"string","format":"uri-reference"}]})"}) {
    EXPECT_TRUE(accepts(schema(text), "\"ab\"")) << text;
    for (const char* broken : {"\"a\x12\"", "\"a\tb\"", "\"a\n\"", "\"a\"b\"", "\"a\\q\"", "\"\\\"", "\"a\\u12\""})
      EXPECT_FALSE(accepts(schema(text), broken)) << text << " takes " << broken;
  }
  EXPECT_TRUE(accepts(schema(R"({"type":"string","format":"email"})"), "\"a.b@c-d.org\""));
  EXPECT_FALSE(accepts(schema(R"({"type":"string","format":"email"})"), R"("\"\q\"@c.org")"));
  EXPECT_TRUE(accepts(schema("{\"type\":\"string\",\"pattern\":\"^[\xc3\xa4-\xc3\xbc]{2}\xf0\x9f\x98\x80$\"}"),
                      "\"\xc3\xa4\xc3\xbc\xf0\x9f\x98\x80\""));
  for (const char* text :
       {R"({"type":"string","pattern":"^\"$"})", R"({"type":"string","pattern":"^a\\\\b$"})",
        R"({"type":"string","pattern":"^.{0,129}$"})", R"({"type":"string","format":"json-pointer"})"})
    EXPECT_NE(refusal(schema(text)), "") << text;
}

// Around every bound and around the number of repetitions from which on they are counted, not written out.
TEST_F(Grammar, StringsHaveTheirLength) {
  using Bounds = std::pair<int, int>;
  for (const auto& [least, most] :
       {Bounds{0, 0}, Bounds{0, 1}, Bounds{1, 1}, Bounds{2, 5}, Bounds{5, 5}, Bounds{0, 127}, Bounds{0, 128},
        Bounds{127, 128}, Bounds{128, 128}, Bounds{0, 129}, Bounds{120, 140}}) {
    const std::string string = fmt::format(R"({{"type":"string","minLength":{},"maxLength":{}}})", least, most);
    const std::string field =
        fmt::format(R"({{"type":"object","properties":{{"x":{},"y":{}}},"required":["x","y"]}})", string, string);
    for (const int length : {0, 1, 2, 4, 5, 6, 119, 120, 126, 127, 128, 129, 130, 140, 141})
      for (const char* character : {"a", "\xc3\xa9"}) {  // one of two bytes
        const std::string text = fmt::format(R"("{}")", times(character, static_cast<size_t>(length)));
        const bool fits = length >= least && length <= most;
        EXPECT_EQ(accepts(schema(string), text), fits) << length << " of " << string;
        EXPECT_EQ(accepts(schema(field), fmt::format(R"({{"x": {}, "y":{}}})", text, text)), fits)
            << length << " of " << field;
      }
    const std::vector<std::string> triggers{"<f>"};
    const std::vector<TagStructure> structures{{"<f>", io::parse_json_value(field, ""), "</f>"}};
    const Source tag = structural_tag(triggers, structures, {.at_least_one = true});
    const std::string longest = times("a", static_cast<size_t>(most));
    const auto call = [&](const std::string& last) {
      return fmt::format(R"(<f>{{"x": "{}", "y": "{}"}}</f>)", longest, last);
    };
    EXPECT_TRUE(accepts(tag, call(longest))) << field;
    EXPECT_FALSE(accepts(tag, call(longest + 'a'))) << field;
  }
}

}  // namespace
}  // namespace sluice::grammar
