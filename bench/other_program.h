// SPDX-License-Identifier: Apache-2.0
// A kernel as another program's, to measure what comes after one.
#pragma once

#include <cstdint>

namespace sluice::bench {

// Copies `count` 16-byte words: as elementwise kernels do, with little shared memory, without programmatic dependent
// launch, and without letting the next kernel start before it ends. `stream` is a cudaStream_t.
void launch_other_program(const void* from, void* to, int64_t count, void* stream);

}  // namespace sluice::bench
