// SPDX-License-Identifier: Apache-2.0
// Surrogates in compiled grammars.
#pragma once

namespace xgrammar {
class CompiledGrammar;
}

namespace sluice::grammar {

// No text in UTF-8 has surrogates, so the masks leave out their bytes: ED, then A0 to BF. Throws invalid_argument for a
// grammar in which nothing else may follow an ED: a text would reach a place without a next token.
void check_surrogates(const xgrammar::CompiledGrammar& compiled);

}  // namespace sluice::grammar
