// SPDX-License-Identifier: Apache-2.0
#include "argument_checks.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <filesystem>

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

void check_numbers(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();  // "FLOAT", or "FLOAT:FLOAT in [0 - 1]"
    const bool real = type.starts_with("FLOAT");
    if (!real && !type.starts_with("INT") && !type.starts_with("UINT")) continue;
    option->check(CLI::Validator(
        [real](const std::string& text) -> std::string {
          double value = 0;
          if (!text.empty() && !(real && CLI::detail::lexical_cast(text, value) && std::isnan(value))) return "";
          return fmt::format("Value {} not in range {}", text,
                             real ? "a number" : "an integer");  // as CLI::Range says it
        },
        ""));
  }
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) check_numbers(*command);
}

void check_not_the_input(const std::string& output, const std::string& input) {
  std::error_code ignored;  // an output that does not exist yet is another file
  check(!std::filesystem::equivalent(output, input, ignored),
        "the output {} is the input file {}; give the output a name of its own", output, input);
}

void check_not_in_the_model(const std::string& output, const std::string& folder) {
  std::error_code ignored;
  for (const auto& file : std::filesystem::directory_iterator(folder, ignored))
    check(!std::filesystem::equivalent(output, file.path(), ignored),
          "the output {} is a file of the model in {}; give the output a name of its own", output, folder);
}

}  // namespace sluice::apps
