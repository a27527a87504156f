// SPDX-License-Identifier: Apache-2.0
// Regular expressions mean what ECMAScript and Python say, whatever the library's reader takes them for.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bitset>
#include <cctype>
#include <random>

#include "tests/grammar/grammar_case.h"

namespace sluice::grammar {
namespace {

using Ascii = std::bitset<128>;

template <class Is>
Ascii all_that(Is is) {
  Ascii out;
  for (size_t c = 0; c < out.size(); ++c) out[c] = is(static_cast<int>(c));
  return out;
}
Ascii range(int first, int last) {
  return all_that([&](int c) { return c >= first && c <= last; });
}
Ascii one(int c) { return range(c, c); }

// What `before` + character + `after` is accepted with. Without NUL.
Ascii taken(const std::string& pattern, const std::string& before = "", const std::string& after = "") {
  const GrammarPtr grammar = compiler().compile(regex(pattern));
  return all_that([&](int c) {
    GrammarState state(grammar);
    return c != 0 && state.accept_bytes(before + static_cast<char>(c) + after) && state.may_end();
  });
}

// The characters that a backslash and `c` stand for; nothing: refused.
std::optional<Ascii> meaning(int c, bool in_class) {
  const auto is_word = [](int x) { return std::isalnum(x) != 0 || x == '_'; };
  switch (c) {
    case 'd':
      return range('0', '9');
    case 'D':
      return ~range('0', '9');
    case 'w':
      return all_that(is_word);
    case 'W':
      return ~all_that(is_word);
    case 's':
      return range(9, 13) | one(' ');
    case 'S':
      return ~(range(9, 13) | one(' '));
    case 'n':
      return one('\n');
    case 't':
      return one('\t');
    case 'r':
      return one('\r');
    case 'f':
      return one('\f');
    case 'v':
      return one('\v');
    case 'a':
      return one('\a');
    case 'e':
      return one(27);
    case '0':
      return one(0);
    case 'b':
      if (in_class) return one('\b');
      return std::nullopt;
    default:
      if (std::isalnum(c) != 0) return std::nullopt;
      return one(c);
  }
}

TEST_F(Grammar, EveryEscapedCharacterOfAscii) {
  for (int c = 1; c < 128; ++c) {
    const std::string escaped{'\\', static_cast<char>(c)};
    SCOPED_TRACE(c);
    const auto outside = meaning(c, false), inside = meaning(c, true);
    if (!outside)
      EXPECT_NE(refusal(regex("x" + escaped)), "");
    else
      EXPECT_EQ(taken("x" + escaped + "y", "x", "y"), *outside & ~one(0));
    if (!inside) {
      EXPECT_NE(refusal(regex("[" + escaped + "]")), "");
      continue;
    }
    EXPECT_EQ(taken("[" + escaped + "]"), *inside & ~one(0));
    EXPECT_EQ(taken("[" + escaped + "b]"), (*inside | one('b')) & ~one(0));
    EXPECT_EQ(taken("[9" + escaped + "]"), (*inside | one('9')) & ~one(0));
    if (c != 'D' && c != 'S' && c != 'W') {
      EXPECT_EQ(taken("[^" + escaped + "c]"), ~(*inside | one('c')) & ~one(0));
    }
  }
}

TEST_F(Grammar, ClassesOfAnyMembers) {
  const std::vector<std::pair<const char*, Ascii>> members{
      {"\\^", one('^')},
      {"\\x5e", one('^')},
      {"\\u005E", one('^')},
      {"\\u{5e}", one('^')},
      {"\\^-z", range('^', 'z')},
      {"\\^-_", range('^', '_')},
      {"\\^-\\^", one('^')},
      {"X-\\^", range('X', '^')},
      {"\\x41", one('A')},
      {"\\x41-\\x43", range('A', 'C')},
      {"\\x01", one(1)},
      {"\\x01-b", range(1, 'b')},
      {"\\u0007", one(7)},
      {"\\x7f", one(127)},
      {"\\cA", one(1)},
      {"\\n", one('\n')},
      {"\n", one('\n')},
      {"\\0", {}},
      {"\\d", range('0', '9')},
      {"\\d-z", range('0', '9') | one('-') | one('z')},
      {"a", one('a')},
      {"9", one('9')},
      {"\\-", one('-')},
      {"\\]", one(']')},
      {"[", one('[')},
      {"\\\\", one('\\')},
      {"\\&", one('&')},
      {"\\ ", one(' ')},
      {"+-\\-", range('+', '-')},
      {"+--", range('+', '-')},
      {"\"", one('"')},
      {"\\xe9", {}},
      {"\xc3\xa9", {}},
      {"\\\xc3\xa9", {}},
      {"\\u4e00", {}},
  };
  std::mt19937 random(7);
  for (int i = 0; i < 400; ++i) {
    std::string text;
    Ascii expected;
    for (size_t n = 1 + random() % 4; n > 0; --n) {
      const auto& [member, characters] = members[random() % members.size()];
      text += member;
      expected |= characters;
    }
    const bool negated = random() % 3 == 0;
    if (random() % 3 == 0) text += '^', expected |= one('^');
    if (random() % 3 == 0) text += '-', expected |= one('-');
    if (text == "^") continue;
    if (negated) expected = ~expected;
    const std::string pattern = fmt::format("[{}{}]", negated ? "^" : "", text);
    EXPECT_EQ(taken(pattern), expected & ~one(0)) << pattern;
    EXPECT_EQ(taken("a" + pattern + "{2}", "a_", "").test('_'), expected.test('_')) << pattern;
  }
}

TEST_F(Grammar, PatternsOfPythonAndNumbers) {
  EXPECT_TRUE(accepts(regex("\\x41b"), "Ab"));
  EXPECT_TRUE(accepts(regex("\\x2e\\x5B"), ".["));
  EXPECT_FALSE(accepts(regex("\\x2e"), "a"));
  EXPECT_TRUE(accepts(regex("\\xe9\\xe90"),
                      "\xc3\xa9\xc3\xa9"
                      "0"));
  EXPECT_TRUE(accepts(regex("\\u00e9\xc3\xa9\\u{1f600}\\\xf0\x9f\x98\x80"),
                      "\xc3\xa9\xc3\xa9\xf0\x9f\x98\x80\xf0\x9f\x98\x80"));
  EXPECT_TRUE(accepts(regex("[\\xe9a]"), "a"));
  EXPECT_TRUE(accepts(regex("[\\^a]b"), "^b"));
  EXPECT_FALSE(accepts(regex("[\\^a]b"), "cb"));
  // re.escape() of all that it escapes.
  const std::string text = "\t\n\v\f\r #$&()*+-.?[\\]^{|}~";
  std::string escaped = "New\\ York";
  for (const char c : text) escaped.append({'\\', c});
  EXPECT_TRUE(accepts(regex(escaped), "New York" + text));
  EXPECT_TRUE(accepts(regex("\\_\\,\\:\\@\\<\\%\\;\\=\\!\\`\\>\\\"\\'"), "_,:@<%;=!`>\"'"));
  for (const char* pattern : {"\\x4", "\\x", "\\xg1", "[\\x4]", "[\\x]", "a\\", "\\q", "[\\q]", "[\\^\\q]", "\\u12",
                              "[\\u12]", "\\u{1234567}", "\\u{}", "[]", "[\\^", "[\\^-A]", "\\c", "\\c1", "\xff"})
    EXPECT_NE(refusal(regex(pattern)), "") << pattern;
  expect_refused(regex("ab\\x4"), "the regular expression has \\x without two hexadecimal digits at byte 2");
}

TEST_F(Grammar, PatternsInTags) {
  const auto tag = [](const std::string& format) {
    return Source{Kind::structural_tag, fmt::format(R"({{"type":"structural_tag","format":{}}})", format)};
  };
  const Source plain = tag(R"({"type":"regex","pattern":"[\\^a]\\x41b\\ c"})");
  EXPECT_TRUE(accepts(plain, "^Ab c"));
  EXPECT_FALSE(accepts(plain, "bAb c"));
  // Of arguments between tags, where the same reader is used.
  const Source xml = tag(R"({"type":"json_schema","style":"qwen_xml","json_schema":{"type":"object","properties":{"a":)"
                         "{\"type\":\"string\",\"pattern\":\"^[\\\\^a][\xc3\xa9"
                         R"(b]\\x41b$"}},"required":["a"]}})");
  for (const char* value : {"^\xc3\xa9"
                            "Ab",
                            "abAb"})
    EXPECT_TRUE(accepts(xml, fmt::format("<parameter=a>\n{}\n</parameter>", value))) << value;
  EXPECT_FALSE(accepts(xml, "<parameter=a>\nbbAb\n</parameter>"));
  // And of strings in JSON, where another is.
  for (const char* pattern : {"^[\\\\^a]\\\\x41b\\\\ c$", "^[\\\\x5ea]\\\\u0041b c$"}) {
    const Source json = schema(fmt::format(R"({{"type":"string","pattern":"{}"}})", pattern));
    EXPECT_TRUE(accepts(json, "\"^Ab c\"")) << pattern;
    EXPECT_FALSE(accepts(json, "\"bAb c\"")) << pattern;
  }
}

}  // namespace
}  // namespace sluice::grammar
