// SPDX-License-Identifier: Apache-2.0
// A hint to the system that mapped files will be read.
#pragma once

#include <cstdint>

namespace sluice::io {

// Starts reading what of [memory, memory + bytes) is a mapped file's and not in memory yet, in large pieces and without
// waiting: touching the pages reads them in pieces of 128 KB and waits for each. Does nothing for other memory.
void read_ahead(const void* memory, int64_t bytes);

}  // namespace sluice::io
