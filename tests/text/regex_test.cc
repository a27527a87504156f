// SPDX-License-Identifier: Apache-2.0
// Oniguruma's patterns through PCRE2: what matches, what is refused, and that nothing hangs.
#include "text/regex.h"

#include <gtest/gtest.h>

#include <ctime>

#include "base/error.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

std::vector<std::string> matches(std::string_view pattern, const std::string& text) {
  std::vector<std::string> out;
  const Regex regex(pattern, false, "pattern");
  RegexSearch(regex, text.size()).find_all(text, [&](Match m) {
    out.push_back(text.substr(m.begin, m.end - m.begin));
  });
  return out;
}

std::string refusal(std::string_view pattern) {
  try {
    Regex r(pattern, false, "p");
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

using Strings = std::vector<std::string>;

TEST(Regex, FindsAllFromTheLeft) {
  EXPECT_EQ(matches("a+|b", "xaabyba"), (Strings{"aa", "b", "b", "a"}));
  EXPECT_EQ(matches("(?i:'s|'LL)", "'S 'll 't '\xC5\xBF"), (Strings{"'S", "'ll", "'\xC5\xBF"}));
  EXPECT_EQ(matches("^b|c$", "a\nb\nc\n"), (Strings{"b", "c"}));  // lines, without asking
  EXPECT_EQ(matches("\\u4e00", "\xE4\xB8\x80"), (Strings{"\xE4\xB8\x80"}));
  EXPECT_EQ(matches("a", ""), Strings{});
}

TEST(Regex, EmptyMatchesMoveOn) {
  EXPECT_EQ(matches("b*", "abba"), (Strings{"", "bb", ""}));
  EXPECT_EQ(matches("(?=\xE4\xB8\x80)", "\xE4\xB8\x80\xE4\xB8\x80"), (Strings{"", ""}));
}

TEST(Regex, FindsMatchesFarApart) {
  std::string text(1000, '-');
  for (size_t i = 0; i < 300; ++i) text += "\xC3\xA9";
  text += "1";
  EXPECT_EQ(matches("\\p{N}", text), (Strings{"1"}));
}

// The definition of White_Space is in Unicode's PropList; \s must be that, inside and outside classes.
TEST(Regex, SpaceIsWhiteSpace) {
  std::string all;
  for (char32_t c = 1; c < 0x110000; ++c)
    if (c < 0xD800 || c > 0xDFFF) append_code_point(all, c);
  const auto code_points = [&](const char* pattern) {
    std::vector<char32_t> out;
    for (const std::string& s : matches(pattern, all)) {
      size_t pos = 0;
      out.push_back(next_code_point(s, pos));
    }
    return out;
  };
  std::vector<char32_t> expected{9, 10, 11, 12, 13, 0x20, 0x85, 0xA0, 0x1680};
  for (char32_t c = 0x2000; c <= 0x200A; ++c) expected.push_back(c);
  expected.insert(expected.end(), {0x2028, 0x2029, 0x202F, 0x205F, 0x3000});
  EXPECT_EQ(code_points("\\s"), expected);
  EXPECT_EQ(code_points("[\\s]"), expected);
  EXPECT_EQ(code_points("[^\\S]"), expected);
  for (const char32_t c : expected) EXPECT_TRUE(is_white_space(c));
  EXPECT_EQ(code_points("\\S").size() + expected.size(), 0x110000u - 0x800 - 1);
}

TEST(Regex, RefusesWhatWouldMeanSomethingElse) {
  const std::string accepted =
      "accepted: \\s \\S \\w \\W \\d \\D \\p{..}, classes, groups, lookaround and *, +, ?, {n,m}";
  EXPECT_EQ(refusal("[a&&b]"), "p \"[a&&b]\" has \"&&\" inside a class (byte 2); " + accepted);
  EXPECT_EQ(refusal("[a[b]]"), "p \"[a[b]]\" has \"[\" inside a class (byte 2); " + accepted);
  EXPECT_EQ(refusal("a\\b"), "p \"a\\b\" has \"\\b\" (byte 1); " + accepted);
  EXPECT_NE(refusal("\\p{N}{1,3}+"), "accepted");
  EXPECT_EQ(refusal("\\p{N}+"), "accepted");
  EXPECT_NE(refusal("(?m)a"), "accepted");
  EXPECT_NE(refusal("(a)\\1"), "accepted");
  EXPECT_NE(refusal("\\"), "accepted");
  EXPECT_NE(refusal("\\u12"), "accepted");
  EXPECT_EQ(refusal("(a"), "p \"(a\" is not a regular expression: missing closing parenthesis");
  EXPECT_EQ(refusal("\xFF"), "p is not valid UTF-8");
  EXPECT_NE(refusal(std::string(100'000, '(')), "accepted");
}

TEST(Regex, BacktrackingIsBounded) {
  const std::string text = std::string(200'000, 'a') + "c";
  for (const char* pattern : {"(a+)+b", "(a|a)*b", "(?:a*)*(?:a*)*b|c", "(?=(a+)+b)a", "a+(?=b)", "(?:a?){40}a{40}b"}) {
    const std::clock_t start = std::clock();  // the processor's time
    try {
      matches(pattern, text);  // what PCRE2 proves hopeless at once is fine too
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("backtracks too much"), std::string::npos) << e.what();
    }
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 60.0) << pattern;
  }
}

}  // namespace
}  // namespace sluice::text
