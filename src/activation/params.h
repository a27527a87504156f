// SPDX-License-Identifier: Apache-2.0
// The optional parameters of SwiGLU, one set per expert. They apply to dequantised values: codes times their scales.
// gpt-oss has alpha 1.702, beta 1 and limit 7.
#pragma once

namespace sluice::activation {

struct Params {
  float alpha = 1.0f;              // gate * sigmoid(alpha * gate)
  float beta = 0.0f;               // (up + beta)
  float limit = __builtin_inff();  // gate at most limit, up within +-limit; infinity: no clamp
};

}  // namespace sluice::activation
