// SPDX-License-Identifier: Apache-2.0
// Instruction set levels. A kernel exists at several levels, and every level computes the same function. Results of one
// level are reproducible bit for bit whatever the batch. Results of two levels differ in float32 rounding only.
#pragma once

#include <array>
#include <optional>

#include "base/named.h"
#include "base/support.h"

namespace sluice::kernels::cpu {

// Ascending: best_isa() is the last one that the machine runs.
enum class Isa { scalar, avx2, avx_vnni, avx512, avx512_bf16, amx };

inline constexpr std::array<Named<Isa>, 6> kIsas{{{Isa::scalar, "scalar"},
                                                  {Isa::avx2, "avx2"},
                                                  {Isa::avx_vnni, "avx_vnni"},
                                                  {Isa::avx512, "avx512"},
                                                  {Isa::avx512_bf16, "avx512_bf16"},
                                                  {Isa::amx, "amx"}}};

// Yes, or the reason why this machine does not run `isa`. Asks the operating system for AMX the first time.
Support supported(Isa isa);

// The best one that this machine runs.
Isa best_isa();

}  // namespace sluice::kernels::cpu
