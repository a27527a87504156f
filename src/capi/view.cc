// SPDX-License-Identifier: Apache-2.0
#include "capi/view.h"

#include <algorithm>

#include "capi/status.h"
#include "format/quantize_rows.h"
#include "weights/scale_grid.h"

namespace sluice::capi {

namespace {

// A tensor over the caller's memory, which outlives every use here: layers copy what they prepare.
Tensor view(DType dtype, Shape shape, const void* data) { return {dtype, std::move(shape), data, nullptr}; }

Tensor view_floats(const char* name, const float* data, bool allowed, Shape shape) {
  check(data == nullptr || allowed, "weights.{} is given, but the spec does not announce it", name);
  return data == nullptr ? Tensor{} : view(DType::f32, std::move(shape), data);
}

}  // namespace

void check_elements(std::string_view what, const Shape& shape) {
  // More do not fit into an address space. 17 bits are left for 4 bytes each and for what a layout pads, at most a
  // factor of 512: one row and one group take 128 x 4 scales.
  constexpr int64_t kMax = int64_t{1} << 46;
  int64_t product = 1;
  for (const int64_t size : shape) {
    check(size <= kMax / std::max<int64_t>(product, 1), "{} {}; accepted: at most 2^46 elements", what,
          to_string(shape));
    product *= size;
  }
}

weights::QuantTensor view_matrices(format::Format format, int64_t experts, const char* name, const sluice_matrices& m,
                                   int64_t rows, int64_t cols) {
  const format::FormatInfo f = format::info(format);
  const weights::ScaleGrid grid = weights::scale_grid(format, rows, cols);
  check(m.codes != nullptr, "weights.{}.codes is NULL; accepted: [{}, {}, {}] of {}", name, experts, rows, cols,
        f.name);
  check(f.bits != 4 || cols % 2 == 0,
        "weights.{} has {} columns; {} stores two codes per byte and needs an even number", name, cols, f.name);
  weights::QuantTensor w{format, experts, rows, cols, {}, {}, {}};
  w.codes = view(weights::code_type(f), {experts, rows, f.bits == 4 ? cols / 2 : cols}, m.codes);
  if (f.scale != format::ScaleType::none) {
    check(m.scales != nullptr, "weights.{}.scales is NULL; {} has scales", name, f.name);
    Shape shape{experts};
    if (grid.rank >= 1) shape.push_back(grid.rows);
    if (grid.rank == 2) shape.push_back(grid.cols);
    w.scales = view(weights::scale_type(f), std::move(shape), m.scales);
  } else {
    check(m.scales == nullptr, "weights.{}.scales is given, but {} has no scales", name, f.name);
  }
  if (f.global_scale) {
    check(m.global_scales != nullptr, "weights.{}.global_scales is NULL; {} has one per matrix", name, f.name);
    w.global = view(DType::f32, {experts}, m.global_scales);
  } else {
    check(m.global_scales == nullptr, "weights.{}.global_scales is given, but {} has none", name, f.name);
  }
  return w;
}

float read_input_scale(format::InputFormat inputs, float given) {
  const float scale = given == 0 ? 1 : given;
  format::check_input_scale(inputs, scale);
  return scale;
}

weights::ExpertWeights view_weights(const MoeSpec& spec, const sluice_moe_weights* given) {
  const auto w = read_struct(given, "weights", sizeof(sluice_moe_weights));
  const int64_t experts = spec.locals();
  weights::ExpertWeights out;
  out.up = view_matrices(spec.weights, experts, "up", w.up, spec.inter, spec.hidden);
  if (spec.gated()) {
    out.gate = view_matrices(spec.weights, experts, "gate", w.gate, spec.inter, spec.hidden);
  } else {
    check(w.gate.codes == nullptr, "weights.gate is given, but the spec's activation is not gated");
  }
  out.down = view_matrices(spec.weights, experts, "down", w.down, spec.hidden, spec.inter);
  if (w.input_scale1 != 0) out.input_scale1 = w.input_scale1;
  if (w.input_scale2 != 0) out.input_scale2 = w.input_scale2;
  out.bias_up = view_floats("bias_up", w.bias_up, spec.bias, {experts, spec.inter});
  out.bias_gate = view_floats("bias_gate", w.bias_gate, spec.bias && spec.gated(), {experts, spec.inter});
  out.bias_down = view_floats("bias_down", w.bias_down, spec.bias, {experts, spec.hidden});
  out.alpha = view_floats("alpha", w.alpha, spec.act_params, {experts});
  out.beta = view_floats("beta", w.beta, spec.act_params, {experts});
  out.limit = view_floats("limit", w.limit, spec.act_params, {experts});
  return out;
}

DType dtype_of(sluice_dtype dtype, const char* name) {
  check(dtype == SLUICE_F32 || dtype == SLUICE_BF16, "{} is {}; accepted: SLUICE_F32, SLUICE_BF16", name, dtype);
  return dtype == SLUICE_F32 ? DType::f32 : DType::bf16;
}

// What contradicts the spec is refused by the layer itself.
moe::MoeArgs read_args(const sluice_moe_args* given) {
  const auto a = read_struct(given, "args", sizeof(sluice_moe_args));
  moe::MoeArgs args;
  args.tokens = a.tokens;
  args.hidden = a.hidden;
  args.logits = a.logits;
  args.logits_dtype = dtype_of(a.logits_dtype, "args.logits_dtype");
  args.bias = a.bias;
  args.bias_dtype = dtype_of(a.bias_dtype, "args.bias_dtype");
  args.topk_ids = a.topk_ids;
  args.topk_weights = a.topk_weights;
  args.topk_weights_dtype = dtype_of(a.topk_weights_dtype, "args.topk_weights_dtype");
  args.output = a.output;
  args.workspace = a.workspace;
  args.workspace_size = a.workspace_size;
  args.chosen_ids = a.chosen_ids;
  args.chosen_weights = a.chosen_weights;
  return args;
}

CudaQueue read_queue(const sluice_cuda_queue* given) {
  if (given == nullptr) return {};
  const auto q = read_struct(given, "queue", sizeof(sluice_cuda_queue));
  return {q.stream, q.num_tokens, q.no_pdl == 0};
}

}  // namespace sluice::capi
