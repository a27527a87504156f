// SPDX-License-Identifier: Apache-2.0
// Texts under a grammar are UTF-8, byte for byte.
#include <gtest/gtest.h>

#include "sampling/choose.h"
#include "tests/grammar/grammar_case.h"

namespace sluice::grammar {
namespace {

// The first bytes of a character by RFC 3629, section 4, to which `next` may be added.
bool utf8_goes_on(const std::string& so_far, unsigned char next) {
  if (so_far.empty()) return next < 0x80 || (next >= 0xc2 && next <= 0xf4);
  const auto first = static_cast<unsigned char>(so_far[0]);
  if (so_far.size() > 1) return next >= 0x80 && next <= 0xbf;
  switch (first) {
    case 0xe0:
      return next >= 0xa0 && next <= 0xbf;
    case 0xed:
      return next >= 0x80 && next <= 0x9f;  // no surrogates
    case 0xf0:
      return next >= 0x90 && next <= 0xbf;
    case 0xf4:
      return next >= 0x80 && next <= 0x8f;
    default:
      return next >= 0x80 && next <= 0xbf;
  }
}

// A model of bytes may write any byte that the mask allows: each is one of UTF-8, and all that JSON allows are there.
TEST_F(Grammar, TextsAreUtf8) {
  Vocabulary bytes;
  for (int i = 0; i < 256; ++i) bytes.bytes.emplace_back(1, static_cast<char>(i));
  const std::vector<std::string> longer{"\xED\xA0\x80", "a\xED", "\xB0\x80", "\x9F\xBF", "\x80\xED\xB0\x80"};
  bytes.bytes.insert(bytes.bytes.end(), longer.begin(), longer.end());
  bytes.size = static_cast<int64_t>(bytes.bytes.size());
  bytes.special.assign(bytes.bytes.size(), false);
  GrammarCompiler of_bytes(bytes);
  std::vector<uint32_t> mask(static_cast<size_t>(sampling::mask_words(bytes.size)));
  const auto allowed = [&](GrammarState& state, size_t id) {
    state.fill_mask(mask);
    const bool is = (mask[id / 32] >> (id % 32) & 1) != 0;
    EXPECT_EQ(state.accept(static_cast<int32_t>(id)), is) << "the mask and the state differ in token " << id;
    if (is) state.rollback(1);
    return is;
  };
  for (const Source& source : {schema(R"({"type":"string","maxLength":4})"), schema(R"({"type":"string"})"),
                               regex("\"[^\"]{0,4}\""), ebnf("root ::= \"\\\"\" [^\"]* \"\\\"\"")}) {
    SCOPED_TRACE(source.text);
    GrammarState state(of_bytes.compile(source));
    ASSERT_TRUE(state.accept('"'));
    // Every character's bytes in front of its last one.
    std::vector<std::string> beginnings{""};
    for (size_t i = 0; i < beginnings.size(); ++i) {
      const std::string text = beginnings[i];
      for (const char c : text) ASSERT_TRUE(state.accept(static_cast<unsigned char>(c)));
      state.fill_mask(mask);
      for (int next = 0x80; next < 256; ++next) {
        const bool is = (mask[static_cast<size_t>(next) / 32] >> (next % 32) & 1) != 0;
        ASSERT_EQ(is, utf8_goes_on(text, static_cast<unsigned char>(next))) << i << ", byte " << next;
        const size_t wanted = text.empty() ? 0 : text[0] < '\xE0' ? 2 : text[0] < '\xF0' ? 3 : 4;
        // Of the characters of four bytes, those of which the third byte differs have equal beginnings.
        if (is && (text.empty() || (text.size() + 1 < wanted && (wanted < 4 || text.size() < 2))))
          beginnings.push_back(text + static_cast<char>(next));
      }
      state.rollback(static_cast<int>(text.size()));
    }
    EXPECT_GT(beginnings.size(), 1000u);
    // The same for tokens of several bytes, after the beginning of a character and after a step that was taken back.
    const size_t first = 256;
    EXPECT_FALSE(allowed(state, first)) << "a surrogate";
    ASSERT_TRUE(state.accept(first + 1));  // a, ED
    EXPECT_FALSE(allowed(state, first + 2));
    EXPECT_TRUE(allowed(state, first + 3));
    EXPECT_FALSE(state.accept_bytes("\xA0\x80"));
    EXPECT_TRUE(state.accept_bytes("\x9F"));
    EXPECT_TRUE(allowed(state, 0xb0)) << "the character's last byte";
    state.rollback(1);
    EXPECT_FALSE(allowed(state, 0xa0));
    EXPECT_FALSE(allowed(state, first + 4)) << "a surrogate after a character's end";
    state.rollback(1);
    EXPECT_FALSE(state.accept_bytes("b\xED\xBF\xBF"));
    EXPECT_TRUE(state.accept_bytes("\xED\x9F\xBF\xEE\x80\x80\""));
    EXPECT_TRUE(state.may_end());
  }
}

// Of a class of surrogates alone a model could write the first byte, and then nothing.
TEST_F(Grammar, SurrogatesAloneAreRefused) {
  const std::vector<Source> refused{
      regex("[\\uD800-\\uDFFF]"),
      regex("a[\\uD800-\\uDBFF]?"),
      regex("[\\uD83D][\\uDE00]|b"),
      regex("[\\uD800-\\uE000]"),
      regex("[^\\u0000-\\uD7FF]"),
      regex("a\\uD800"),
      ebnf("root ::= [a\\uD900-\\uD9FF]*"),
      ebnf("root ::= \"a\\uDFFF\""),
      schema(R"({"type":"string","pattern":"^[\\uD800-\\uDFFF]+$"})"),
      {Kind::structural_tag, R"({"type":"structural_tag","format":{"type":"regex","pattern":"[\\uD800-\\uDFFF]"}})"}};
  for (const Source& source : refused) expect_refused(source, "surrogates");
  for (const Source& source : {regex("[\\uD7FF-\\uE000]"), regex("[\\uD000-\\uDFFF]|[\\uD800-\\uDFFF]"),
                               ebnf("root ::= [^a]"), ebnf("root ::= [\\uD7FF\\uD800]")})
    EXPECT_TRUE(accepts(source, "\xED\x9F\xBF")) << source.text << refusal(source);
  EXPECT_TRUE(accepts(regex("[\\uE000-\\uFFFF]+"), "\xEE\x80\x80"));
}

}  // namespace
}  // namespace sluice::grammar
