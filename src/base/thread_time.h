// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ctime>

namespace sluice {

// Processor time of the calling thread, so that a loaded machine does not make good work look slow.
inline double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace sluice
