// SPDX-License-Identifier: Apache-2.0
// Strings of bounded length inside JSON, in a form whose masks are cheap.
#pragma once

namespace xgrammar {
class Grammar;
}

namespace sluice::grammar {

// The same language. Where a quotation mark follows at most 128 repetitions of a class of characters, it becomes a part
// of their rule.
// As xgrammar writes it, the rule of the repetitions may end after any character, so that near the end of its length
// every longer token is tried against what follows, again for each mask: 20 to 40 ms with 151,936 tokens. A rule that
// ends with the quotation mark refuses them once and for all while it is compiled. Strings of any length share rules.
xgrammar::Grammar with_closed_strings(const xgrammar::Grammar& grammar);

}  // namespace sluice::grammar
