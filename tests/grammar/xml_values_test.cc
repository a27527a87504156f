// SPDX-License-Identifier: Apache-2.0
// Arguments between tags: a value is the schema's, and what is around it is the format's.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/grammar/grammar_case.h"

namespace sluice::grammar {
namespace {

Source arguments(const char* style, const std::string& property) {
  return {Kind::structural_tag,
          fmt::format(R"({{"type":"structural_tag","format":{{"type":"json_schema","style":"{}","json_schema":)"
                      R"({{"type":"object","properties":{{"a":{},"b":{}}},"required":["a","b"]}}}}}})",
                      style, property, property)};
}

TEST_F(Grammar, ValuesBetweenTagsAreTheSchemas) {
  const struct {
    const char* style;
    const char *begin, *middle, *end, *around;
  } styles[]{{"qwen_xml", "<parameter=a>", "</parameter>\n<parameter=b>", "</parameter>", "\n"},
             {"glm_xml", "<arg_key>a</arg_key>\n<arg_value>", "</arg_value>\n<arg_key>b</arg_key><arg_value>",
              "</arg_value>", ""}};
  const struct {
    const char* schema;
    std::vector<std::string> fits, does_not;
  } cases[]{
      {R"({"type":"string","enum":["Paris"," R\nm ","x"]})", {"Paris", " R\nm "}, {"", "R\nm", "Paris ", "\tx"}},
      {R"({"const":"a b"})", {"a b"}, {" a b", "a b\n"}},
      {R"({"type":"string","maxLength":4})", {"", "abcd", "  ", "\n\n\n\n"}, {"abcde", " abcd", "abc\n\n"}},
      {R"({"type":"string","minLength":2,"maxLength":300})", {"ab", " \n"}, {"", "a"}},
      {R"({"type":"string","pattern":"^ [a-c]$"})", {" a"}, {"  a", "a", " a "}},
      {R"({"type":"string","format":"date"})", {"2026-01-31"}, {" 2026-01-31", "2026-01-31\n"}},
      {R"({"type":"integer"})", {"12"}, {" 12", "12 "}},
      {R"({"type":"array","items":{"type":"null"}})", {"[ null,\n null ]"}, {" []"}},
      {R"({"anyOf":[{"type":"null"},{"type":"string","maxLength":2}]})", {"null", "ab", " a"}, {" null"}},
      {R"({"type":"string"})", {"", " a ", "\n\n"}, {}},
  };
  for (const auto& s : styles)
    for (const auto& c : cases) {
      const Source source = arguments(s.style, c.schema);
      const auto call = [&](const std::string& value, const std::string& around) {
        const std::string written = around + value + around;
        return s.begin + written + s.middle + written + s.end;
      };
      for (const std::string& value : c.fits)
        EXPECT_TRUE(accepts(source, call(value, s.around))) << s.style << c.schema << value;
      for (const std::string& value : c.does_not)
        EXPECT_FALSE(accepts(source, call(value, s.around))) << s.style << c.schema << value;
    }
  EXPECT_FALSE(
      accepts(arguments("qwen_xml", R"({"const":1})"), "<parameter=a>1</parameter><parameter=b>1</parameter>"));
}

// What follows a value's closing tag is the next parameter, and no more of the value.
TEST_F(Grammar, TextsOfALeastLengthEndAtTheirTag) {
  const struct {
    const char *style, *begin, *tag, *end;
  } styles[]{
      {"qwen_xml", "<parameter=a>\n", "</parameter>", "\n</parameter>\n<parameter=b>\n"},
      {"glm_xml", "<arg_key>a</arg_key><arg_value>", "</arg_value>", "</arg_value><arg_key>b</arg_key><arg_value>"}};
  for (const auto& s : styles)
    for (const char* bounds : {R"("minLength":1)", R"("minLength":4)"}) {
      GrammarState state(compiler().compile(arguments(s.style, fmt::format(R"({{"type":"string",{}}})", bounds))));
      const std::string tag = s.tag;
      ASSERT_TRUE(state.accept_bytes(s.begin + std::string("\xC3\xA9<") + tag.substr(0, tag.size() - 1)));
      if (*s.style == 'q') EXPECT_FALSE(state.accept_bytes(">"));  // without the line break before it
      ASSERT_TRUE(state.accept_bytes("<</x" + std::string(s.end))) << bounds;
      EXPECT_FALSE(state.accept_bytes(tag)) << bounds;
      EXPECT_TRUE(state.accept_bytes("letters, not few" + std::string(*s.style == 'q' ? "\n" : "") + tag)) << bounds;
      EXPECT_TRUE(state.may_end());
    }
  GrammarState early(compiler().compile(arguments("qwen_xml", R"({"type":"string","minLength":3})")));
  EXPECT_FALSE(early.accept_bytes("<parameter=a>\n\n\n</parameter>"));
  EXPECT_TRUE(early.accept_bytes("<parameter=a>\n\n\n</parameter"));
  GrammarState longer(compiler().compile(arguments("qwen_xml", R"({"type":"string","minLength":14})")));
  ASSERT_TRUE(longer.accept_bytes("<parameter=a>\nletters, not few\n</parameter>"));
  EXPECT_FALSE(longer.accept_bytes("x"));
}

TEST_F(Grammar, WhatTagsCannotHoldIsRefused) {
  const struct {
    const char *style, *fits, *value;
  } styles[]{{"qwen_xml", "</arg_value>", "a</parameter>b"}, {"glm_xml", "</parameter>", "a</arg_value>b"}};
  for (const auto& s : styles)
    for (const char* form :
         {R"({{"type":"string","enum":["x","{}"]}})", R"({{"const":"{}"}})",
          R"({{"anyOf":[{{"type":"integer"}},{{"const":"{}"}}]}})",
          R"({{"type":"array","items":{{"enum":[{{"deep":["{}"]}}]}}}})", R"({{"const":{{"{}":1}}}})"}) {
      EXPECT_EQ(refusal(arguments(s.style, fmt::format(fmt::runtime(form), s.fits))), "") << form;
      const std::string sentence = refusal(arguments(s.style, fmt::format(fmt::runtime(form), s.value)));
      EXPECT_NE(sentence.find(fmt::format("has the value \"{}\" in ", s.value)), std::string::npos) << sentence;
      EXPECT_NE(sentence.find("accepted where arguments stand between tags: values without the tag"),
                std::string::npos);
    }
  const auto named = [](const char* style, const char* name) {
    return refusal({Kind::structural_tag,
                    fmt::format(R"({{"type":"structural_tag","format":{{"type":"json_schema","style":"{}",)"
                                R"("json_schema":{{"type":"object","properties":{{"{}":{{"type":"integer"}}}}}}}}}})",
                                style, name)});
  };
  EXPECT_NE(named("qwen_xml", "a>b").find("names the property \"a>b\"; accepted"), std::string::npos);
  EXPECT_NE(named("glm_xml", "a<b").find("names the property \"a<b\"; accepted"), std::string::npos);
  EXPECT_EQ(named("glm_xml", "a>b"), "");
  EXPECT_EQ(named("json", "a<b"), "");
}

}  // namespace
}  // namespace sluice::grammar
