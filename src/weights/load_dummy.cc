// SPDX-License-Identifier: Apache-2.0
// Dummy weights that never are on the host.
#include "format/quantize_rows.h"
#include "weights/calibration.h"
#include "weights/load.h"

namespace sluice::weights {

namespace {
QuantTensor empty_stack(int64_t experts, int64_t rows, int64_t cols) {
  QuantTensor w;
  w.experts = experts, w.rows = rows, w.cols = cols;
  return w;
}
}  // namespace

LoadedLinear Loader::dummy_linear(std::string_view module, int64_t rows, int64_t cols) {
  DeviceStage& stage = *options_.stage;
  const ModuleFormat wanted = target(module, {}, std::string(module));
  LoadedLinear out;
  out.inputs = wanted.inputs;
  out.w = empty_stack(1, rows, cols);
  out.w.codes = stage.make(DType::bf16, {1, rows, cols});
  stage.fill_dummy(out.w.codes, dummy_range(std::string(module) + ".weight", {rows, cols}), 0, 0);
  if (format::is_static(wanted.inputs)) out.input_scale = online_input_scale(wanted.inputs, std::string(module));
  out.w = stage.quantize(wanted.weights, out.w);
  return out;
}

// In the order of one tensor for gate and up, [E, 2I, H], as the host's dummies are.
std::optional<LoadedExperts> Loader::dummy_experts(const ExpertNames& names, const ExpertShape& shape) {
  const ExpertInputs observed = expert_inputs(names.module);
  LoadedExperts out;
  out.format = target(names.module, {}, observed.gemm1);
  if (!stage_takes(shape, format::Format::bf16, out.format.weights)) return {};
  DeviceStage& stage = *options_.stage;
  const bool gated = !names.gate.empty();
  const int64_t size = shape.inter * shape.hidden, merged = gated ? 2 * size : size;
  const auto fill = [&](QuantTensor& w, const std::string& tensor, int64_t rows, int64_t cols, int64_t first,
                        int64_t stride) {
    w = empty_stack(shape.experts, rows, cols);
    w.codes = stage.make(DType::bf16, {shape.experts, rows, cols});
    stage.fill_dummy(w.codes, dummy_range(names.module + "." + tensor, {shape.experts, rows, cols}), first, stride);
  };
  ExpertWeights& w = out.weights;
  const std::string first = gated ? "gate_up_proj" : names.up;
  if (gated) fill(w.gate, first, shape.inter, shape.hidden, 0, merged);
  fill(w.up, first, shape.inter, shape.hidden, gated ? size : 0, merged);
  fill(w.down, names.down, shape.hidden, shape.inter, 0, size);

  if (format::is_static(out.format.inputs)) {
    w.input_scale1 = online_input_scale(out.format.inputs, observed.gemm1);
    w.input_scale2 = online_input_scale(out.format.inputs, observed.gemm2);
  }
  for (QuantTensor* q : {&w.gate, &w.up, &w.down})
    if (!q->codes.empty()) *q = stage.quantize(out.format.weights, *q);
  return out;
}

}  // namespace sluice::weights
