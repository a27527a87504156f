// SPDX-License-Identifier: Apache-2.0
// The arguments of a call that has a pair of tags for each: text that becomes JSON by the function's schema.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "server/tool_calls/tool.h"

namespace sluice::server {

class XmlArguments {
 public:
  // tool: nullptr for a function that the request does not have; must live longer.
  explicit XmlArguments(const Tool* tool) : tool_(tool) {}

  // A parameter begins; false: it was there already.
  bool begin(std::string_view key);
  // What there is of its text. What can only become a string is one at once; of others nothing is known before the
  // end. Returns how many bytes of it are in json().
  size_t grow(std::string_view text);
  void end(std::string_view text);  // all of it
  void close() { json_ += '}'; }    // there are no more

  // The text of the object so far. What is there stays.
  std::string_view json() const { return json_; }

 private:
  const Tool* tool_;
  std::string json_ = "{", key_;
  bool is_string_ = false;  // the parameter that has begun
  size_t written_ = 0;      // bytes of its text that are in json_
  std::set<std::string, std::less<>> keys_;
};

// A parameter's text as JSON. Where the schema allows null, a boolean, a number, an object or an array, text that is
// one becomes one (also True, False and None, as Python prints them); all else becomes a string, so that no text can
// make the arguments invalid. Where a value of enum or const is written as the text, it is that value; where a string
// may stand as well, a number beyond its bounds is one. The schema: type, enum, const, bounds of numbers, anyOf, oneOf,
// allOf and references into itself.
std::string xml_value_json(std::string_view text, const io::JsonValue& parameters, std::string_view key);

}  // namespace sluice::server
