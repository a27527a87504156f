// SPDX-License-Identifier: Apache-2.0
// By parts of xgrammar that are not its interface, as xgrammar_pattern.cc.
#include "grammar/xgrammar_xml.h"

#include <grammar_functor.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/source.h"
#include "grammar/tag_styles.h"

namespace sluice::grammar {

namespace {
class ValueTrimmer final : public xgrammar::GrammarMutator {
 protected:
  // White space, a value, white space, the closing tag.
  int32_t VisitSequence(const GrammarExpr& sequence) override {
    std::vector<int32_t> elements;
    for (int i = 0; i < sequence.size(); ++i) {
      const TagStyle* style = style_before(sequence, i + 3);
      if (style == nullptr) style = style_before(sequence, i + 1);
      if (style == nullptr || !is_white_space(sequence[i]))
        elements.push_back(VisitExpr(base_grammar_->GetGrammarExpr(sequence[i])));
      else if (!style->around.empty())
        elements.push_back(builder_->AddByteString(std::string(style->around)));
    }
    return builder_->AddSequence(elements);
  }

 private:
  // Of the value that ends with the tag at `i` and has white space on both sides; nullptr: there is none.
  const TagStyle* style_before(const GrammarExpr& sequence, int i) const {
    if (i < 3 || i >= sequence.size() || !is_white_space(sequence[i - 1]) || !is_white_space(sequence[i - 3]))
      return nullptr;
    const GrammarExpr tag = base_grammar_->GetGrammarExpr(sequence[i]);
    if (tag.type != GrammarExprType::kByteString) return nullptr;
    for (const TagStyle& style : kTagStyles)
      if (std::equal(tag.begin(), tag.end(), style.end.begin(), style.end.end())) return &style;
    return nullptr;
  }

  bool is_white_space(int32_t id) const {
    const GrammarExpr e = base_grammar_->GetGrammarExpr(id);
    if (e.type != GrammarExprType::kRepeat || e[1] != 0 || e[2] != kMostWhiteSpace) return false;
    GrammarExpr one = base_grammar_->GetGrammarExpr(base_grammar_->GetRule(e[0]).body_expr_id);
    while ((one.type == GrammarExprType::kChoices || one.type == GrammarExprType::kSequence) && one.size() == 1)
      one = base_grammar_->GetGrammarExpr(one[0]);
    constexpr int32_t kSpaces[] = {0, ' ', ' ', '\n', '\n', '\r', '\r', '\t', '\t'};  // not negated, then ranges
    return one.type == GrammarExprType::kCharacterClass &&
           std::equal(one.begin(), one.end(), std::begin(kSpaces), std::end(kSpaces));
  }
};
}  // namespace

xgrammar::Grammar with_exact_values(const xgrammar::Grammar& grammar) { return ValueTrimmer().Apply(grammar); }

}  // namespace sluice::grammar
