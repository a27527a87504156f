// SPDX-License-Identifier: Apache-2.0
// `sluice info`: the build, the machine, and the environment variables.
#include <CLI/CLI.hpp>

#include "base/env.h"
#include "command.h"
#include "version.h"

namespace sluice::apps {

namespace {
void run(Shared& shared) {
  std::printf("%s\n", version_text().c_str());
  std::printf("threads: %d\n\nenvironment variables:\n", shared.context().pool.size());
  for (const EnvVar& v : kEnvVars) {
    std::printf("  %s=%s\n      %s; default %s: %s\n", v.name.data(), env_text(v).value_or("").c_str(), v.type.data(),
                v.fallback.data(), v.what.data());
  }
}
}  // namespace

void add_info(CLI::App& parent, Shared& shared) {
  add_command(parent, shared, {"info", "print the build, the machine and the environment variables", "  sluice info\n"},
              [&shared] { run(shared); });
}

}  // namespace sluice::apps
