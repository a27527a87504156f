// SPDX-License-Identifier: Apache-2.0
#include "io/read_ahead.h"

#include <sys/mman.h>
#include <unistd.h>

namespace sluice::io {

void read_ahead(const void* memory, int64_t bytes) {
  if (bytes <= 0) return;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), begin = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t first = begin / page * page;
  // Only a hint: what fails here is read when it is touched.
  (void)madvise(reinterpret_cast<void*>(first), begin + static_cast<uintptr_t>(bytes) - first, MADV_WILLNEED);
}

}  // namespace sluice::io
