// SPDX-License-Identifier: Apache-2.0
// By parts of xgrammar that are not its interface, as xgrammar_pattern.cc.
#include "grammar/xgrammar_xml.h"

#include <grammar_functor.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>
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

// Texts of a least length and no most one, which xgrammar lets hold the tag that ends them.
class TextCloser final : public xgrammar::GrammarMutator {
 public:
  explicit TextCloser(std::string_view tag) : tag_(tag) {}

 protected:
  int32_t VisitRepeat(const GrammarExpr& repeat) override {
    const int32_t least = repeat[1], most = repeat[2];
    if (most >= 0 || !is_any_character(repeat[0])) return VisitElement(repeat);
    if (least <= kMostWritten) return builder_->AddRuleRef(text(least, 0));
    const int32_t counted = builder_->AddRepeat(repeat[0], least, least);
    return builder_->AddRuleRef(builder_->AddRuleWithHint(
        "text", builder_->AddChoices({builder_->AddSequence({counted, builder_->AddRuleRef(text(0, 0))})})));
  }

 private:
  // Characters whose places become rules, each once for a byte of the tag: compiling takes a time for each.
  static constexpr int32_t kMostWritten = 4;

  bool is_any_character(int32_t rule) const {
    GrammarExpr e = base_grammar_->GetGrammarExpr(base_grammar_->GetRule(rule).body_expr_id);
    while ((e.type == GrammarExprType::kChoices || e.type == GrammarExprType::kSequence) && e.size() == 1)
      e = base_grammar_->GetGrammarExpr(e[0]);
    constexpr int32_t kAny[] = {0, 0, 0x10ffff};  // not negated, then a range
    return e.type == GrammarExprType::kCharacterClass &&
           std::equal(e.begin(), e.end(), std::begin(kAny), std::end(kAny));
  }

  // The rule of at least so many characters after the first `met` bytes of the tag, whose first byte it has once.
  int32_t text(int32_t least, size_t met) {
    const auto [at, is_new] = texts_.try_emplace({least, met}, -1);
    if (!is_new) return at->second;
    const int32_t made = texts_[{least, met}] = builder_->AddEmptyRuleWithHint("text");
    if (least == 0 && met == 0) {
      builder_->UpdateRuleBody(made, builder_->AddTagDispatch({{}, false, {std::string(tag_)}}));
      return made;
    }
    std::vector<int32_t> choices;
    if (least == 0) choices.push_back(builder_->AddEmptyStr());
    const auto add = [&](int32_t character, size_t now) {
      const int32_t rest = builder_->AddRuleRef(text(std::max(least - 1, 0), now));
      choices.push_back(builder_->AddSequence({character, rest}));
    };
    const auto byte = [&](size_t i) { return static_cast<int32_t>(tag_[i]); };
    add(builder_->AddCharacterClass({{byte(0), byte(0)}, {byte(met), byte(met)}}, true), 0);
    add(builder_->AddByteString(std::string(1, tag_[0])), 1);
    if (met > 0 && met + 1 < tag_.size()) add(builder_->AddByteString(std::string(1, tag_[met])), met + 1);
    builder_->UpdateRuleBody(made, builder_->AddChoices(choices));
    return made;
  }

  std::string_view tag_;
  std::map<std::pair<int32_t, size_t>, int32_t> texts_;
};
}  // namespace

xgrammar::Grammar with_exact_values(const xgrammar::Grammar& grammar, const TagStyle& style) {
  return TextCloser(style.end).Apply(ValueTrimmer().Apply(grammar));
}

}  // namespace sluice::grammar
