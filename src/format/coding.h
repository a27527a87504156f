// SPDX-License-Identifier: Apache-2.0
// What the rows of a tensor are quantised to when codes and scales are handed to somebody else: every InputFormat that
// has codes, and MXFP4, which no GEMM here takes as an input.
#pragma once

#include <array>
#include <cstdint>

#include "base/hd.h"
#include "base/named.h"

namespace sluice::format {

enum class Coding : int { fp8_static, fp8_token, fp8_group, mxfp8, nvfp4, nvfp4_token, mxfp4 };

inline constexpr std::array<Named<Coding>, 7> kCodings{{{Coding::fp8_static, "fp8_static"},
                                                        {Coding::fp8_token, "fp8_token"},
                                                        {Coding::fp8_group, "fp8_group"},
                                                        {Coding::mxfp8, "mxfp8"},
                                                        {Coding::nvfp4, "nvfp4"},
                                                        {Coding::nvfp4_token, "nvfp4_token"},
                                                        {Coding::mxfp4, "mxfp4"}}};

// Columns that share a block scale; 0: none.
HD constexpr int coding_group(Coding c) {
  return c == Coding::fp8_group                           ? 128
         : c == Coding::mxfp8 || c == Coding::mxfp4       ? 32
         : c == Coding::nvfp4 || c == Coding::nvfp4_token ? 16
                                                          : 0;
}
HD constexpr bool is_four_bit(Coding c) { return c == Coding::nvfp4 || c == Coding::nvfp4_token || c == Coding::mxfp4; }
// A calibrated scale of the whole tensor must be given.
HD constexpr bool is_calibrated(Coding c) { return c == Coding::fp8_static || c == Coding::nvfp4; }
// A scale of each row comes out.
HD constexpr bool has_row_scales(Coding c) { return c == Coding::fp8_token || c == Coding::nvfp4_token; }

}  // namespace sluice::format
