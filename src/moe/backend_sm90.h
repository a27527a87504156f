// SPDX-License-Identifier: Apache-2.0
// "sm90": the fused MoE on Hopper GPUs (H100, H200), behind the same interface.
#pragma once

#include <memory>

#include "moe/backend.h"

namespace sluice::moe {

struct Sm90Options {
  // True: all tensors of MoeArgs are in host memory; every call copies and waits, so that models on the CPU can use it.
  // False: device memory, stream-ordered.
  bool host_memory = true;
  void* stream = nullptr;  // cudaStream_t
};

// Without a device of compute capability 9.0 supports() says so.
std::unique_ptr<Backend> make_sm90_backend(Sm90Options options = {});

}  // namespace sluice::moe
