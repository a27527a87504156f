// SPDX-License-Identifier: Apache-2.0
// THE LIST of sub-commands: a declaration and a line each, in the order of --help.
#include "command.h"

namespace sluice::apps {

void add_info(CLI::App& parent, Shared& shared);

void add_commands(CLI::App& app, Shared& shared) { add_info(app, shared); }

}  // namespace sluice::apps
