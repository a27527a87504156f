// SPDX-License-Identifier: Apache-2.0
// The command line program: parses, runs one sub-command, turns what went wrong into one sentence and an exit code.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "argument_checks.h"
#include "base/env.h"
#include "base/error.h"
#include "bus_error.h"
#include "command.h"
#include "interrupt.h"
#include "parse_error.h"
#include "version.h"

namespace sluice::apps {
namespace {

ExitCode exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return kExitUsage;
    case ErrorCode::bad_file:
    case ErrorCode::not_found:
    case ErrorCode::io:
      return kExitFile;
    case ErrorCode::unsupported:
      return kExitUnsupported;
    case ErrorCode::out_of_memory:
      return kExitMemory;
    case ErrorCode::busy:
    case ErrorCode::cuda:
    case ErrorCode::internal:
      return kExitInternal;
  }
  return kExitInternal;
}

int report(Shared& shared, ExitCode code, const std::string& sentence) {
  std::fflush(stdout);
  shared.clear_progress();
  std::fprintf(stderr, "sluice: %s\n", sentence.c_str());
  return code;
}

int run(int argc, char** argv) {
  Shared shared;
  CLI::App app{"Open mixture-of-experts inference: real checkpoints, every published number format.", "sluice"};
  app.set_version_flag("--version", version_text(), "print the version, the build and the CPU's features");
  app.require_subcommand(0, 1);  // not 1: an unknown word would be reported as a missing one
  add_commands(app, shared);
  check_numbers(app);
  try {
    shared.threads = env_int(kEnvThreads, ThreadPool::kMaxThreads);
    shared.log_level = env_choice(kEnvLog);
    app.parse(argc, argv);
    check(shared.action != nullptr, "{}", missing_command(app));
    shared.action();
    // When the output is piped or redirected, a full disk shows only here.
    if (std::fflush(stdout) != 0 || std::ferror(stdout)) {
      end_if_pipe_broke();
      fail(ErrorCode::io, "writing to standard output failed; is the disk full?");
    }
    return kExitOk;
  } catch (const CLI::Success& e) {  // --help, --version
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    return report(shared, kExitUsage, sentence_of(app, e));
  } catch (const Interrupted&) {
    end_if_pipe_broke();
    return report(shared, kExitInterrupted, "interrupted");
  } catch (const Error& e) {
    return report(shared, exit_code(e.code()), e.what());
  } catch (const std::bad_alloc&) {
    return report(shared, kExitMemory, "out of memory");
  } catch (const std::exception& e) {
    return report(shared, kExitInternal, e.what());
  }
}

// Where the caller closed one of the first three descriptors, the next file would get its number, and progress or
// errors would be written into it.
void open_standard_files() {
  for (int fd = 0; fd <= STDERR_FILENO; ++fd)
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) std::abort();
}

}  // namespace
}  // namespace sluice::apps

int main(int argc, char** argv) {
  sluice::apps::open_standard_files();
  sluice::apps::handle_interrupts();
  sluice::apps::explain_bus_errors();
  return sluice::apps::run(argc, argv);
}
