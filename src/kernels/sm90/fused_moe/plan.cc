// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/fused_moe/plan.h"

#include "base/math.h"
#include "kernels/sm90/memory_plan.h"
#include "kernels/sm90/one_token/one_token.h"
#include "kernels/sm90/quantize/input_round.h"
#include "kernels/sm90/quantize/rows.h"
#include "kernels/sm90/route_permute/route_permute.h"
#include "kernels/sm90/tuning.h"

namespace sluice::sm90 {

namespace {

// What GEMM1 leaves for GEMM2: final rows where its tile holds every column that the rounding needs.
Store store_of(const MoeSpec& spec, const Instance& tile) {
  const Round r = round_of(spec.inputs);
  if (spec.fp8_block_trtllm) return Store::raw;
  if (rounds_in_place(spec)) return Store::rows;
  if (scales_rows(r)) return Store::activated;
  if (r == Round::fp8_group)
    return tile.rounds(spec.gated()) &&
                   rounds_in_registers(spec.act, spec.bias || spec.act_params || spec.weight_on_input)
               ? Store::rows_group
               : Store::activated;
  return is_fp8(tile.operand) ? Store::rows_e4m3 : Store::rows;
}

// The kernels of one token make no tables and round rows where they read them. Only the routing, if logits choose it,
// and the rows between the products lie in the workspace. A count of tokens in device memory does not change that:
// there is at most one, and the kernels return if there is none.
MoePlan plan_one_token_call(const MoeSpec& spec, const GemmChoice& choice, void* workspace) {
  MoePlan p{};
  p.choice = choice;
  p.choice.splits[0] = p.choice.splits[1] = 1;
  p.one_token = true;
  p.store = Store::activated;
  p.rows = spec.top_k;
  WorkspacePlan pieces(workspace);
  p.tables.ids = pieces.take<int32_t>(p.rows);
  p.tables.weights = pieces.take<float>(p.rows);
  p.middle = pieces.take<float>(p.rows * spec.inter);
  const int64_t groups = ceil_div<int64_t>(spec.inter, spec.gated() ? 8 : 16);
  p.middle_max = pieces.take<float>(scales_rows(round_of(spec.inputs)) ? p.rows * groups : 0);
  p.bytes = pieces.used();
  return p;
}

}  // namespace

MoePlan plan_moe(const MoeSpec& spec, int multiprocessors, int64_t tokens, const GemmForce& force, void* workspace) {
  MoePlan p{};
  p.choice = choose_gemm(gemm_problem(spec, tokens), multiprocessors, force);
  if (runs_one_token(spec, multiprocessors, tokens) && force.none())
    return plan_one_token_call(spec, p.choice, workspace);
  const Instance& tile = p.choice.instance;
  p.store = store_of(spec, tile);
  const int64_t pairs = tokens * spec.top_k, locals = spec.locals();
  p.tiles = max_tiles(pairs, locals, tile.max_n);
  p.rows = max_rows(pairs, locals, tile.max_n, tile.step_n());
  WorkspacePlan pieces(workspace);
  p.tables.header = pieces.take<Header>(1);
  p.tables.ids = pieces.take<int32_t>(pairs);
  p.tables.weights = pieces.take<float>(pairs);
  p.tables.rank = pieces.take<int32_t>(pairs);
  p.tables.counts = pieces.take<int32_t>(int64_t{shares_of(static_cast<int>(locals))} * locals);
  p.tables.expert_tile = pieces.take<int32_t>(locals);
  p.tables.expert_tile_rows = pieces.take<int32_t>(locals);
  p.tables.tiles = pieces.take<RowTile>(p.tiles);
  p.tables.pair_row = pieces.take<int32_t>(pairs);
  p.tables.row_pair = pieces.take<int32_t>(p.rows);
  p.tables.ready = pieces.take<int32_t>(p.tiles);
  const Round round = round_of(spec.inputs);
  for (int g = 0; g < 2; ++g) {
    const WeightShape shape = g == 0 ? first_shape(spec) : second_shape(spec);
    const int m_groups = p.m_groups[g] = ceil_div(shape.m_tiles(), tile.m_tiles);
    const bool split = p.choice.splits[g] > 1;
    const int64_t k_blocks = shape.k_blocks(), sums = p.rows * m_groups * tile.m_tiles * kMTileRows;
    p.tables.arrivals[g] = pieces.take<int32_t>(split ? p.tiles * m_groups : 0);
    p.partial[g] = pieces.take<float>(split ? sums * p.choice.splits[g] : 0);
    (g == 0 ? p.x1 : p.x2) = pieces.take<uint8_t>(p.rows * k_blocks * 128);
    (g == 0 ? p.x1_row_scale : p.x2_row_scale) = pieces.take<float>(scales_rows(round) ? p.rows : 0);
    (g == 0 ? p.x1_block_scale : p.x2_block_scale) =
        pieces.take<float>(round == Round::fp8_group ? p.rows * scale_runs(tile.operand, k_blocks) : 0);
  }
  const int runs = scale_runs(tile.operand, first_shape(spec).k_blocks());
  const int64_t mean_pairs = pairs * locals / spec.experts;  // local ones of an even routing
  const bool placed = round == Round::fp8_group && mean_pairs * runs >= tuning::kPlacedScales;
  p.token_scale = pieces.take<float>(placed ? tokens * token_scale_stride(runs) : 0);
  const int64_t middle = p.store == Store::activated ? spec.inter
                         : p.store == Store::raw     ? spec.inter * (spec.gated() ? 2 : 1)
                                                     : 0;
  p.middle = pieces.take<float>(p.rows * middle);
  p.results = pieces.take<uint8_t>(spec.finalize ? pairs * spec.hidden * bytes_of(spec.dtype) : 0);
  p.bytes = pieces.used();
  return p;
}

MoeMemory moe_memory(const MoeSpec& s) {
  const int64_t experts = s.locals(), rows = s.bias ? 4 * experts : 0, params = s.act_params ? 4 * experts : 0;
  MemoryPlan plan;
  MoeMemory m{};
  m.first = plan.take(first_shape(s));
  m.second = plan.take(second_shape(s));
  m.bias_up = plan.take(rows * s.inter);
  m.bias_gate = plan.take(s.gated() ? rows * s.inter : 0);
  m.bias_down = plan.take(rows * s.hidden);
  for (Span* span : {&m.alpha, &m.beta, &m.limit}) *span = plan.take(params);
  m.input_scales = plan.take(2 * sizeof(InputScale));
  m.warm_up = plan.take(warm_up_bytes(s.experts));
  m.bytes = plan.used();
  return m;
}

WorkspaceBound moe_workspace(const MoeSpec& spec, int multiprocessors) {
  return {[=](int64_t tokens) { return plan_moe(spec, multiprocessors, tokens, {}, nullptr).bytes; },
          [=](int64_t tokens) { return plan_moe(spec, multiprocessors, tokens, {}, nullptr).choice; }};
}

}  // namespace sluice::sm90
