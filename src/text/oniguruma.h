// SPDX-License-Identifier: Apache-2.0
// tokenizer.json's patterns are written for Oniguruma; this project matches with PCRE2.
// Written by hand: PCRE2 compiles to machine code and bounds a match by steps and memory, and the patterns in use
// differ in few words between the two. What differs otherwise is refused.
#pragma once

#include <string>
#include <string_view>

namespace sluice::text {

// `pattern` in PCRE2's words, to be compiled with UTF, UCP and MULTILINE, matching what Oniguruma matches:
//   \s \S \w \W   Unicode's White_Space and word characters, spelled out (PCRE2's \s has U+180E, its \w no marks)
//   \v \uHHHH     one character, not PCRE2's classes
// What would mean something else and has no simple translation is refused by name: && and [ inside a class,
// {n,m}+, \h \b \R \X and the rest of the escapes. `what` names the pattern in the sentence. Throws bad_file.
std::string from_oniguruma(std::string_view pattern, std::string_view what);

}  // namespace sluice::text
