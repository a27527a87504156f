// SPDX-License-Identifier: Apache-2.0
// Masks against single tokens: those that the grammar accepts, and none that stands for no text.
#include <gtest/gtest.h>

#include <random>

#include "sampling/choose.h"
#include "tests/grammar/grammar_case.h"
#include "tests/support/random.h"

namespace sluice::grammar {
namespace {

constexpr const char* kNotes =
    R"({"type":"array","items":{"anyOf":[{"type":"string","maxLength":3},{"type":"object","properties":{"a":{"type":)"
    R"("string","minLength":2,"maxLength":12},"b":{"type":"string","maxLength":12}},"required":["a","b"]}]}})";

// The mask has a token's bit exactly where the token is accepted; a refused one and a rollback leave the state alone.
// One exception is xgrammar's: in a grammar that calls itself, a token that runs past the end of the inner call may be
// left out ("ib" after "a" in the last grammar). No text is lost by that: a shorter token that begins it is in the
// mask.
TEST_F(Grammar, MasksAreTheTokensThatAreAccepted) {
  const int64_t vocab = vocabulary().size;
  std::mt19937 random = test::rng();
  const Source calls_itself = ebnf("root ::= \"a\" root \"b\" | [^c]");
  for (const Source& source : {schema(kPerson), schema(kNotes), regex("[a-z ]+\\.( [A-Z][a-z]*){0,4}"), calls_itself}) {
    GrammarState state(compiler().compile(source));
    std::vector<uint32_t> mask(static_cast<size_t>(sampling::mask_words(vocab)), 0xabababab), again(mask);
    std::vector<int32_t> taken;
    for (int step = 0; step < 60; ++step) {
      state.fill_mask(mask);
      const auto has = [&](int32_t id) { return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0; };
      const auto has_beginning = [&](int32_t id) {
        const std::string& text = vocabulary().bytes[static_cast<size_t>(id)];
        for (int32_t other = 0; other < vocab; ++other)
          if (const std::string& shorter = vocabulary().bytes[static_cast<size_t>(other)];
              has(other) && !shorter.empty() && shorter.size() < text.size() && text.starts_with(shorter))
            return true;
        return false;
      };
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < vocab; ++id) {
        const bool bit = has(id);
        // All of them would be a million trials: those that are allowed, and some others.
        if (!bit && random() % 16 != 0) continue;
        const bool accepted = state.accept(id);
        ASSERT_TRUE(accepted == bit || (source == calls_itself && accepted && has_beginning(id)))
            << source.text << " token " << id << " at step " << step << " after " << testing::PrintToString(taken);
        if (accepted) state.rollback(1);
        if (bit) allowed.push_back(id);
      }
      state.fill_mask(again);
      ASSERT_EQ(mask, again);
      if (allowed.empty()) {
        EXPECT_TRUE(state.may_end());
        break;
      }
      taken.push_back(allowed[random() % allowed.size()]);
      ASSERT_TRUE(state.accept(taken.back()));
    }
    // Taken back altogether, it begins anew.
    GrammarState fresh(compiler().compile(source));
    state.rollback(static_cast<int>(taken.size()));
    state.fill_mask(mask);
    fresh.fill_mask(again);
    EXPECT_EQ(mask, again);
    for (const int32_t id : taken) ASSERT_TRUE(state.accept(id));
  }
}

TEST_F(Grammar, ControlTokensAreNoText) {
  GrammarState state(compiler().compile(regex("(.|\\n)*")));
  std::vector<uint32_t> mask(static_cast<size_t>(sampling::mask_words(vocabulary().size)));
  state.fill_mask(mask);
  int64_t special = 0;
  for (int32_t id = 0; id < vocabulary().size; ++id) {
    const bool bit = (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
    if (id >= tokenizer().vocab_size() || tokenizer().is_special(id)) {
      EXPECT_FALSE(bit) << id;
      ++special;
    }
  }
  EXPECT_GT(special, 6);
  EXPECT_TRUE(state.may_end());
}

// A structural tag matches the control tokens that its own tags are made of, and those it is told of; no value holds
// another one.
TEST_F(Grammar, TagsAloneHaveControlTokens) {
  const int32_t stop = tokenizer().id_of("<|im_end|>").value(), begin = tokenizer().id_of("<|im_start|>").value(),
                pad = tokenizer().id_of("<|pad|>").value();
  for (const auto& [end, tags] :
       {std::pair{"<|pad|>", std::vector<std::string>()}, {"</x>", {"a <|pad|>"}}, {"</x>", {}}}) {
    const Source source{
        Kind::structural_tag,
        fmt::format(
            R"({{"type":"structural_tag","format":{{"type":"tag","begin":"<x>","content":{{"type":"json_schema",)"
            R"("json_schema":{{"type":"string","minLength":5,"maxLength":12}}}},"end":"{}"}}}})",
            end),
        true, tags};
    GrammarState state(compiler().compile(source));
    ASSERT_TRUE(state.accept_bytes("<x>\"abc"));
    std::vector<uint32_t> mask(static_cast<size_t>(sampling::mask_words(vocabulary().size)));
    state.fill_mask(mask);
    const auto has = [&](int32_t id) { return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0; };
    EXPECT_FALSE(has(begin));
    EXPECT_FALSE(has(stop));
    EXPECT_TRUE(has(tokenizer().id_of("a").value()));
    ASSERT_TRUE(state.accept_bytes("de\""));
    EXPECT_EQ(state.accept(pad), std::string_view(end) == "<|pad|>");
  }
  // In a value, a control token's text is letters like any other.
  const std::string fixed =
      R"({"type":"structural_tag","format":{"type":"tag","begin":"<x>","content":{"type":"json_schema",)"
      R"("json_schema":{"enum":["<|im_start|>"]}},"end":"</x>"}})";
  GrammarState state(compiler().compile({Kind::structural_tag, fixed}));
  ASSERT_TRUE(state.accept_bytes("<x>\""));
  EXPECT_FALSE(state.accept(begin));
  EXPECT_TRUE(state.accept_bytes("<|im_start|>\"</x>") && state.may_end());
}

}  // namespace
}  // namespace sluice::grammar
