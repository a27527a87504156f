// SPDX-License-Identifier: Apache-2.0
// By parts of xgrammar that are not its interface, as xgrammar_pattern.cc.
#include "grammar/xgrammar_strings.h"

#include <grammar_functor.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

namespace sluice::grammar {

namespace {
constexpr int32_t kMostRepetitions = 128;  // more are counted by xgrammar, not written out
constexpr int32_t kQuotationMark = '"';

class StringCloser final : public xgrammar::GrammarMutator {
 protected:
  int32_t VisitSequence(const GrammarExpr& sequence) override {
    std::vector<int32_t> elements;
    for (int i = 0; i < sequence.size(); ++i) {
      const GrammarExpr element = base_grammar_->GetGrammarExpr(sequence[i]);
      const bool closed = i + 1 < sequence.size() && is_quotation_mark(sequence[i + 1]);
      if (closed && element.type == GrammarExprType::kRepeat && element[2] > 0 && element[2] <= kMostRepetitions) {
        if (const auto characters = class_of(element[0]); !characters.empty()) {
          elements.push_back(builder_->AddRuleRef(rest(element[0], characters, element[1], element[2])));
          ++i;  // the quotation mark is in it
          continue;
        }
      }
      elements.push_back(VisitExpr(element));
    }
    return builder_->AddSequence(elements);
  }

 private:
  using Class = std::vector<int32_t>;  // of characters, as xgrammar stores it

  bool is_quotation_mark(int32_t id) const {
    const GrammarExpr e = base_grammar_->GetGrammarExpr(id);
    return e.type == GrammarExprType::kByteString && e.size() == 1 && e[0] == kQuotationMark;
  }

  // Empty for a rule that is anything else than a class of characters.
  Class class_of(int32_t rule) const {
    const Rule& r = base_grammar_->GetRule(rule);
    if (r.lookahead_assertion_id >= 0) return {};
    GrammarExpr e = base_grammar_->GetGrammarExpr(r.body_expr_id);
    while ((e.type == GrammarExprType::kChoices || e.type == GrammarExprType::kSequence) && e.size() == 1)
      e = base_grammar_->GetGrammarExpr(e[0]);
    return e.type == GrammarExprType::kCharacterClass ? Class(e.begin(), e.end()) : Class();
  }

  // The rule of `least` to `most` characters and the quotation mark.
  int32_t rest(int32_t rule, const Class& characters, int32_t least, int32_t most) {
    const auto [at, is_new] = rests_.try_emplace({characters, least, most}, -1);
    if (!is_new) return at->second;
    std::vector<int32_t> choices;
    if (least == 0) choices.push_back(builder_->AddSequence({builder_->AddByteString("\"")}));
    if (most > 0) {
      const GrammarExpr one = base_grammar_->GetGrammarExpr(base_grammar_->GetRule(rule).body_expr_id);
      const int32_t next = rest(rule, characters, std::max(least - 1, 0), most - 1);
      choices.push_back(builder_->AddSequence({VisitExpr(character(one)), builder_->AddRuleRef(next)}));
    }
    const int32_t made = builder_->AddRuleWithHint("string_rest", builder_->AddChoices(choices));
    return rests_[{characters, least, most}] = made;
  }

  GrammarExpr character(GrammarExpr e) const {
    while (e.type != GrammarExprType::kCharacterClass) e = base_grammar_->GetGrammarExpr(e[0]);
    return e;
  }

  std::map<std::tuple<Class, int32_t, int32_t>, int32_t> rests_;
};
}  // namespace

xgrammar::Grammar with_closed_strings(const xgrammar::Grammar& grammar) { return StringCloser().Apply(grammar); }

}  // namespace sluice::grammar
