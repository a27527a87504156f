// SPDX-License-Identifier: Apache-2.0
// A family of choices is one table of (enumerator, printed name); printing, parsing and the list of
// accepted names in an error message all come from it.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "base/error.h"

namespace sluice {

template <class Enum>
struct Named {
  Enum value;
  std::string_view name;
};

template <class Enum, size_t N>
constexpr std::string_view name_of(const std::array<Named<Enum>, N>& table, Enum value) {
  for (const auto& row : table)
    if (row.value == value) return row.name;
  return "?";
}

// Throws invalid_argument: `what` is "x"; accepted: a, b, c.
template <class Enum, size_t N>
Enum parse_name(const std::array<Named<Enum>, N>& table, std::string_view what, std::string_view text) {
  std::string accepted;
  for (const auto& row : table) {
    if (row.name == text) return row.value;
    accepted += (accepted.empty() ? "" : ", ");
    accepted += row.name;
  }
  fail(ErrorCode::invalid_argument, "{} is \"{}\"; accepted: {}", what, text, accepted);
}

}  // namespace sluice
