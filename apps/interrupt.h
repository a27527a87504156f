// SPDX-License-Identifier: Apache-2.0
// Ctrl-C and SIGTERM. Work that reports progress, and loops that call throw_if_interrupted(), unwind at once, so that
// destructors remove unfinished files; whatever does neither is ended when the patience is over, or by a second Ctrl-C.
#pragma once

namespace sluice::apps {

struct Interrupted {};  // not a std::exception: only main() catches it

void handle_interrupts();  // installs the handlers
void throw_if_interrupted();

// Seconds from the first Ctrl-C to the end: 1, unless a command needs longer from one report to the next while there is
// something to remove.
void set_interrupt_patience(unsigned seconds);

}  // namespace sluice::apps
