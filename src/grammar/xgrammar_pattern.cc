// SPDX-License-Identifier: Apache-2.0
// By parts of xgrammar that are not its interface: the version is pinned, and the suites of tests/grammar would show a
// change.
#include "grammar/xgrammar_pattern.h"

#include <grammar_functor.h>

#include <algorithm>
#include <unordered_set>

#include "base/error.h"

namespace sluice::grammar {

void check_json_string_pattern(const std::string& pattern) {
  auto automaton = xgrammar::GrammarFSMBuilder::Regex(pattern, true);
  if (automaton.IsErr())
    fail(ErrorCode::invalid_argument, "the pattern {} is too large or not supported: {}", pattern,
         std::move(automaton).UnwrapErr().what());
  const auto fsm = std::move(automaton).Unwrap();
  std::unordered_set<int> states;
  fsm.GetReachableStates(&states);
  check(std::any_of(states.begin(), states.end(), [&](int state) { return fsm.IsEndState(state); }),
        "the pattern {} fits no string that JSON writes without escapes", pattern);
}

}  // namespace sluice::grammar
