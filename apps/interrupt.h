// SPDX-License-Identifier: Apache-2.0
// Signals that end the program: Ctrl-C, SIGTERM, a terminal that hangs up, a pipe whose reader is gone. Work that
// reports progress, and loops that call throw_if_interrupted(), unwind at once, so that destructors remove unfinished
// files; whatever does neither is ended when the patience is over, or by a second Ctrl-C.
#pragma once

namespace sluice::apps {

struct Interrupted {};  // not a std::exception: only main() catches it

void handle_interrupts();  // installs the handlers
// Another handler of SIGINT, SIGTERM and, unless it is ignored, SIGHUP.
void handle_end_signals(void (*handler)(int));
void throw_if_interrupted();
// Ends the process by SIGPIPE where that was the signal: whoever made the pipeline expects it, and no sentence.
void end_if_pipe_broke();

// Seconds from the first Ctrl-C to the end: 1, unless a command needs longer from one report to the next while there is
// something to remove.
void set_interrupt_patience(unsigned seconds);

}  // namespace sluice::apps
