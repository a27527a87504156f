// SPDX-License-Identifier: Apache-2.0
#include "interrupt.h"

#include <unistd.h>

#include <csignal>

#include "command.h"

namespace sluice::apps {

namespace {
volatile std::sig_atomic_t interrupted = 0, patience = 1;  // interrupted: the signal's number

// Without unwinding: only async-signal-safe calls.
void end_now(int) {
  end_if_pipe_broke();
  constexpr char kSentence[] = "\nsluice: interrupted\n";
  const ssize_t written = write(STDERR_FILENO, kSentence, sizeof kSentence - 1);
  static_cast<void>(written);
  _exit(kExitInterrupted);
}

void on_interrupt(int signal_number) {
  if (interrupted != 0) end_now(signal_number);
  interrupted = signal_number;
  alarm(static_cast<unsigned>(patience));
}

void on_broken_pipe(int) {
  std::signal(SIGPIPE, SIG_IGN);  // what is written while unwinding would raise it again
  on_interrupt(SIGPIPE);
}

// nohup, or a parent that wants errors of writes instead, ignores a signal before the program starts: it stays so.
void handle_unless_ignored(int signal_number, void (*handler)(int)) {
  if (std::signal(signal_number, handler) == SIG_IGN) std::signal(signal_number, SIG_IGN);
}

}  // namespace

void handle_end_signals(void (*handler)(int)) {
  std::signal(SIGINT, handler);
  handle_unless_ignored(SIGHUP, handler);
  std::signal(SIGTERM, handler);
}

void handle_interrupts() {
  std::signal(SIGALRM, end_now);
  std::signal(SIGXFSZ, SIG_IGN);  // the write that is too long fails with a sentence
  handle_unless_ignored(SIGPIPE, on_broken_pipe);
  handle_end_signals(on_interrupt);
}

void throw_if_interrupted() {
  if (interrupted != 0) throw Interrupted{};
}

void end_if_pipe_broke() {
  if (interrupted != SIGPIPE) return;
  std::signal(SIGPIPE, SIG_DFL);
  std::raise(SIGPIPE);
}

void set_interrupt_patience(unsigned seconds) { patience = static_cast<std::sig_atomic_t>(seconds); }

}  // namespace sluice::apps
