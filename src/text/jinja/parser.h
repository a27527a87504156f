// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "text/jinja/ast.h"

namespace sluice::text::jinja {

// Nodes below each other: recursion over the tree is bounded, whatever the template.
inline constexpr int kMaxDepth = 200;

// Throws bad_file for a template that Jinja would not take, unsupported for a construct that this interpreter does
// not have; both sentences begin with "chat template line N: ".
NodePtr parse(std::string_view source);

}  // namespace sluice::text::jinja
