// SPDX-License-Identifier: Apache-2.0
// "sm90": the fused MoE on Hopper GPUs (H100, H200). On a context whose queue is a GPU's a layer takes device memory
// and enqueues; on a host context its layers are staged (staged_layer.h), on the current CUDA device.
#pragma once

#include <memory>

#include "moe/backend.h"

namespace sluice::moe {

// Without a device of compute capability 9.0 supports() says so.
std::unique_ptr<Backend> make_sm90_backend();

}  // namespace sluice::moe
