// SPDX-License-Identifier: Apache-2.0
// grammar/compiler.h in a build without the library.
#include "base/error.h"
#include "grammar/compiler.h"

namespace sluice::grammar {

std::string_view why_not_available() {
  return "this program was built without xgrammar, which constrained output needs: run scripts/setup.sh and build "
         "again";
}

struct CompiledGrammar {};
struct GrammarCompiler::Impl {};
struct GrammarState::Impl {};

GrammarCompiler::GrammarCompiler(Vocabulary, CompilerLimits) {}
GrammarCompiler::~GrammarCompiler() = default;
GrammarPtr GrammarCompiler::compile(const Source&) { fail(ErrorCode::unsupported, "{}", why_not_available()); }
GrammarPtr GrammarCompiler::try_compile(const Source& source) { return compile(source); }
std::optional<Clock::time_point> GrammarCompiler::pending_until(const Source&) const { return std::nullopt; }
void GrammarCompiler::on_change(std::function<void()>) {}
GrammarCompiler::Stats GrammarCompiler::stats() const { return {}; }

// No grammar is ever made, so there is none to follow.
GrammarState::GrammarState(GrammarPtr) { fail(ErrorCode::unsupported, "{}", why_not_available()); }
GrammarState::~GrammarState() = default;
GrammarState::GrammarState(GrammarState&&) noexcept = default;
GrammarState& GrammarState::operator=(GrammarState&&) noexcept = default;
bool GrammarState::accept(int32_t) { return false; }
bool GrammarState::accept_bytes(std::string_view) { return false; }
void GrammarState::rollback(int) {}
void GrammarState::fill_mask(std::span<uint32_t>) {}
bool GrammarState::may_end() const { return false; }

}  // namespace sluice::grammar
