// SPDX-License-Identifier: Apache-2.0
#include "shutdown_signal.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "base/error.h"
#include "command.h"
#include "interrupt.h"

namespace sluice::apps {

namespace {
int signal_pipe[2];
volatile std::sig_atomic_t asked = 0;

void on_signal(int) {
  if (asked != 0) _exit(kExitOk);
  asked = 1;
  const char byte = 0;
  [[maybe_unused]] const ssize_t written = ::write(signal_pipe[1], &byte, 1);
}
}  // namespace

void watch_for_shutdown() {
  if (::pipe(signal_pipe) != 0) fail(ErrorCode::io, "no pipe for signals: too many open files");
  std::signal(SIGPIPE, SIG_IGN);  // a server outlives the reader of its log
  handle_end_signals(on_signal);
}

void ask_for_shutdown() {
  const char byte = 0;
  [[maybe_unused]] const ssize_t written = ::write(signal_pipe[1], &byte, 1);
}

void wait_for_shutdown() {
  char byte = 0;
  while (::read(signal_pipe[0], &byte, 1) < 0 && errno == EINTR) {
  }
}

}  // namespace sluice::apps
