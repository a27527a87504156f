// SPDX-License-Identifier: Apache-2.0
// Structural tags from their parts: free text in which a trigger begins a structure, as tool calls are written.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "grammar/source.h"
#include "io/json_value.h"

namespace sluice::grammar {

// begin, then a JSON document of the schema, then end. `begin` starts with one of the triggers.
struct TagStructure {
  std::string begin;
  io::JsonValue schema;  // an object, or true for any JSON
  std::string end;
};

struct TagOptions {
  bool at_least_one = false;      // the text begins with a structure, and may end after one only
  bool stop_after_first = false;  // the text ends with the first structure
};

// The constraint of a text in which each trigger begins one of the structures that start with it; all else is free.
Source structural_tag(std::span<const std::string> triggers, std::span<const TagStructure> structures,
                      const TagOptions& options = {});

// The form that OpenAI's response_format has in SGLang and vLLM, {"type": "structural_tag", "structures": [{"begin",
// "schema", "end"}], "triggers": [...]}, or xgrammar's own with "format". Throws invalid_argument.
Source structural_tag(const io::JsonValue& given);

}  // namespace sluice::grammar
