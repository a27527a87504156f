// SPDX-License-Identifier: Apache-2.0
// From an operand that is known when the program runs to one that templates take.
#pragma once

#include "kernels/sm90/layout.h"

namespace sluice::sm90 {

// f.template operator()<operand>()
template <class F>
void visit_operand(WeightOperand operand, F&& f) {
  using enum WeightOperand;
  switch (operand) {
    case bf16:
      return f.template operator()<bf16>();
    case fp8:
      return f.template operator()<fp8>();
    case fp8_block:
      return f.template operator()<fp8_block>();
    case mxfp8:
      return f.template operator()<mxfp8>();
    case nvfp4:
      return f.template operator()<nvfp4>();
    case mxfp4:
      return f.template operator()<mxfp4>();
    case fp8_f32:
      return f.template operator()<fp8_f32>();
    case fp8_block_f32:
      return f.template operator()<fp8_block_f32>();
  }
}

}  // namespace sluice::sm90
