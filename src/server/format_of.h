// SPDX-License-Identifier: Apache-2.0
// One of a list of formats that have `names` and `markers`: by what a user calls it, or by the chat template that shows
// it to the model.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

namespace sluice::server {

// nullptr: none has that name.
template <class Format>
const Format* format_of_name(const std::vector<Format>& all, std::string_view name) {
  for (const Format& f : all)
    if (std::find(f.names.begin(), f.names.end(), name) != f.names.end()) return &f;
  return nullptr;
}

// The first whose markers the template holds; nullptr: none.
template <class Format>
const Format* format_of_template(const std::vector<Format>& all, std::string_view chat_template) {
  for (const Format& f : all)
    if (std::all_of(f.markers.begin(), f.markers.end(),
                    [&](std::string_view marker) { return chat_template.find(marker) != chat_template.npos; }))
      return &f;
  return nullptr;
}

}  // namespace sluice::server
