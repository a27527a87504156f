// SPDX-License-Identifier: Apache-2.0
#include "interrupt.h"

#include <unistd.h>

#include <csignal>

#include "command.h"

namespace sluice::apps {

namespace {
volatile std::sig_atomic_t interrupted = 0, patience = 1;

void on_interrupt(int) {
  if (interrupted != 0) _exit(kExitInterrupted);
  interrupted = 1;
  alarm(static_cast<unsigned>(patience));
}

void on_alarm(int) { _exit(kExitInterrupted); }
}  // namespace

void handle_interrupts() {
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGTERM, on_interrupt);
  std::signal(SIGALRM, on_alarm);
}

void throw_if_interrupted() {
  if (interrupted != 0) throw Interrupted{};
}

void set_interrupt_patience(unsigned seconds) { patience = static_cast<std::sig_atomic_t>(seconds); }

}  // namespace sluice::apps
