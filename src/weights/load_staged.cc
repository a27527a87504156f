// SPDX-License-Identifier: Apache-2.0
// Checkpoints straight to the memory of a GPU: files -> staging buffers -> device, quantised there.
#include "weights/calibration.h"
#include "weights/expert_matrix.h"
#include "weights/pad.h"
#include "weights/scale_grid.h"

namespace sluice::weights {

namespace {

const std::byte* offset(const Tensor& t, int64_t bytes) { return static_cast<const std::byte*>(t.address()) + bytes; }
std::byte* offset(Tensor& t, int64_t bytes) { return static_cast<std::byte*>(t.address()) + bytes; }

// Like copy_region() of all columns and of `to`'s rows, for codes and block scales, as copies yet to be made. Scales of
// whole matrices are copied at once.
void add_copies(const QuantTensor& from, int64_t from_expert, int64_t row_begin, QuantTensor& to, int64_t to_expert,
                std::vector<DeviceStage::Copy>& copies) {
  const format::FormatInfo f = info(from.format);
  const int64_t row = from.cols * f.bits / 8;
  copies.push_back({offset(to.codes, to_expert * to.rows * row),
                    offset(from.codes, (from_expert * from.rows + row_begin) * row), to.rows * row});
  if (f.global_scale) to.global.as<float>()[to_expert] = from.global.as<float>()[from_expert];
  if (f.scale == format::ScaleType::none) return;
  const ScaleGrid grid = scale_grid(from.format, from.rows, from.cols), small = scale_grid(to.format, to.rows, to.cols);
  if (grid.rank == 0) {
    to.scales.as<float>()[to_expert] = from.scales.as<float>()[from_expert];
    return;
  }
  const int64_t scale_row = grid.cols * bytes_of(from.scales.dtype());
  copies.push_back({offset(to.scales, to_expert * small.rows * scale_row),
                    offset(from.scales, (from_expert * grid.rows + row_begin / grid.group_n) * scale_row),
                    small.rows * scale_row});
}

// A stack in the memory of the stage; scales of whole matrices on the host.
QuantTensor make_staged(DeviceStage& stage, format::Format format, int64_t experts, int64_t rows, int64_t cols) {
  QuantTensor w = make_quant_tensor(format, experts, rows, cols,
                                    [&](DType dtype, Shape shape) { return stage.make(dtype, std::move(shape)); });
  if (!w.scales.empty() && w.scales.rank() > 1) w.scales = stage.make(w.scales.dtype(), w.scales.shape());
  return w;
}

}  // namespace

LoadedLinear Loader::staged_linear(std::string_view module, int64_t rows, int64_t cols) {
  DeviceStage& stage = *options_.stage;
  const StoredNames names = linear_names(checkpoint_, module);
  const ModuleFormat stored = stored_format(checkpoint_, scheme_, module, names);
  warn_if_not_excluded(module, stored);
  const ModuleFormat wanted = target(module, stored, std::string(module));

  LoadedLinear out;
  out.inputs = wanted.inputs;
  const QuantTensor file = open_stored(checkpoint_, names, stored.weights, {1, rows, cols, false});
  out.w = make_staged(stage, stored.weights, 1, rows, cols);
  std::vector<DeviceStage::Copy> copies;
  add_copies(file, 0, 0, out.w, 0, copies);
  stage.upload(copies);
  if (info(stored.weights).bits == 8 && stage.has_nan(out.w.codes)) check_codes(checkpoint_, names.weight, file, 0);
  report(file.codes.bytes());
  if (format::is_static(wanted.inputs))
    out.input_scale = static_input_scale(stored, wanted, {names}, std::string(module));
  out.w = stage.quantize(wanted.weights, out.w);
  return out;
}

// Whether the experts are neither cut nor padded, and the device has room for all copies of a layer that exist at the
// same time while it is prepared: as stored, as wanted and as prepared, scales included.
bool Loader::stage_takes(const ExpertShape& shape, format::Format stored, format::Format wanted) const {
  const Shard& shard = options_.shard;
  if (shard.tp_size > 1 || shard.ep_size > 1 || shape.inter % small_group(wanted) != 0) return false;
  const int64_t values = 3 * shape.experts * shape.inter * shape.hidden;
  const auto bits = [](format::Format f) { return static_cast<int64_t>(info(f).bits + (info(f).bits == 4 ? 1 : 0)); };
  const int64_t copies = bits(stored) + (wanted == stored ? 1 : 2) * bits(wanted);
  return values / 8 * copies < options_.stage->room();
}

std::optional<LoadedExperts> Loader::staged_experts(const ExpertNames& names, const ExpertShape& shape) {
  if (shape.experts <= 0 || shape.inter <= 0 || shape.hidden <= 0) return {};
  DeviceStage& stage = *options_.stage;
  LoadedExperts out;
  ExpertWeights& w = out.weights;
  const std::vector<ExpertMatrix> matrices = find_matrices(names, shape, w);
  const ModuleFormat stored = format_of_experts(names, matrices);
  const ModuleFormat wanted = out.format = target(names.module, stored, expert_inputs(names.module).gemm1);
  for (const ExpertMatrix& s : matrices)
    if (s.transposed || s.walk.step != 1) return {};
  if (!stage_takes(shape, stored.weights, wanted.weights)) return {};
  warn_if_not_excluded(matrices[0].fused ? names.module : fmt::format("{}.0.{}", names.module, names.up), stored);

  upload_experts(matrices, stored, shape.experts);
  read_input_scales(names, matrices, stored, wanted, w);
  if (matrices[0].fused) read_biases(names, shape, {0, shape.experts}, {0, shape.inter}, w);
  for (const ExpertMatrix& s : matrices) *s.to = stage.quantize(wanted.weights, *s.to);
  return out;
}

void Loader::upload_experts(const std::vector<ExpertMatrix>& matrices, const ModuleFormat& stored, int64_t experts) {
  DeviceStage& stage = *options_.stage;
  std::vector<DeviceStage::Copy> copies;
  std::vector<std::vector<QuantTensor>> files(matrices.size());  // mapped until the copies are made
  int64_t bytes = 0;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const ExpertMatrix& s = matrices[i];
    *s.to = make_staged(stage, stored.weights, experts, s.rows, s.cols);
    files[i].resize(static_cast<size_t>(s.fused ? 1 : experts));
    if (s.fused)
      files[i][0] = open_stack(s, stored);
    else
      context_.pool.parallel_for(experts, [&](int64_t e, int) {
        files[i][static_cast<size_t>(e)] =
            open_stored(checkpoint_, s.names[static_cast<size_t>(e)], stored.weights, {1, s.rows, s.cols, false});
      });
    for (int64_t e = 0; e < experts; ++e)
      add_copies(files[i][s.fused ? 0 : static_cast<size_t>(e)], s.fused ? e : 0, s.fused ? s.walk.begin : 0, *s.to, e,
                 copies);
    bytes += s.to->codes.bytes() + (s.to->scales.empty() ? 0 : s.to->scales.bytes());
  }
  stage.upload(copies);
  if (info(stored.weights).bits == 8)
    for (size_t i = 0; i < matrices.size(); ++i)
      if (stage.has_nan(matrices[i].to->codes))
        for (size_t f = 0; f < files[i].size(); ++f)  // throws, naming the tensor
          for (int64_t e = 0; e < files[i][f].experts; ++e)
            check_codes(checkpoint_, matrices[i].names[f].weight, files[i][f], e);
  report(bytes);
}

}  // namespace sluice::weights
