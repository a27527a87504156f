// SPDX-License-Identifier: Apache-2.0
#include "argument_checks.h"

#include <CLI/CLI.hpp>
#include <charconv>

#include "base/error.h"

namespace sluice::apps {

void check_uint64(CLI::Option& option) {
  option.check(CLI::Validator(
      [](const std::string& text) -> std::string {
        uint64_t value = 0;
        const char* const end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, value);
        if (error == std::errc{} && stop == end) return "";
        return fmt::format("Value {} not in range 0 to {}", text, UINT64_MAX);  // as CLI::Range says it
      },
      ""));
}

}  // namespace sluice::apps
