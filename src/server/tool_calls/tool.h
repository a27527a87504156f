// SPDX-License-Identifier: Apache-2.0
// A function that a request offers to the model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/json_value.h"

namespace sluice::server {

struct Tool {
  std::string name;
  io::JsonValue parameters;  // a JSON schema of an object; null: it takes none
  bool strict = false;       // arguments must follow the schema
  bool eager = false;        // the client wants them piece by piece, even if they break off or turn out to be no JSON
  std::string description = {};
};
using Tools = std::vector<Tool>;

// nullptr: there is none.
inline const Tool* find_tool(const Tools& tools, std::string_view name) {
  for (const Tool& tool : tools)
    if (tool.name == name) return &tool;
  return nullptr;
}

}  // namespace sluice::server
