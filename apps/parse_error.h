// SPDX-License-Identifier: Apache-2.0
// What was wrong with the command line, as one sentence.
#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace sluice::apps {

// Names the argument, its value and what would be accepted. `app`: the whole program, which has just parsed.
std::string sentence_of(const CLI::App& app, const CLI::ParseError& error);

// The sub-command that is missing after "sluice" or after a group such as "sluice eval".
std::string missing_command(const CLI::App& app);

}  // namespace sluice::apps
