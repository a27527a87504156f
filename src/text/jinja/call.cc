// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/call.h"

#include <algorithm>

#include "base/error.h"

namespace sluice::text::jinja {

void Call::refuse(std::string_view why) const {
  fail(ErrorCode::invalid_argument, "chat template line {}: {} {}", line_, what_, why);
}

void Call::refuse_subject(const Value& subject, std::string_view accepted) const {
  if (subject.is(Value::Kind::undefined))
    refuse(fmt::format("is given \"{}\", which is undefined; it takes {}", subject.undefined_name(), accepted));
  refuse(fmt::format("is given a {}; it takes {}", subject.kind_name(), accepted));
}

void Call::bind(std::initializer_list<std::string_view> parameters) {
  parameters_ = parameters;
  bound_.assign(parameters_.size(), Value());
  given_.assign(parameters_.size(), false);
  if (positional_.size() > parameters_.size())
    refuse(fmt::format("is given {} arguments; it takes {}", positional_.size(), parameters_.size()));
  for (size_t i = 0; i < positional_.size(); ++i) {
    bound_[i] = positional_[i];
    given_[i] = true;
  }
  for (const auto& [name, value] : named_) {
    const auto i = static_cast<size_t>(std::find(parameters_.begin(), parameters_.end(), name) - parameters_.begin());
    if (i == parameters_.size()) refuse(fmt::format("has no parameter \"{}\"", name));
    if (given_[i]) refuse(fmt::format("is given \"{}\" twice", name));
    bound_[i] = value;
    given_[i] = true;
  }
}

const Value& Call::value(size_t i) const {
  if (!has(i)) refuse(fmt::format("needs the argument \"{}\"", parameters_[i]));
  return bound_[i];
}

const std::string& Call::text(size_t i) const {
  const Value& v = value(i);
  if (!v.is(Value::Kind::string)) refuse(fmt::format("takes a str as \"{}\", not a {}", parameters_[i], v.kind_name()));
  return v.string();
}

int64_t Call::integer(size_t i) const {
  const Value& v = value(i);
  if (!v.is(Value::Kind::integer) && !v.is(Value::Kind::boolean))
    refuse(fmt::format("takes an int as \"{}\", not a {}", parameters_[i], v.kind_name()));
  return v.integer();
}

}  // namespace sluice::text::jinja
