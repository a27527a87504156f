// SPDX-License-Identifier: Apache-2.0
// The layers that the benchmarks of the CPU and the GPU measure: one list, so that both know the same names.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "format/formats.h"
#include "spec/moe_spec.h"

namespace sluice::bench {

struct BenchShape {
  std::string_view name;
  int64_t hidden, inter;
  int experts, locals, top_k;  // locals: the experts of this rank, the first ones
  activation::Activation act;
};

std::span<const BenchShape> shapes();
std::string shape_names();  // "qwen3-30b-a3b, ..."
// Error invalid_argument, naming what is accepted.
const BenchShape& find_shape(std::string_view name);

// Routed from logits, renormalised; inputs are the weight format's own.
MoeSpec spec_of(const BenchShape& shape, format::Format weights);

}  // namespace sluice::bench
