// SPDX-License-Identifier: Apache-2.0
// Hostile and unusual input: a grammar or a refusal, and either in time.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>

#include "sampling/choose.h"
#include "tests/grammar/grammar_case.h"

namespace sluice::grammar {
namespace {

// Inputs that end other servers. Each is answered, and soon.
TEST_F(Grammar, HostileInputIsRefusedInTime) {
  std::vector<Source> hostile;
  for (const size_t n : {60'000u, 100'000u}) {
    hostile.push_back(ebnf("root ::= " + times("(", n)));
    hostile.push_back(ebnf("root ::= " + times("(", n) + "\"a\"" + times(")", n)));
    hostile.push_back(regex(times("(", n) + times(")", n)));
    hostile.push_back(schema(times("[", n)));
    hostile.push_back(schema(times("{\"items\":", n) + "{}" + times("}", n)));
  }
  hostile.push_back(regex(times("(", 4000) + "a" + times(")", 4000)));
  hostile.push_back(regex("^(?<=x)*{3}$"));
  hostile.push_back(regex("a{0,2000000000}"));
  hostile.push_back(regex("((a{1,100}){1,100}){1,100}"));
  hostile.push_back(regex("*a"));
  hostile.push_back(ebnf("root ::= \"a\"{0,2000000000}"));
  hostile.push_back(ebnf("root ::= (((\"a\"{99}){99}){99}){99}"));
  hostile.push_back(schema(R"({"type":"array","items":{},"minItems":1000000000})"));
  hostile.push_back(schema(R"({"type":"string","maxLength":1000000000})"));
  hostile.push_back(schema(R"({"type":"string","pattern":"(a{1,1000}){1,1000}"})"));
  hostile.push_back(schema(R"({"$ref":"#"})"));
  hostile.push_back(schema(R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})"));
  hostile.push_back(schema("{\"enum\":[" + times("\"" + times("x", 90) + "\",", 10'000) + "1]}"));
  for (const Source& source : hostile) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_NE(refusal(source), "") << source.text.substr(0, 60);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    EXPECT_LT(seconds, CompilerLimits().patience + 1) << source.text.substr(0, 60);
  }
}

// Unusual but sound: each compiles or is refused within the time, and what compiles can be used.
TEST_F(Grammar, UnusualInputIsBornOrRefused) {
  std::vector<Source> unusual;
  std::string chain = "root ::= r0\n";
  for (int i = 0; i < 2000; ++i) chain += fmt::format("r{} ::= r{}\n", i, i + 1);
  unusual.push_back(ebnf(chain + "r2000 ::= \"x\"\n"));
  unusual.push_back(ebnf("root ::= root \"a\" | \"a\""));
  unusual.push_back(ebnf("root ::= root root | \"a\""));
  unusual.push_back(ebnf("root ::= root"));
  unusual.push_back(ebnf("root ::= a\na ::= b \"x\"\nb ::= a"));
  unusual.push_back(ebnf("root ::= (\"\" | \"\"*)*"));
  unusual.push_back(regex("((a*)*)*"));
  unusual.push_back(regex("(a|aa|aaa)*b{1,2000}"));
  unusual.push_back(schema(R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})"));
  unusual.push_back(schema(R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})"));
  unusual.push_back(schema(R"({"type":"array","items":{"$ref":"#"}})"));
  std::string refs = R"({"$ref":"#/$defs/a0","$defs":{)";
  for (int i = 0; i < 1000; ++i)
    refs += fmt::format(R"("a{}":{{"type":"object","properties":{{"x":{{"$ref":"#/$defs/a{}"}}}}}},)", i, i + 1);
  unusual.push_back(schema(refs + R"("a1000":{"type":"null"}}})"));
  std::string values = R"({"enum":[)";
  for (int i = 0; i < 2000; ++i) values += fmt::format(R"("value number {}",)", i);
  unusual.push_back(schema(values + "null]}"));
  for (const Source& source : unusual) {
    const auto begin = std::chrono::steady_clock::now();
    const std::string why = refusal(source);
    if (why.empty()) {
      GrammarState state(compiler().compile(source));
      std::vector<uint32_t> mask(static_cast<size_t>(sampling::mask_words(vocabulary().size)));
      for (int i = 0; i < 20; ++i) {
        state.fill_mask(mask);
        int32_t id = 0;
        while (id < vocabulary().size && (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) == 0) ++id;
        if (id == vocabulary().size) break;
        ASSERT_TRUE(state.accept(id));
      }
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    RecordProperty("unusual", fmt::format("{} s, {}: {}", seconds, source.text.substr(0, 40), why));
    EXPECT_LT(seconds, CompilerLimits().patience + 2) << source.text.substr(0, 60);
  }
}

}  // namespace
}  // namespace sluice::grammar
