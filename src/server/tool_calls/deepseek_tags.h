// SPDX-License-Identifier: Apache-2.0
// The tags of DeepSeek-V3 and V3.1, whose bars are U+FF5C and whose gaps are U+2581.
#pragma once

#include <string_view>

namespace sluice::server::deepseek {

inline constexpr std::string_view kCalls =
                                      "<\xEF\xBD\x9Ctool\xE2\x96\x81"
                                      "calls\xE2\x96\x81"
                                      "begin\xEF\xBD\x9C>",
                                  kCallsEnd =
                                      "<\xEF\xBD\x9Ctool\xE2\x96\x81"
                                      "calls\xE2\x96\x81"
                                      "end\xEF\xBD\x9C>",
                                  kCall =
                                      "<\xEF\xBD\x9Ctool\xE2\x96\x81"
                                      "call\xE2\x96\x81"
                                      "begin\xEF\xBD\x9C>",
                                  kCallEnd =
                                      "<\xEF\xBD\x9Ctool\xE2\x96\x81"
                                      "call\xE2\x96\x81"
                                      "end\xEF\xBD\x9C>",
                                  kSeparator = "<\xEF\xBD\x9Ctool\xE2\x96\x81sep\xEF\xBD\x9C>";

}  // namespace sluice::server::deepseek
