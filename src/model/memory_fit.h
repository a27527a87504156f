// SPDX-License-Identifier: Apache-2.0
// Refuses a checkpoint that cannot fit before a byte of it is read.
#pragma once

#include "device/device.h"
#include "io/checkpoint.h"
#include "model/load_options.h"

namespace sluice::model {

// Throws out_of_memory when the weights alone need more than the device has: of a GPU what is free, of the host what is
// there, since the system can make room. The sentence has both numbers and the quantizations that would fit.
void check_fits(const io::Checkpoint& checkpoint, const LoadOptions& options, DeviceId device, DeviceMemory memory);

}  // namespace sluice::model
