// SPDX-License-Identifier: Apache-2.0
// "sm90": the fused MoE on Hopper GPUs (H100, H200) behind the interface of all backends: weights on the current
// device, the tensors of a call in host memory. Every call copies them over and waits, so that models on the CPU can
// use it; device.h has the calls on device memory.
#pragma once

#include <memory>

#include "moe/backend.h"

namespace sluice::moe {

// Without a device of compute capability 9.0 supports() says so.
std::unique_ptr<Backend> make_sm90_backend();

}  // namespace sluice::moe
