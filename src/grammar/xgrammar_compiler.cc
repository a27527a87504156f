// SPDX-License-Identifier: Apache-2.0
// grammar/compiler.h by xgrammar.
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <list>
#include <mutex>
#include <optional>
#include <variant>

#include "base/error.h"
#include "grammar/compile_queue.h"
#include "grammar/compiler.h"
#include "grammar/xgrammar_log.h"
#include "grammar/xgrammar_pattern.h"
#include "grammar/xgrammar_strings.h"
#include "grammar/xgrammar_surrogates.h"
#include "grammar/xgrammar_xml.h"
#include "sampling/choose.h"

namespace sluice::grammar {

namespace {

// UTF-8 has no surrogates: after ED no byte from A0 on. xgrammar takes them for characters of every class around them.
constexpr unsigned char kBeforeSurrogate = 0xed;
bool is_rest_of_surrogate(char c) {
  return static_cast<unsigned char>(c) >= 0xa0 && static_cast<unsigned char>(c) < 0xc0;
}
bool ends_before_surrogate(std::string_view text) {
  return !text.empty() && static_cast<unsigned char>(text.back()) == kBeforeSurrogate;
}
bool has_surrogate(std::string_view text) {
  for (size_t i = 1; i < text.size(); ++i)
    if (is_rest_of_surrogate(text[i]) && ends_before_surrogate(text.substr(0, i))) return true;
  return false;
}

// What a GrammarState has to know of the tokens' texts.
struct TokenTexts {
  explicit TokenTexts(Vocabulary v) : vocabulary(std::move(v)) {
    for (size_t id = 0; id < vocabulary.bytes.size(); ++id)
      if (const std::string& word = vocabulary.bytes[id]; !word.empty() && is_rest_of_surrogate(word.front()))
        rests_of_surrogates.push_back(static_cast<int32_t>(id));
  }
  Vocabulary vocabulary;
  std::vector<int32_t> rests_of_surrogates;  // tokens that begin with one
};

struct VocabularyCompiler {
  explicit VocabularyCompiler(Vocabulary v) : texts(std::make_shared<const TokenTexts>(std::move(v))) {}
  xgrammar::TokenizerInfo info(const std::vector<std::string>& tags, bool printable);
  CompileQueue::Compiled compile(const Source& source, const Prepared& prepared);

  const std::shared_ptr<const TokenTexts> texts;
  std::mutex mutex;
  struct Info {
    std::vector<int32_t> control;  // tokens that may be matched
    bool printable;
    xgrammar::TokenizerInfo info;
  };
  std::list<Info> infos;  // the most recently used first
};
}  // namespace

std::string_view why_not_available() { return {}; }

struct CompiledGrammar {
  xgrammar::CompiledGrammar compiled;
  std::shared_ptr<const TokenTexts> texts;
};

struct GrammarCompiler::Impl {
  std::shared_ptr<CompileQueue> queue;
};

GrammarCompiler::GrammarCompiler(Vocabulary vocabulary, CompilerLimits limits) : impl_(std::make_unique<Impl>()) {
  const auto compiler = std::make_shared<VocabularyCompiler>(std::move(vocabulary));
  impl_->queue = std::make_shared<CompileQueue>(
      [compiler](const Source& source, const Prepared& prepared) { return compiler->compile(source, prepared); },
      limits);
}
GrammarCompiler::~GrammarCompiler() { impl_->queue->on_change(nullptr); }

GrammarPtr GrammarCompiler::compile(const Source& source) { return impl_->queue->compile(source); }
GrammarPtr GrammarCompiler::try_compile(const Source& source) { return impl_->queue->try_compile(source); }
std::optional<Clock::time_point> GrammarCompiler::pending_until(const Source& source) const {
  return impl_->queue->pending_until(source);
}
void GrammarCompiler::on_change(std::function<void()> call) { impl_->queue->on_change(std::move(call)); }
GrammarCompiler::Stats GrammarCompiler::stats() const { return impl_->queue->stats(); }

// tags: texts whose control tokens may be matched. A structure's own tags may be such tokens; any other one would be
// taken for what the structure holds, and then the answer, which shows none, would lack it. printable: without control
// characters but the end of a line. No JSON has those in its strings; xgrammar allows them where a string's length is
// bounded.
xgrammar::TokenizerInfo VocabularyCompiler::info(const std::vector<std::string>& tags, bool printable) {
  constexpr size_t kMostInfos = 8;  // some 20 MB each
  const std::lock_guard lock(mutex);
  const Vocabulary& vocabulary = texts->vocabulary;
  std::vector<int32_t> control;
  for (size_t id = 0; id < vocabulary.bytes.size(); ++id) {
    const std::string& word = vocabulary.bytes[id];
    if (vocabulary.special[id] && !word.empty() &&
        std::any_of(tags.begin(), tags.end(), [&](const std::string& tag) { return tag.find(word) != tag.npos; }))
      control.push_back(static_cast<int32_t>(id));
  }
  const auto made = std::find_if(infos.begin(), infos.end(),
                                 [&](const Info& i) { return i.printable == printable && i.control == control; });
  if (made != infos.end()) {
    infos.splice(infos.begin(), infos, made);
    return made->info;
  }
  const auto has_control = [](const std::string& word) {
    return std::any_of(word.begin(), word.end(),
                       [](char c) { return static_cast<unsigned char>(c) < 0x20 && c != '\n'; });
  };
  // Tokens without bytes are never taken. Stop tokens are not text either: who samples allows them where the text may
  // end, so that a request's own ones count too.
  std::vector<std::string> words = vocabulary.bytes;
  const auto is_matched = [&](size_t id) {
    return !vocabulary.special[id] || std::binary_search(control.begin(), control.end(), static_cast<int32_t>(id));
  };
  for (size_t id = 0; id < words.size(); ++id)
    if (!is_matched(id) || (printable && has_control(words[id])) || has_surrogate(words[id])) words[id].clear();
  for (const int32_t id : vocabulary.stops)
    if (static_cast<size_t>(id) < words.size()) words[static_cast<size_t>(id)].clear();
  infos.push_front({std::move(control), printable,
                    xgrammar::TokenizerInfo(words, xgrammar::VocabType::RAW, static_cast<int>(vocabulary.size),
                                            std::vector<int32_t>())});
  if (infos.size() > kMostInfos) infos.pop_back();
  return infos.front().info;
}

CompileQueue::Compiled VocabularyCompiler::compile(const Source& source, const Prepared& prepared) try {
  const xgrammar::TokenizerInfo tokens = info(prepared.tags, source.kind == Kind::json_schema || prepared.lengths);
  const KeptWarnings warnings;
  for (const std::string& pattern : prepared.patterns) check_json_string_pattern(pattern);
  xgrammar::GrammarCompiler compiler(tokens, 1, false);
  const auto compiled = [&] {
    switch (source.kind) {
      case Kind::json_schema:
        return compiler.CompileGrammar(with_closed_strings(xgrammar::Grammar::FromJSONSchema(
            prepared.text, true, std::nullopt, std::nullopt, source.closed, kMostWhiteSpace)));
      case Kind::regex:
        return compiler.CompileRegex(prepared.text);
      case Kind::ebnf:
        return compiler.CompileGrammar(prepared.text);
      case Kind::structural_tag: {
        const auto made = xgrammar::Grammar::FromStructuralTag(prepared.text, tokens);
        if (const auto* grammar = std::get_if<xgrammar::Grammar>(&made))
          return compiler.CompileGrammar(
              with_closed_strings(prepared.style == nullptr ? *grammar : with_exact_values(*grammar, *prepared.style)));
        return compiler.CompileStructuralTag(prepared.text);  // throws what is wrong
      }
    }
    fail(ErrorCode::internal, "no such kind of grammar");
  }();
  // It warns of what it will not keep. A constraint that holds in parts only is none.
  if (!warnings.all().empty()) fail(ErrorCode::invalid_argument, "{}", refusal_of(warnings.all().front()));
  check_surrogates(compiled);
  return {std::make_shared<const CompiledGrammar>(CompiledGrammar{compiled, texts}), compiled.MemorySizeBytes()};
} catch (const std::bad_alloc&) {
  throw;
} catch (const std::exception& error) {
  const std::string sentence = sentence_of(error);
  fail(ErrorCode::invalid_argument, "{}", sentence.empty() ? "xgrammar does not say why" : sentence);
}

struct GrammarState::Impl {
  explicit Impl(GrammarPtr g) : grammar(std::move(g)), matcher(grammar->compiled) {}
  bool before_surrogate() const { return !steps.empty() && steps.back(); }

  GrammarPtr grammar;
  xgrammar::GrammarMatcher matcher;
  std::vector<bool> steps;  // does the text after each of them end in half of what may become a surrogate?
};

GrammarState::GrammarState(GrammarPtr grammar) : impl_(std::make_unique<Impl>(std::move(grammar))) {}
GrammarState::~GrammarState() = default;
GrammarState::GrammarState(GrammarState&&) noexcept = default;
GrammarState& GrammarState::operator=(GrammarState&&) noexcept = default;

bool GrammarState::accept(int32_t token) {
  const std::vector<std::string>& words = impl_->grammar->texts->vocabulary.bytes;
  std::string_view word;
  if (static_cast<size_t>(token) < words.size()) word = words[static_cast<size_t>(token)];
  if (impl_->before_surrogate() && !word.empty() && is_rest_of_surrogate(word.front())) return false;
  if (!impl_->matcher.AcceptToken(token)) return false;
  impl_->steps.push_back(ends_before_surrogate(word));
  return true;
}

bool GrammarState::accept_bytes(std::string_view bytes) {
  if (has_surrogate(bytes) || (impl_->before_surrogate() && !bytes.empty() && is_rest_of_surrogate(bytes.front())))
    return false;
  if (!impl_->matcher.AcceptString(std::string(bytes))) return false;
  impl_->steps.push_back(bytes.empty() ? impl_->before_surrogate() : ends_before_surrogate(bytes));
  return true;
}

void GrammarState::rollback(int steps) {
  if (steps <= 0) return;
  impl_->matcher.Rollback(steps);
  impl_->steps.resize(impl_->steps.size() - static_cast<size_t>(steps));
}
bool GrammarState::may_end() const { return impl_->matcher.IsCompleted(); }

void GrammarState::fill_mask(std::span<uint32_t> mask) {
  int64_t shape = sampling::mask_words(impl_->grammar->texts->vocabulary.size);
  check(static_cast<int64_t>(mask.size()) == shape, "the mask has {} words; expected: {}", mask.size(), shape);
  DLTensor tensor{};
  tensor.data = mask.data();
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = {kDLInt, 32, 1};
  tensor.shape = &shape;
  impl_->matcher.FillNextTokenBitmask(&tensor);
  if (!impl_->before_surrogate()) return;
  for (const int32_t id : impl_->grammar->texts->rests_of_surrogates)
    mask[static_cast<size_t>(id) / 32] &= ~(1u << (id % 32));
}

}  // namespace sluice::grammar
