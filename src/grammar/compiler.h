// SPDX-License-Identifier: Apache-2.0
// Grammars compiled for a vocabulary, and the state of one text under such a grammar: which tokens may come next.
// xgrammar does the work; no other file of the project names it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "grammar/source.h"
#include "grammar/vocabulary.h"

namespace sluice::grammar {

// Why this build has no constrained output, or "".
std::string_view why_not_available();

struct CompiledGrammar;
using GrammarPtr = std::shared_ptr<const CompiledGrammar>;

using Clock = std::chrono::steady_clock;

struct CompilerLimits {
  double seconds = 10;           // processor time of one compilation
  double patience = 30;          // seconds until its end, with waiting for its turn; clients wait 60 s at most
  size_t waiting = 64;           // sources that wait for their compilation to begin
  size_t cached_grammars = 256;  // least recently used ones are dropped; what could not be compiled counts too
  size_t cached_bytes = size_t{512} << 20;
  int at_once = 2;  // compilations at the same time
  int late = 2;     // more of them, which have taken too long: they go on when nothing else wants the processor
};

class GrammarCompiler {
 public:
  explicit GrammarCompiler(Vocabulary vocabulary, CompilerLimits limits = {});
  ~GrammarCompiler();  // a compilation that still runs goes on by itself; its result is dropped

  // The compiled grammar, from the cache if it is there. Any thread may call it; it waits for a compilation. Throws
  // invalid_argument for a source that prepare() or the library refuses or that takes longer than the limit; busy when
  // too many compile or wait already; unsupported in a build without the library.
  GrammarPtr compile(const Source& source);
  // The same without waiting: null when the source is not compiled yet, and its compilation begins in its turn. Equal
  // sources are compiled once.
  GrammarPtr try_compile(const Source& source);
  // While the source compiles or waits for that: when to ask again at the latest. Nothing: try_compile() has an answer.
  std::optional<Clock::time_point> pending_until(const Source& source) const;
  // `call` is called after every compilation, on the compilation's thread; null: no call. When on_change() returns, no
  // earlier `call` is running.
  void on_change(std::function<void()> call);

  struct Stats {
    int64_t compiled = 0, hits = 0, refused = 0;
    size_t pending = 0;  // sources that compile or wait for it
    size_t cached = 0, cached_bytes = 0;
  };
  Stats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// One text under a grammar. One thread at a time.
class GrammarState {
 public:
  explicit GrammarState(GrammarPtr grammar);
  ~GrammarState();
  GrammarState(GrammarState&&) noexcept;
  GrammarState& operator=(GrammarState&&) noexcept;

  // Goes on by one token; false, and nothing changed, where the grammar does not take it. Stop tokens are not text: it
  // takes none.
  bool accept(int32_t token);
  bool accept_bytes(std::string_view bytes);  // the same for any bytes, as one step
  void rollback(int steps);                   // takes back the last steps
  // Writes a mask of the vocabulary (sampling/choose.h). All bits 0: the text cannot go on.
  void fill_mask(std::span<uint32_t> mask);
  bool may_end() const;  // the text is complete as it is

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::grammar
