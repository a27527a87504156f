// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "format/quantize_rows.h"
#include "weights/calibration.h"
#include "weights/expert_matrix.h"
#include "weights/pad.h"
#include "weights/requantize.h"

namespace sluice::weights {

using format::Format;
using format::InputFormat;

namespace {

// to[i, c] = from[cols.begin + c, row i of the walk]: BF16 stacks that are stored [E, K, N].
void copy_transposed(const QuantTensor& from, int64_t from_expert, RowWalk walk, Range rows, Range cols,
                     QuantTensor& to, int64_t to_expert) {
  const uint16_t* x = from.codes.as<uint16_t>() + from_expert * from.rows * from.cols;
  uint16_t* y = to.codes.as<uint16_t>() + to_expert * to.rows * to.cols;
  constexpr int64_t kTile = 32;  // both sides of a tile stay in L1
  for (int64_t r0 = 0; r0 < rows.size(); r0 += kTile)
    for (int64_t c0 = 0; c0 < cols.size(); c0 += kTile)
      for (int64_t r = r0; r < std::min(r0 + kTile, rows.size()); ++r)
        for (int64_t c = c0; c < std::min(c0 + kTile, cols.size()); ++c)
          y[r * to.cols + c] = x[(cols.begin + c) * from.cols + walk.begin + (rows.begin + r) * walk.step];
}

int64_t bytes_of_weights(const ExpertWeights& w) {
  int64_t bytes = 0;
  for (const QuantTensor* q : {&w.up, &w.gate, &w.down})
    bytes += q->experts * q->rows * q->row_bytes() + (q->scales.empty() ? 0 : q->scales.bytes());
  return bytes;
}

}  // namespace

std::vector<Loader::ExpertMatrix> Loader::find_matrices(const ExpertNames& names, const ExpertShape& shape,
                                                        ExpertWeights& w) const {
  const auto matrix = [&](QuantTensor* to, const std::string& projection, bool is_down) {
    ExpertMatrix s;
    s.to = to;
    s.projection = projection;
    s.is_down = is_down;
    s.rows = s.stack_rows = is_down ? shape.hidden : shape.inter;
    s.cols = is_down ? shape.inter : shape.hidden;
    return s;
  };
  std::vector<ExpertMatrix> matrices{matrix(&w.up, names.up, false), matrix(&w.down, names.down, true)};
  if (!names.gate.empty()) matrices.insert(matrices.begin(), matrix(&w.gate, names.gate, false));

  const std::string first = names.module + ".0." + names.up;
  if (checkpoint_.contains(first + ".weight") || checkpoint_.contains(first + ".weight_packed")) {
    for (ExpertMatrix& s : matrices)
      for (int64_t e = 0; e < shape.experts; ++e)
        s.names.push_back(linear_names(checkpoint_, fmt::format("{}.{}.{}", names.module, e, s.projection)));
    const std::string beyond = fmt::format("{}.{}.{}.weight", names.module, shape.experts, names.up);
    check_file(!checkpoint_.contains(beyond), "{} exists, but config.json says that there are {} experts",
               checkpoint_.source_of(beyond), shape.experts);
    return matrices;
  }

  for (ExpertMatrix& s : matrices) {
    const bool merged = !s.is_down && !names.gate.empty();
    const std::string projection = merged ? "gate_up_proj" : s.projection;
    s.fused = true;
    s.stack_experts = shape.experts;
    s.names = {fused_names(checkpoint_, names.module, projection)};
    if (s.names[0].weight.empty())
      fail(ErrorCode::not_found, "{} has neither \"{}.weight\" nor \"{}.{}\"", checkpoint_.source_of(""), first,
           names.module, projection);
    if (!merged) continue;
    const bool is_gate = s.to == &w.gate;
    const GateUpOrder order = s.names[0].blocks ? GateUpOrder::interleaved : names.order;  // gpt-oss
    s.half = is_gate ? 0 : 1;
    s.stack_rows = 2 * shape.inter;
    s.walk = is_gate ? gate_rows(order, shape.inter) : up_rows(order, shape.inter);
  }
  for (ExpertMatrix& s : matrices) s.transposed = names.transposed && !s.names[0].blocks;
  return matrices;
}

// One format for all of a layer's experts.
ModuleFormat Loader::format_of_experts(const ExpertNames& names, const std::vector<ExpertMatrix>& matrices) const {
  std::optional<ModuleFormat> common;
  for (const ExpertMatrix& s : matrices) {
    const std::string module = s.fused ? names.module : fmt::format("{}.0.{}", names.module, s.projection);
    const ModuleFormat format = stored_format(checkpoint_, scheme_, module, s.names[0]);
    if (!common) common = format;
    check_file(format == *common, "{} is stored as {}, but the other matrices of its experts as {}",
               checkpoint_.source_of(s.names[0].weight), info(format.weights).name, info(common->weights).name);
  }
  return *common;
}

LoadedExperts Loader::experts(const ExpertNames& names, const ExpertShape& shape, Codes codes) {
  check(shape.experts > 0 && shape.inter > 0 && shape.hidden > 0,
        "{} experts of {} x {} cannot be loaded; every size must be positive", shape.experts, shape.inter,
        shape.hidden);
  LoadedExperts out;
  ExpertWeights& w = out.weights;
  const std::vector<ExpertMatrix> matrices = find_matrices(names, shape, w);
  const ModuleFormat stored = format_of_experts(names, matrices);
  warn_if_not_excluded(matrices[0].fused ? names.module : fmt::format("{}.0.{}", names.module, names.up), stored);
  const ModuleFormat wanted = out.format = target(names.module, stored, expert_inputs(names.module).gemm1);
  const bool online = stored != wanted && stored == ModuleFormat{};

  const Shard& shard = options_.shard;
  const Range experts = part_of(shape.experts, 1, shard.ep_rank, shard.ep_size);
  const Range inter = part_of(shape.inter, cut_of(wanted.weights, wanted.inputs), shard.tp_rank, shard.tp_size);
  // A scale of the whole matrix is taken before the matrix is cut, so that the shards of every size hold the same
  // codes.
  const bool whole_first = online && (wanted.weights == Format::fp8_tensor || wanted.weights == Format::fp8_channel ||
                                      info(wanted.weights).global_scale);
  take_experts(matrices, stored, wanted, experts, whole_first ? Range{0, shape.inter} : inter);
  report(bytes_of_weights(w));

  read_input_scales(names, matrices, stored, wanted, w);
  if (matrices[0].fused) read_biases(names, shape, experts, whole_first ? Range{0, shape.inter} : inter, w);
  w = quantize(context_, wanted.weights, w, make_scratch());
  if (whole_first) w = weights::shard(w, {shard.tp_rank, shard.tp_size, 0, 1}, wanted.inputs);
  w = pad(w, small_group(wanted.weights));
  if (codes == Codes::copied) w = stacked(std::move(w));
  return out;
}

void Loader::read_input_scales(const ExpertNames& names, const std::vector<ExpertMatrix>& matrices,
                               const ModuleFormat& stored, const ModuleFormat& wanted, ExpertWeights& w) const {
  if (!format::is_static(wanted.inputs)) return;
  const ExpertInputs observed = expert_inputs(names.module);
  std::vector<StoredNames> gemm1, gemm2;
  for (const ExpertMatrix& s : matrices) {
    auto& all = s.is_down ? gemm2 : gemm1;
    all.insert(all.end(), s.names.begin(), s.names.end());
  }
  w.input_scale1 = static_input_scale(stored, wanted, gemm1, observed.gemm1);
  w.input_scale2 = static_input_scale(stored, wanted, gemm2, observed.gemm2);
}

// A fused tensor as it lies in the file.
QuantTensor Loader::open_stack(const ExpertMatrix& s, const ModuleFormat& stored) const {
  StoredShape stack{s.stack_experts, s.stack_rows, s.cols, true};
  if (s.transposed) std::swap(stack.rows, stack.cols);
  check_file(!s.transposed || stored.weights == Format::bf16, "{} is {} and stored transposed; only BF16 stacks may be",
             checkpoint_.source_of(s.names[0].weight), info(stored.weights).name);
  const bool splits_a_block = s.half >= 0 && info(stored.weights).group_n > 1 &&
                              (s.walk.step > 1 || s.rows % info(stored.weights).group_n != 0);
  check_file(!splits_a_block, "{} holds gate and up of {} rows each in {}: a scale covers rows of both",
             checkpoint_.source_of(s.names[0].weight), s.rows, info(stored.weights).name);
  return open_stored(checkpoint_, s.names[0], stored.weights, stack, s.half);
}

// In place where a matrix's rows follow each other in the file, else copied to a stack.
void Loader::take_experts(const std::vector<ExpertMatrix>& matrices, const ModuleFormat& stored,
                          const ModuleFormat& wanted, Range experts, Range inter) {
  std::vector<QuantTensor> stacks(matrices.size());
  std::vector<uint8_t> in_place(matrices.size());
  for (size_t i = 0; i < matrices.size(); ++i) {
    const ExpertMatrix& s = matrices[i];
    const Range rows = s.is_down ? Range{0, s.rows} : inter;
    const Range cols = s.is_down ? inter : Range{0, s.cols};
    in_place[i] = !s.transposed && s.walk.step == 1 && cols.size() == s.cols;
    *s.to = make_quant_tensor(stored.weights, experts.size(), rows.size(), cols.size(), [&](DType dtype, Shape shape) {
      return in_place[i] ? Tensor() : scratch_.make(dtype, std::move(shape));
    });
    if (in_place[i]) {
      s.to->apart.resize(static_cast<size_t>(experts.size()));
      s.to->file = file_;
    }
    if (s.fused) stacks[i] = open_stack(s, stored);
  }
  context_.pool.parallel_for(static_cast<int64_t>(matrices.size()) * experts.size(), [&](int64_t task, int) {
    const size_t i = static_cast<size_t>(task / experts.size());
    const int64_t local = task % experts.size(), global = experts.begin + local;
    const ExpertMatrix& s = matrices[i];
    const Range rows = s.is_down ? Range{0, s.rows} : inter, cols = s.is_down ? inter : Range{0, s.cols};
    const StoredNames& names = s.names[s.fused ? 0 : static_cast<size_t>(global)];
    if (s.transposed) {
      copy_transposed(stacks[i], global, s.walk, rows, cols, *s.to, local);
    } else {
      QuantTensor one;
      if (!s.fused) one = open_stored(checkpoint_, names, stored.weights, {1, s.rows, s.cols, false});
      const QuantTensor& from = s.fused ? stacks[i] : one;
      const int64_t e = s.fused ? global : 0, first = s.walk.begin + rows.begin * s.walk.step;
      if (in_place[i]) {
        copy_scales(from, e, first, s.walk.step, rows.size(), cols, *s.to, local);
        s.to->apart[static_cast<size_t>(local)] = from.codes.slice(e).rows(first, first + rows.size());
      } else {
        copy_region(from, e, first, s.walk.step, rows.size(), cols, *s.to, local);
      }
    }
    check_codes(checkpoint_, names.weight, *s.to, local);
    if (wanted.weights != stored.weights) check_finite(checkpoint_, names.weight, *s.to, local);
  });
}

// gpt-oss: [E, 2I] in the order of the rows of gate_up_proj, [E, H].
void Loader::read_biases(const ExpertNames& names, const ExpertShape& shape, Range experts, Range inter,
                         ExpertWeights& w) const {
  const bool gated = !names.gate.empty();
  const std::string first = names.module + (gated ? ".gate_up_proj_bias" : "." + names.up + "_bias");
  const std::string second = names.module + "." + names.down + "_bias";
  if (checkpoint_.contains(first)) {
    const int64_t width = gated ? 2 * shape.inter : shape.inter;
    const Tensor all = read_floats(checkpoint_, first, {shape.experts, width});
    const bool blocks = checkpoint_.contains(names.module + ".gate_up_proj_blocks");
    const GateUpOrder order = blocks ? GateUpOrder::interleaved : names.order;
    const auto take = [&](RowWalk walk) {
      Tensor part(DType::f32, {experts.size(), inter.size()});
      for (int64_t e = 0; e < experts.size(); ++e)
        for (int64_t i = 0; i < inter.size(); ++i)
          part.as<float>()[e * inter.size() + i] =
              all.as<float>()[(experts.begin + e) * width + walk.begin + (inter.begin + i) * walk.step];
      return part;
    };
    w.bias_up = take(gated ? up_rows(order, shape.inter) : RowWalk{});
    if (gated) w.bias_gate = take(gate_rows(order, shape.inter));
  }
  if (checkpoint_.contains(second)) {
    w.bias_down =
        read_floats(checkpoint_, second, {shape.experts, shape.hidden}).rows(experts.begin, experts.end).clone();
    if (options_.shard.tp_rank != 0) w.bias_down.zero();  // counted once among the ranks
  }
}

}  // namespace sluice::weights
