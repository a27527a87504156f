// SPDX-License-Identifier: Apache-2.0
// MoeArgs in the terms of the Hopper kernels.
#pragma once

#include "kernels/sm90/fused_moe/fused_moe.h"
#include "moe/backend.h"

namespace sluice::moe {

inline sm90::MoeCall sm90_call(const MoeSpec& spec, const MoeArgs& args) {
  sm90::MoeCall call;
  call.tokens = args.tokens;
  call.hidden = args.hidden;
  call.logits = spec.routed ? nullptr : args.logits;
  call.logits_bf16 = args.logits_dtype == DType::bf16;
  call.bias = args.bias;
  call.bias_bf16 = args.bias_dtype == DType::bf16;
  call.topk_ids = args.topk_ids;
  call.topk_weights = args.topk_weights;
  call.topk_weights_bf16 = args.topk_weights_dtype == DType::bf16;
  call.output = args.output;
  call.workspace = args.workspace;
  call.chosen_ids = args.chosen_ids;
  call.chosen_weights = args.chosen_weights;
  return call;
}

}  // namespace sluice::moe
