// SPDX-License-Identifier: Apache-2.0
// The C structs of the fused layer as the library's own types. They point to the caller's memory and read none of it.
#pragma once

#include <string_view>

#include "moe/backend.h"
#include "sluice/c.h"

namespace sluice::capi {

DType dtype_of(sluice_dtype dtype, const char* name);
// Throws unless numbers computed from these sizes, none of which is negative, fit into 63 bits: elements, bytes of
// them, elements with a layout's padding. what: "the matrix is".
void check_elements(std::string_view what, const Shape& shape);
weights::QuantTensor view_matrices(format::Format format, int64_t experts, const char* name, const sluice_matrices& m,
                                   int64_t rows, int64_t cols);
// 0 means 1: a caller's zeroed struct has no scale.
float read_input_scale(format::InputFormat inputs, float given);
weights::ExpertWeights view_weights(const MoeSpec& spec, const sluice_moe_weights* given);
// A sluice_cuda_queue; null: the default stream.
struct CudaQueue {
  void* stream = nullptr;
  const int32_t* num_tokens = nullptr;
  bool pdl = true;
};
CudaQueue read_queue(const sluice_cuda_queue* given);
// What contradicts the spec is refused by the layer itself.
moe::MoeArgs read_args(const sluice_moe_args* given);

}  // namespace sluice::capi
