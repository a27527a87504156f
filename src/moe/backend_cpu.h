// SPDX-License-Identifier: Apache-2.0
// The CPU backend: every format, activation and routing method, on any x86-64 machine.
#pragma once

#include <optional>

#include "kernels/cpu/isa.h"
#include "moe/backend.h"

namespace sluice::moe {

struct CpuOptions {
  std::optional<kernels::cpu::Isa> isa;  // nothing: the best that this machine runs
};

// Weights and all tensors are in host memory. A layer may be run by one caller at a time, on a pool of at most as many
// threads as it was prepared with.
std::unique_ptr<Backend> make_cpu_backend(CpuOptions options = {});

}  // namespace sluice::moe
