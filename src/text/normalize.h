// SPDX-License-Identifier: Apache-2.0
// Unicode normal forms, in linear time but for the sort inside a run of combining marks.
#pragma once

#include <string>
#include <string_view>

#include "text/tokenizer_data.h"

namespace sluice::text {

// `text` must be valid UTF-8.
std::string normalize(std::string_view text, Normalizer form);

}  // namespace sluice::text
