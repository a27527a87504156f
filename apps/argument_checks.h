// SPDX-License-Identifier: Apache-2.0
// What several commands check of their arguments, beyond CLI11's own checks.
#pragma once

#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace sluice::apps {

// Accepts 0 to 2^64 - 1 for a number of that type: CLI11 would take -1 for the largest, and cut a larger one.
void check_uint64(CLI::Option& option);

// Lets every option that is a number, of `app` and its commands, refuse "" and NaN. CLI11 takes the one as 0, and its
// ranges let the other through.
void check_numbers(CLI::App& app);

// Throws invalid_argument when the file to write is the one that is read: it would be replaced by the result.
void check_not_the_input(const std::string& output, const std::string& input);
// Throws invalid_argument when `output` is a file that lies in the folder of a model, such as its weights.
void check_not_in_the_model(const std::string& output, const std::string& folder);

}  // namespace sluice::apps
