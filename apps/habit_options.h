// SPDX-License-Identifier: Apache-2.0
// Options of SGLang's and vLLM's servers that people have in their scripts.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace sluice::apps {

// Adds them, hidden from --help. Those that ask for what is the case here anyway are accepted, with a line in `lines`
// each; the others throw invalid_argument with a sentence that names what to write here, or why there is nothing.
void add_habit_options(CLI::App& command, std::vector<std::string>& lines);

}  // namespace sluice::apps
