// SPDX-License-Identifier: Apache-2.0
// The optional parameters of SwiGLU, one set per expert, in the model's units. gpt-oss: alpha 1.702, beta 1, limit 7.
#pragma once

namespace sluice::activation {

struct Params {
  float alpha = 1.0f;              // gate * sigmoid(alpha * gate)
  float beta = 0.0f;               // (up + beta)
  float limit = __builtin_inff();  // gate at most limit, up within +-limit; infinity: no clamp
};

}  // namespace sluice::activation
