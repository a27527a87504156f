// SPDX-License-Identifier: Apache-2.0
// How arguments stand between tags, a pair for each: the styles of a structural tag's JSON schema that calls have.
#pragma once

#include <string_view>

namespace sluice::grammar {

struct TagStyle {
  std::string_view name;    // xgrammar's
  std::string_view end;     // the tag that ends a value
  std::string_view around;  // on both sides of a value that the schema bounds
  std::string_view never;   // characters that no name of a parameter has, as they would end it
};
inline constexpr TagStyle kTagStyles[] = {
    {"qwen_xml", "</parameter>", "\n", "<>\n"},
    {"glm_xml", "</arg_value>", "", "<"},
};

}  // namespace sluice::grammar
