// SPDX-License-Identifier: Apache-2.0
// By parts of xgrammar that are not its interface, as xgrammar_pattern.cc.
#include "grammar/xgrammar_surrogates.h"

#include <grammar_impl.h>
#include <xgrammar/xgrammar.h>

#include "base/error.h"

namespace sluice::grammar {

namespace {
constexpr int32_t kBeforeSurrogate = 0xed, kFirstOther = 0x80, kLastOther = 0x9f, kFirstSurrogate = 0xa0,
                  kLastSurrogate = 0xbf;

bool meets(const xgrammar::FSMEdge& edge, int32_t first, int32_t last) {
  return edge.IsCharRange() && edge.min <= last && edge.max >= first;
}
}  // namespace

void check_surrogates(const xgrammar::CompiledGrammar& compiled) {
  const xgrammar::Grammar grammar = compiled.GetGrammar();
  const xgrammar::CompactFSM& fsm = grammar->complete_fsm;
  for (int state = 0; state < fsm.NumStates(); ++state) {
    bool surrogate = false, other = false;
    for (const xgrammar::FSMEdge& edge : fsm.GetEdges(state)) {
      if (!meets(edge, kBeforeSurrogate, kBeforeSurrogate)) continue;
      for (const xgrammar::FSMEdge& next : fsm.GetEdges(edge.target)) {
        surrogate |= meets(next, kFirstSurrogate, kLastSurrogate);
        other |= !next.IsCharRange() || meets(next, kFirstOther, kLastOther);
      }
    }
    check(!surrogate || other,
          "a character class or text has surrogates (U+D800 to U+DFFF) and no character from U+D000 to U+D7FF: no text "
          "in "
          "UTF-8 has surrogates");
  }
}

}  // namespace sluice::grammar
