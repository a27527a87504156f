// SPDX-License-Identifier: Apache-2.0
#include "interrupt.h"

#include <unistd.h>

#include <csignal>

#include "command.h"

namespace sluice::apps {

namespace {
volatile std::sig_atomic_t interrupted = 0, patience = 1;

// Without unwinding: only async-signal-safe calls.
void end_now(int) {
  constexpr char kSentence[] = "\nsluice: interrupted\n";
  const ssize_t written = write(STDERR_FILENO, kSentence, sizeof kSentence - 1);
  static_cast<void>(written);
  _exit(kExitInterrupted);
}

void on_interrupt(int signal_number) {
  if (interrupted != 0) end_now(signal_number);
  interrupted = 1;
  alarm(static_cast<unsigned>(patience));
}

}  // namespace

void handle_interrupts() {
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGTERM, on_interrupt);
  std::signal(SIGALRM, end_now);
}

void throw_if_interrupted() {
  if (interrupted != 0) throw Interrupted{};
}

void set_interrupt_patience(unsigned seconds) { patience = static_cast<std::sig_atomic_t>(seconds); }

}  // namespace sluice::apps
