// SPDX-License-Identifier: Apache-2.0
// A plan and a call as the arguments of the kernels.
#include "kernels/sm90/fused_moe/fused_moe.h"
#include "kernels/sm90/quantize/input_round.h"
#include "kernels/sm90/quantize/rows.h"

namespace sluice::sm90 {

RouteArgs FusedMoe::route_args(const MoeCall& call, const MoePlan& p) const {
  const Instance& tile = p.choice.instance;
  RouteArgs route{};
  route.method = spec_.routing;
  route.params = spec_.routing_params();
  route.logits = call.logits;
  route.logits_bf16 = call.logits_bf16;
  route.bias = call.bias;
  route.bias_bf16 = call.bias_bf16;
  route.given_ids = call.topk_ids;
  route.given_weights = call.topk_weights;
  route.given_bf16 = call.topk_weights_bf16;
  route.given_scale = spec_.given_scale();
  route.tokens = call.tokens;
  route.num_tokens = call.num_tokens;
  route.local_offset = spec_.local_offset;
  route.locals = spec_.locals();
  route.max_n = tile.max_n;
  route.step_n = tile.step_n();
  for (int g = 0; g < 2; ++g) route.m_groups[g] = p.m_groups[g];
  route.tables = p.tables;
  route.chosen_ids = call.chosen_ids;
  route.chosen_weights = call.chosen_weights;
  return route;
}

// For GEMM1's rows, which are the tokens.
RowsArgs FusedMoe::row_args(const MoeCall& call, const MoePlan& p, const RouteArgs& route) const {
  const Instance& tile = p.choice.instance;
  RowsArgs rows{};
  rows.source.tokens = call.hidden;
  rows.source.tokens_f32 = spec_.dtype == DType::f32;
  rows.source.max_tokens = call.tokens;
  rows.source.num_tokens = call.num_tokens;
  rows.source.columns = static_cast<int>(spec_.hidden);
  rows.source.top_k = spec_.top_k;
  rows.source.locals = spec_.locals();
  rows.out.round = round_of(spec_.inputs);
  rows.out.e4m3 = is_fp8(tile.operand);
  rows.out.static_scale = input_scales_.as<InputScale>();
  rows.out.data = p.x1;
  rows.out.k_blocks = first_.shape.k_blocks();
  rows.out.scale_runs = scale_runs(tile.operand, rows.out.k_blocks);
  rows.out.row_scale = p.x1_row_scale;
  rows.out.block_scale = p.x1_block_scale;
  rows.gather.pairs = pairs_of(route);
  rows.gather.weights = call.logits == nullptr ? p.tables.weights : nullptr;
  rows.gather.chosen_ids = call.chosen_ids;
  rows.gather.chosen_weights = call.chosen_weights;
  rows.gather.rank = p.tables.rank;
  rows.gather.counts = p.tables.counts;
  rows.gather.expert_tile = p.tables.expert_tile;
  rows.gather.expert_tile_rows = p.tables.expert_tile_rows;
  rows.gather.tiles = p.tables.tiles;
  rows.gather.header = p.tables.header;
  rows.gather.pair_row = p.tables.pair_row;
  rows.gather.row_pair = p.tables.row_pair;
  rows.gather.local_offset = spec_.local_offset;
  rows.gather.experts = spec_.experts;
  // Experts that logits choose are distinct ones of all, none of which is then absent.
  const bool all_here = call.logits != nullptr && spec_.locals() == spec_.experts;
  rows.gather.zero_absent = finalizes(call) || all_here ? nullptr : call.output;
  rows.gather.result_bytes = spec_.hidden * bytes_of(spec_.dtype);
  return rows;
}

GroupedGemmArgs FusedMoe::gemm_args(const MoeCall& call, const MoePlan& p) const {
  GroupedGemmArgs gemm{};
  gemm.tiles = p.tables.tiles;
  gemm.header = p.tables.header;
  gemm.row_pair = p.tables.row_pair;
  gemm.ready = p.tables.ready;
  for (int g = 0; g < 2; ++g) {
    const Matrix& m = g == 0 ? first_ : second_;
    GemmArgs& to = gemm.gemm[g];
    to.weights.data = m.weights.as<uint8_t>();
    to.weights.row_scale = m.row_scale.as<float>();
    to.weights.block_scale = m.block_scale.as<float>();
    to.x.data = g == 0 ? p.x1 : p.x2;
    to.x.row_scale = g == 0 ? p.x1_row_scale : p.x2_row_scale;
    to.x.block_scale = g == 0 ? p.x1_block_scale : p.x2_block_scale;
    to.x.scale = input_scales_.as<InputScale>() + g;
    to.k_blocks = m.shape.k_blocks();
    to.m_tiles = m.shape.m_tiles();
    to.tiles_in_turn = tiles_in_turn(p.choice.instance, to.k_blocks);
    to.splits = p.choice.splits[g];
    to.partial = p.partial[g];
    gemm.arrivals[g] = p.tables.arrivals[g];
  }
  GemmArgs& one = gemm.gemm[0];
  one.epilogue.store = p.store;
  one.epilogue.round = rounds_in_place(spec_) ? Round::plain : round_of(spec_.inputs);
  one.epilogue.gated = spec_.gated();
  one.epilogue.act = spec_.act;
  one.epilogue.columns = static_cast<int>(spec_.inter);
  one.epilogue.activation.bias = bias_up_.as<float>();
  one.epilogue.activation.bias_gate = bias_gate_.as<float>();
  one.epilogue.activation.alpha = alpha_.as<float>();
  one.epilogue.activation.beta = beta_.as<float>();
  one.epilogue.activation.limit = limit_.as<float>();
  one.epilogue.pair_weight = spec_.weight_on_input ? p.tables.weights : nullptr;
  one.epilogue.out = p.store == Store::activated || p.store == Store::raw ? static_cast<void*>(p.middle) : p.x2;
  one.epilogue.out_block_scale = p.x2_block_scale;
  one.epilogue.out_k_blocks = second_.shape.k_blocks();
  one.epilogue.out_scale = input_scales_.as<InputScale>() + 1;
  GemmArgs& two = gemm.gemm[1];
  two.epilogue.store = Store::result;
  two.epilogue.out_f32 = spec_.dtype == DType::f32;
  two.epilogue.columns = static_cast<int>(spec_.hidden);
  two.epilogue.activation.bias = bias_down_.as<float>();
  two.epilogue.out = finalizes(call) ? p.results : call.output;
  return gemm;
}

}  // namespace sluice::sm90
