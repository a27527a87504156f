// SPDX-License-Identifier: Apache-2.0
#include "bus_error.h"

#include <unistd.h>

#include <csignal>
#include <cstring>

#include "command.h"
#include "io/mmap.h"

namespace sluice::apps {

namespace {
// Only async-signal-safe calls from here on.
void on_bus_error(int signal_number, siginfo_t* info, void*) {
  constexpr char kPrefix[] = "sluice: ";
  constexpr size_t kStart = sizeof kPrefix - 1;
  char text[4600];
  std::memcpy(text, kPrefix, kStart);
  const size_t length = io::describe_bus_error(info->si_addr, text + kStart, sizeof text - kStart);
  if (length == 0) {
    std::signal(signal_number, SIG_DFL);  // not a file of ours: returning repeats the access, which then ends us
    return;
  }
  const ssize_t written = write(STDERR_FILENO, text, kStart + length);
  _exit(written > 0 ? kExitFile : kExitInternal);
}
}  // namespace

void explain_bus_errors() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace sluice::apps
