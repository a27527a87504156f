// SPDX-License-Identifier: Apache-2.0
#include "base/env.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/error.h"

namespace sluice {

std::optional<std::string> env_text(const EnvVar& variable) {
  const char* text = std::getenv(variable.name.data());
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

bool env_flag(const EnvVar& variable) {
  const std::string text = env_text(variable).value_or("0");
  check(text == "0" || text == "1", "environment variable {} is \"{}\"; it must be 0 or 1", variable.name, text);
  return text == "1";
}

int env_int(const EnvVar& variable, int most) {
  const std::string text = env_text(variable).value_or(std::string(variable.fallback));
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc{} && end == text.data() + text.size() && value >= 0 && value <= most,
        "environment variable {} is \"{}\"; it must be an integer from 0 to {}", variable.name, text, most);
  return value;
}

std::string env_choice(const EnvVar& variable) {
  const std::string text = env_text(variable).value_or(std::string(variable.fallback));
  for (size_t at = 0; at <= variable.type.size();) {
    const size_t end = std::min(variable.type.find('|', at), variable.type.size());
    if (variable.type.substr(at, end - at) == text) return text;
    at = end + 1;
  }
  fail(ErrorCode::invalid_argument, "environment variable {} is \"{}\"; it must be one of {}", variable.name, text,
       variable.type);
}

}  // namespace sluice
