// SPDX-License-Identifier: Apache-2.0
// What filters, tests, methods and functions are given, and where the tables of them are.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace sluice::text::jinja {

class Interpreter;

// The arguments of one call. Functions bind them to parameter names first.
class Call {
 public:
  Call(Interpreter& interpreter, int line, std::string what, std::vector<Value> positional,
       std::vector<std::pair<std::string, Value>> named)
      : run(interpreter),
        line_(line),
        what_(std::move(what)),
        positional_(std::move(positional)),
        named_(std::move(named)) {}

  Interpreter& run;

  // Positions and names become one list. Throws for an argument that no parameter takes.
  void bind(std::initializer_list<std::string_view> parameters);

  // By the index of a parameter, after bind().
  bool has(size_t i) const { return i < bound_.size() && given_[i]; }
  const Value& value(size_t i) const;  // throws when it was not given
  Value value_or(size_t i, Value otherwise) const { return has(i) ? bound_[i] : std::move(otherwise); }
  const std::string& text(size_t i) const;
  int64_t integer(size_t i) const;
  int64_t integer_or(size_t i, int64_t otherwise) const { return has(i) ? integer(i) : otherwise; }

  const std::vector<Value>& positional() const { return positional_; }
  const std::vector<std::pair<std::string, Value>>& named() const { return named_; }
  int line() const { return line_; }

  // "chat template line 3: the filter "join" ..."
  [[noreturn]] void refuse(std::string_view why) const;
  [[noreturn]] void refuse_subject(const Value& subject, std::string_view accepted) const;

 private:
  int line_;
  std::string what_;  // "the filter \"join\""
  std::vector<Value> positional_;
  std::vector<std::pair<std::string, Value>> named_;
  std::vector<std::string_view> parameters_;
  std::vector<Value> bound_;
  std::vector<bool> given_;
};

using Function = Value (*)(const Value& subject, Call& call);
using Test = bool (*)(const Value& subject, Call& call);

// Null when there is none of that name.
Function find_filter(std::string_view name);
Test find_test(std::string_view name);
Function find_string_method(std::string_view name);
Function find_dict_method(std::string_view name);
Function find_list_method(std::string_view name);
Function find_global(std::string_view name);  // subject: undefined

}  // namespace sluice::text::jinja
