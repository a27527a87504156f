// SPDX-License-Identifier: Apache-2.0
// A parsed JSON document back as text: config.json with one member changed, the rest as it was.
#pragma once

#include <string>

#include "io/json_value.h"

namespace sluice::io {

// Indented by two, members in their order; numbers keep their kind (1.0 stays a fraction, 1 an integer).
std::string to_json_text(const JsonValue& value);
// The same on one line, without white space.
std::string to_json_line(const JsonValue& value);

// Sets object's member, at the end when it is new; removes it when `value` is null.
void set_member(JsonValue& object, const std::string& key, JsonValue value);

}  // namespace sluice::io
