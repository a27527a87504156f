// SPDX-License-Identifier: Apache-2.0
// Refuses a checkpoint that cannot fit before a byte of it is read.
#pragma once

#include <functional>

#include "device/device.h"
#include "io/checkpoint.h"
#include "model/cache.h"
#include "model/load_options.h"

namespace sluice::model {

// What the weights will take, about.
int64_t weight_bytes(const io::Checkpoint& checkpoint, const LoadOptions& options);

// Throws out_of_memory when the weights alone need more than the device has: what is free where an
// allocation reserves memory (DeviceId), else what is there. The sentence has both numbers and the quantizations that
// would fit.
void check_fits(const io::Checkpoint& checkpoint, const LoadOptions& options, DeviceId device, DeviceMemory memory);

// The cache that a caller will reserve for a model, from what its configuration says. Empty: none.
using CachePlan = std::function<CacheConfig(const CacheShape& shape, int64_t max_positions)>;

// The same for `weights` bytes (0: not known) and a cache together. The sentence has the numbers and the tokens for
// which there would be room.
void check_cache_fits(int64_t weights, const CacheShape& shape, const CacheConfig& cache, DeviceId device,
                      DeviceMemory memory);

}  // namespace sluice::model
