// SPDX-License-Identifier: Apache-2.0
// A fused-MoE problem as a value: everything a backend may look at before it answers. It prints on one line and
// parses back; tests, benchmarks, bug reports and the C ABI exchange that line.
#pragma once

#include <string>
#include <string_view>

#include "activation/activations.h"
#include "format/formats.h"
#include "routing/methods.h"
#include "tensor/dtype.h"

namespace sluice {

// experts=128 top_k=8 hidden=2048 inter=768 weights=nvfp4 inputs=nvfp4_token act=swiglu routing=renormalize
struct MoeSpec {
  int experts = 0;     // E, global
  int top_k = 0;       // K
  int64_t hidden = 0;  // H
  int64_t inter = 0;   // I of this rank, before padding
  format::Format weights = format::Format::bf16;
  format::InputFormat inputs = format::InputFormat::plain;  // of both GEMMs; default by `weights`
  DType dtype = DType::bf16;  // of hidden states, output and the "plain" rounding points: bf16 or f32
  activation::Activation act = activation::Activation::swiglu;
  bool bias = false;        // gemm1_bias and gemm2_bias are given
  bool act_params = false;  // alpha, beta or limit are given (swiglu only)
  routing::Method routing = routing::Method::renormalize;
  int groups = 1, top_groups = 1;
  float routed_scale = 1.0f;  // of weights that are chosen, or given with `routed`
  bool norm_topk = true;
  bool routed = false;            // top-k ids and weights are given; `routing` is then only a label
  bool weight_on_input = false;   // llama4 only: the router weight multiplies GEMM1's result and finalize uses 1
  int local_offset = 0;           // this rank owns the experts [local_offset, local_offset + local_experts)
  int local_experts = 0;          // 0: all of them
  int64_t tokens = 0;             // a hint for choosing tiles; 0: unknown
  bool finalize = true;           // false: the unreduced rows are returned
  bool fp8_block_trtllm = false;  // round GEMM1's result to e4m3 before the activation, as the Blackwell path does
  bool fp8_f32_sums = false;   // FP8 sums in float32 everywhere; Hopper's FP8 tensor cores keep 14 bits of 128 products
  bool deterministic = false;  // a token's result must not depend on what else is in the batch

  int locals() const { return local_experts > 0 ? local_experts : experts; }
  bool gated() const { return activation::is_gated(act); }
  float given_scale() const { return routed ? routed_scale : 1.0f; }  // of weights that a call gives
  routing::Params routing_params() const {
    return {experts, top_k, groups, top_groups, routed_scale, norm_topk, dtype == DType::bf16};
  }

  bool operator==(const MoeSpec&) const = default;
};

std::string to_string(const MoeSpec& spec);     // defaults are left out
MoeSpec parse_moe_spec(std::string_view line);  // throws: names the key, the value and what is accepted
void validate(const MoeSpec& spec);             // throws on a contradiction, e.g. top_k > experts

}  // namespace sluice
