// SPDX-License-Identifier: Apache-2.0
#include "moe_shapes.h"

#include "base/error.h"

namespace sluice::bench {

namespace {
using activation::Activation;

constexpr BenchShape kShapes[] = {
    {"qwen3-30b-a3b", 2048, 768, 128, 128, 8, Activation::swiglu},
    {"deepseek-v3-tp8", 7168, 256, 256, 256, 8, Activation::swiglu},
    {"deepseek-v3-ep8", 7168, 2048, 256, 32, 8, Activation::swiglu},
    {"nemotron-3-nano", 2688, 1856, 128, 128, 6, Activation::relu2},
    {"nemotron-3-super", 1024, 2688, 512, 512, 22, Activation::relu2},
    {"qwen3-30b-a3b-tp8", 2048, 96, 128, 128, 8, Activation::swiglu},
    {"nemotron-3-nano-tp8", 2688, 232, 128, 128, 6, Activation::relu2},
    {"gpt-oss-20b", 2880, 2880, 32, 32, 4, Activation::swiglu},
};
}  // namespace

std::span<const BenchShape> shapes() { return kShapes; }

std::string shape_names() {
  std::string names;
  for (const BenchShape& s : kShapes) names += (names.empty() ? "" : ", ") + std::string(s.name);
  return names;
}

const BenchShape& find_shape(std::string_view name) {
  for (const BenchShape& s : kShapes)
    if (s.name == name) return s;
  fail(ErrorCode::invalid_argument, "--shape is \"{}\"; accepted: {}", name, shape_names());
}

MoeSpec spec_of(const BenchShape& shape, format::Format weights) {
  MoeSpec s;
  s.experts = shape.experts;
  s.local_experts = shape.locals == shape.experts ? 0 : shape.locals;
  s.top_k = shape.top_k;
  s.hidden = shape.hidden;
  s.inter = shape.inter;
  s.act = shape.act;
  s.weights = weights;
  s.inputs = format::info(weights).input;
  s.routing = routing::Method::renormalize;
  return s;
}

}  // namespace sluice::bench
