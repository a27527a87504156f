// SPDX-License-Identifier: Apache-2.0
// Ctrl-C and SIGTERM of a server: the first asks it to finish what it has begun, the second ends it at once.
#pragma once

namespace sluice::apps {

// From now on (instead of interrupt.h's rules) signals are kept for wait_for_shutdown(), and a second one ends the
// process with exit code 0. Throws io when there are no descriptors left.
void watch_for_shutdown();
// Returns when a signal has come.
void wait_for_shutdown();
// As a signal would, from any thread.
void ask_for_shutdown();

}  // namespace sluice::apps
