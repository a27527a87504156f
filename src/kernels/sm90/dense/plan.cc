// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/dense/plan.h"

#include "base/math.h"
#include "kernels/sm90/memory_plan.h"
#include "kernels/sm90/quantize/input_round.h"
#include "kernels/sm90/repack/repack.h"
#include "kernels/sm90/route/route.h"

namespace sluice::sm90 {

Support supports_dense(const DenseSpec& s) {
  const WeightOperand op = operand_of(s.weights);
  const auto weights = name_of(format::kFormats, s.weights), inputs = name_of(format::kInputFormats, s.inputs);
  if (!format::fits(s.weights, s.inputs))
    return Support::no(fmt::format("{} weights take no {} inputs", weights, inputs));
  if (s.inputs == format::InputFormat::plain && (is_fp8(op) || s.dtype == DType::f32))
    return Support::no(
        fmt::format("{} weights with {} inputs of {} have no tensor core path", weights, inputs, to_string(s.dtype)));
  const format::FormatInfo f = format::info(s.weights);
  if (s.fp8_f32_sums && !format::is_fp8(s.weights))
    return Support::no(
        fmt::format("fp8_f32_sums is set with weights {}; it is for fp8_tensor, fp8_channel and fp8_block", weights));
  if (s.rows < 1 || s.cols < 1 || (f.group_k > 1 && f.group_n == 1 && s.cols % f.group_k != 0))
    return Support::no(fmt::format("a matrix [{}, {}] cannot be {}: columns come in groups of {}", s.rows, s.cols,
                                   weights, f.group_k));
  return Support::yes();
}

WeightShape dense_shape(const DenseSpec& s) {
  return {operand_of(s.weights, s.fp8_f32_sums), 1, s.rows, s.cols, false, 0};
}

DensePlan plan_dense(const DenseSpec& spec, int multiprocessors, int64_t tokens, const GemmForce& force,
                     void* workspace, bool row_scales) {
  const WeightShape shape = dense_shape(spec);
  GemmProblem problem{};
  problem.operand = shape.operand;
  problem.tokens = tokens;
  problem.deterministic = spec.deterministic;
  problem.top_k = problem.experts = problem.locals = 1;
  problem.m_tiles[0] = shape.m_tiles();
  problem.k_blocks[0] = shape.k_blocks();
  DensePlan p{};
  p.choice = choose_gemm(problem, multiprocessors, force);
  const Instance& tile = p.choice.instance;
  p.m_groups = ceil_div(shape.m_tiles(), tile.m_tiles);
  p.tiles = max_tiles(tokens, 1, tile.max_n);
  p.rows = max_rows(tokens, 1, tile.max_n, tile.step_n());
  const bool split = p.choice.splits[0] > 1, groups = round_of(spec.inputs) == Round::fp8_group;
  WorkspacePlan pieces(workspace);
  p.header = pieces.take<Header>(1);
  p.tiles_at = pieces.take<RowTile>(p.tiles);
  p.row_pair = pieces.take<int32_t>(p.rows);
  p.arrivals = pieces.take<int32_t>(split ? p.tiles * p.m_groups : 0);
  p.partial = pieces.take<float>(split ? p.rows * p.m_groups * tile.m_tiles * kMTileRows * p.choice.splits[0] : 0);
  p.row_scale = pieces.take<float>(row_scales ? p.rows : 0);
  p.block_scale = pieces.take<float>(groups ? p.rows * scale_runs(shape.operand, shape.k_blocks()) : 0);
  p.x = pieces.take<uint8_t>(p.rows * shape.k_blocks() * 128);
  p.bytes = pieces.used();
  return p;
}

DenseMemory dense_memory(const DenseSpec& s) {
  MemoryPlan plan;
  DenseMemory m{};
  m.matrix = plan.take(dense_shape(s));
  m.bias = plan.take(4 * s.rows);
  m.input_scales = plan.take(2 * sizeof(InputScale));
  m.bytes = plan.used();
  return m;
}

WorkspaceBound dense_workspace(const DenseSpec& spec, int multiprocessors) {
  const auto plan = [=](int64_t tokens) { return plan_dense(spec, multiprocessors, tokens, {}, nullptr, true); };
  return {[=](int64_t tokens) { return plan(tokens).bytes; }, [=](int64_t tokens) { return plan(tokens).choice; }};
}

}  // namespace sluice::sm90
