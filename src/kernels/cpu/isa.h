// SPDX-License-Identifier: Apache-2.0
// Which instructions a kernel uses. Every level computes the same function; results of one level are reproducible bit
// for bit whatever the batch, results of two levels differ in float32 rounding only.
#pragma once

#include <array>
#include <optional>

#include "base/named.h"
#include "base/support.h"

namespace sluice::kernels::cpu {

enum class Isa { scalar, avx2, avx512, avx512_bf16, amx };

inline constexpr std::array<Named<Isa>, 5> kIsas{{{Isa::scalar, "scalar"},
                                                  {Isa::avx2, "avx2"},
                                                  {Isa::avx512, "avx512"},
                                                  {Isa::avx512_bf16, "avx512_bf16"},
                                                  {Isa::amx, "amx"}}};

// Whether this machine runs it, or the sentence why not.
Support supported(Isa isa);

// The best one that this machine runs.
Isa best_isa();

}  // namespace sluice::kernels::cpu
