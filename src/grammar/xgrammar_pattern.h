// SPDX-License-Identifier: Apache-2.0
// Patterns of strings inside JSON.
#pragma once

#include <string>

namespace sluice::grammar {

// xgrammar turns a pattern into an automaton that leaves out what a JSON string cannot hold as it is: quotation marks,
// backslashes, control characters. Where it finds none it falls back to a form that writes them, so that the text would
// be no JSON. Throws invalid_argument for such a pattern.
void check_json_string_pattern(const std::string& pattern);

}  // namespace sluice::grammar
