// SPDX-License-Identifier: Apache-2.0
// The spec's input formats in the kernels' terms.
#pragma once

#include "format/formats.h"
#include "kernels/sm90/grouped_gemm/args.h"

namespace sluice::sm90 {

constexpr Round round_of(format::InputFormat f) {
  using format::InputFormat;
  switch (f) {
    case InputFormat::plain:
      return Round::plain;
    case InputFormat::fp8_static:
      return Round::fp8_static;
    case InputFormat::fp8_token:
      return Round::fp8_token;
    case InputFormat::fp8_group:
      return Round::fp8_group;
    case InputFormat::mxfp8:
      return Round::mxfp8;
    case InputFormat::nvfp4:
      return Round::nvfp4;
    case InputFormat::nvfp4_token:
      return Round::nvfp4_token;
  }
  return Round::plain;
}
constexpr bool is_static(Round r) { return r == Round::fp8_static || r == Round::nvfp4; }
constexpr bool scales_rows(Round r) { return r == Round::fp8_token || r == Round::nvfp4_token; }

// NVFP4 rows hold codes times block scales; their global factor is the reciprocal of the rounded reciprocal.
inline InputScale input_scale(Round round, float scale) {
  const format::Nvfp4Global global = format::nvfp4_global(scale);
  return {round == Round::nvfp4 ? global.decode : scale, format::fp8_static_inverse(scale), global};
}

}  // namespace sluice::sm90
