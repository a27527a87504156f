// SPDX-License-Identifier: Apache-2.0
// Ctrl-C and SIGTERM. Work that reports progress, and loops that call throw_if_interrupted(), unwind at once, so that
// destructors remove unfinished files; whatever does neither is ended a second later, or by the second Ctrl-C.
#pragma once

namespace sluice::apps {

struct Interrupted {};  // not a std::exception: only main() catches it

void handle_interrupts();  // installs the handlers
void throw_if_interrupted();

}  // namespace sluice::apps
