// SPDX-License-Identifier: Apache-2.0
// Grammars of each kind, compiled for the bundled tokenizer.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "grammar/compiler.h"
#include "io/tokenizer_json.h"

namespace sluice::grammar {

inline const text::Tokenizer& tokenizer() {
  static const text::Tokenizer t(io::read_tokenizer(std::string(SLUICE_SOURCE_DIR) + "/models/tiny-nemotron-h"));
  return t;
}
// Six ids more than the tokenizer has, as models pad their logits.
inline const Vocabulary& vocabulary() {
  static const Vocabulary v = vocabulary_of(tokenizer(), tokenizer().vocab_size() + 6, std::vector<int32_t>{2});
  return v;
}
inline GrammarCompiler& compiler() {
  static GrammarCompiler c(vocabulary());
  return c;
}

class Grammar : public testing::Test {
 protected:
  void SetUp() override {
    if (!why_not_available().empty()) GTEST_SKIP() << why_not_available();
  }
};

inline bool accepts(const Source& source, const std::string& text) {
  GrammarState state(compiler().compile(source));
  return state.accept_bytes(text) && state.may_end();
}

// The sentence of the refusal; "" for none.
inline std::string refusal(const Source& source) {
  try {
    compiler().compile(source);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
    return error.what();
  }
  return "";
}
inline void expect_refused(const Source& source, const std::string& part) {
  EXPECT_NE(refusal(source).find(part), std::string::npos) << source.text.substr(0, 100) << ": " << refusal(source);
}
inline Source schema(std::string text) { return {Kind::json_schema, std::move(text)}; }
inline Source regex(std::string text) { return {Kind::regex, std::move(text)}; }
inline Source ebnf(std::string text) { return {Kind::ebnf, std::move(text)}; }

inline constexpr const char* kPerson =
    R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},)"
    R"("tags":{"type":"array","items":{"enum":["a","b"]},"maxItems":3}},"required":["name","age"]})";

inline std::string times(const std::string& text, size_t n) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += text;
  return out;
}

}  // namespace sluice::grammar
