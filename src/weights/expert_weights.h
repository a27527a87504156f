// SPDX-License-Identifier: Apache-2.0
// The experts of one layer on one rank, in the canonical layout: checkpoint loaders make it, and backends repack it.
// Gate and up are two stacks, so no half boundary can move under padding or sharding, and each keeps its own scales.
#pragma once

#include "weights/quant_tensor.h"

namespace sluice::weights {

struct ExpertWeights {
  QuantTensor up;    // [L, I, H]  (the only GEMM1 matrix when the activation is not gated)
  QuantTensor gate;  // [L, I, H]; gate.empty() when not gated
  QuantTensor down;  // [L, H, I]

  // Decode factors of static input formats (x = code * scale), the largest over ALL global experts; 1 if unused.
  // fp8_static: amax / 448. nvfp4: amax / (448 * 6).
  float input_scale1 = 1.0f, input_scale2 = 1.0f;

  // gpt-oss's additions, float32, empty when absent. They apply to dequantised values.
  Tensor bias_up, bias_gate;  // [L, I]
  Tensor bias_down;           // [L, H]
  Tensor alpha, beta, limit;  // [L]; swiglu: (up + beta) * gate * sigmoid(alpha * gate), both clamped by limit
};

}  // namespace sluice::weights
