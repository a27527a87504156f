// SPDX-License-Identifier: Apache-2.0
// Arguments of calls that stand between tags, one pair for each.
#pragma once

namespace xgrammar {
class Grammar;
}

namespace sluice::grammar {

struct TagStyle;

// The same grammar, but that a value between tags has around it what the format writes there, and no other white space.
// xgrammar allows any white space beside a value that a schema bounds. To who reads the call that is a part of the
// text, so it would not be what the schema says: neither the enum's value nor of the length.
// And a text without a most length does not hold the tag that ends it, but in the first of more than four characters
// that it must have: all that follows could be taken for its rest, whatever the schema says of it.
xgrammar::Grammar with_exact_values(const xgrammar::Grammar& grammar, const TagStyle& style);

}  // namespace sluice::grammar
