// SPDX-License-Identifier: Apache-2.0
// How a sub-command joins the program. apps/<name>.cc defines one function
//
//   void add_<name>(CLI::App& parent, Shared& shared) {
//     auto o = std::make_shared<Options>();
//     CLI::App* command = add_command(parent, shared, {"name", "what it does, one line", "  sluice name --x 1\n"},
//                                     [o, &shared] { run(*o, shared); });
//     command->add_option("--x", o->x, "what x is")->required();
//   }
//
// and is named once in apps/commands.cc. Parsing ends before the body runs. The body writes its result to stdout,
// throws sluice::Error when it cannot (main() prints the sentence and picks the exit code) and returns when done.
// Only files that declare options include <CLI/CLI.hpp>: it costs 5 s of compile time each.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "device/context.h"

namespace CLI {
class App;
}

namespace sluice::apps {

// Documented in docs/reference.md; scripts may rely on them.
enum ExitCode : int {
  kExitOk = 0,
  kExitInternal = 1,     // a bug of ours, or a CUDA call failed
  kExitUsage = 2,        // an option, argument or environment variable is not accepted
  kExitFile = 3,         // a file is missing, unreadable, corrupt, or could not be written
  kExitUnsupported = 4,  // well-formed, but no loader or backend takes it
  kExitMemory = 5,
  kExitInterrupted = 130,  // Ctrl-C or SIGTERM; temporary files are removed first
};

// What every command shares: its common options and, after parsing, the Context that they describe.
class Shared {
 public:
  Shared();
  ~Shared();

  // A pool of --threads threads, made at the first call, and the device that is named (choose_device), which is
  // printed where the choice was left open. Log lines and progress go to stderr.
  Context context(const std::string& device = "cpu");

  // A bar that is drawn disappears: the next line on stderr starts at its beginning.
  void clear_progress();

  int threads = 0;               // 0: every usable core
  std::string log_level;         // debug, info, warning
  std::function<void()> action;  // set by the sub-command that was parsed

 private:
  struct Live;
  std::unique_ptr<Live> live_;
};

struct CommandText {
  std::string name, summary;
  std::string examples;  // lines "  sluice ...\n" at the end of --help
};

// A command that runs `body`; it has --help, --threads and --log-level.
CLI::App* add_command(CLI::App& parent, Shared& shared, const CommandText& text, std::function<void()> body);

// A command that only holds others ("sluice eval ...").
CLI::App& add_group(CLI::App& parent, const std::string& name, const std::string& summary);

// Every sub-command, in the order of --help (commands.cc).
void add_commands(CLI::App& app, Shared& shared);

}  // namespace sluice::apps
