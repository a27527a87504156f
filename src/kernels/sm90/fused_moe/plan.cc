// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/fused_moe/plan.h"

#include "base/math.h"
#include "kernels/sm90/grouped_gemm/launch.h"
#include "kernels/sm90/quantize/rows.h"

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

}  // namespace

// Tasks that a tile of rows has in GEMM g.
int FusedMoe::units_of(int g, const Instance& tile) const {
  return ceil_div((g == 0 ? first_ : second_).shape.row_tiles(), tile.m_tiles);
}

FusedMoe::Plan FusedMoe::plan(int64_t tokens, const GemmForce& force, void* workspace) const {
  Plan p{};
  p.choice = choice(tokens, force);
  const Instance& tile = p.choice.instance;
  p.store = store_of(spec_, tile);
  const int64_t pairs = tokens * spec_.top_k, locals = spec_.locals();
  p.tiles = max_tiles(pairs, locals, tile.max_n);
  p.rows = max_rows(pairs, locals, tile.max_n, tile.step_n());
  const auto take = [&](int64_t bytes) -> void* {
    char* at = workspace == nullptr ? nullptr : static_cast<char*>(workspace) + p.bytes;
    p.bytes = round_up<int64_t>(p.bytes + bytes, 256);
    return bytes == 0 ? nullptr : at;
  };
  const auto ints = [&](int64_t n) { return static_cast<int32_t*>(take(4 * n)); };
  const auto floats = [&](int64_t n) { return static_cast<float*>(take(4 * n)); };
  p.tables.header = static_cast<Header*>(take(sizeof(Header)));
  p.tables.ids = ints(pairs);
  p.tables.weights = floats(pairs);
  p.tables.rank = ints(pairs);
  p.tables.counts = ints(int64_t{shares_of(static_cast<int>(locals))} * locals);
  p.tables.expert_tile = ints(locals);
  p.tables.expert_per = ints(locals);
  p.tables.tiles = static_cast<Tile*>(take(p.tiles * static_cast<int64_t>(sizeof(Tile))));
  p.tables.pair_row = ints(pairs);
  p.tables.row_pair = ints(p.rows);
  p.tables.ready = ints(p.tiles);
  const Round round = round_of(spec_.inputs);
  for (int g = 0; g < 2; ++g) {
    const Matrix& m = g == 0 ? first_ : second_;
    const int units = units_of(g, tile);
    const bool split = p.choice.splits[g] > 1;
    p.tables.arrivals[g] = split ? ints(p.tiles * units) : nullptr;
    p.partial[g] = split ? floats(p.rows * units * tile.m_tiles * kTileRows * p.choice.splits[g]) : nullptr;
    const int64_t slabs = m.shape.slabs();
    (g == 0 ? p.x1 : p.x2) = static_cast<uint8_t*>(take(p.rows * slabs * 128));
    (g == 0 ? p.x1_row_scale : p.x2_row_scale) = scales_rows(round) ? floats(p.rows) : nullptr;
    (g == 0 ? p.x1_block_scale : p.x2_block_scale) =
        round == Round::fp8_group ? floats(p.rows * scale_runs(tile.operand, m.shape.slabs())) : nullptr;
  }
  const int64_t middle = p.store == Store::activated ? spec_.inter
                         : p.store == Store::raw     ? spec_.inter * (spec_.gated() ? 2 : 1)
                                                     : 0;
  p.middle = floats(p.rows * middle);
  p.results = take(spec_.finalize ? pairs * spec_.hidden * bytes_of(spec_.dtype) : 0);
  return p;
}

// Arguments of the kernels.

RouteArgs FusedMoe::route_args(const MoeCall& call, const Plan& p) const {
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
  route.tokens = call.tokens;
  route.num_tokens = call.num_tokens;
  route.local_offset = spec_.local_offset;
  route.locals = spec_.locals();
  route.max_n = tile.max_n;
  route.step_n = tile.step_n();
  for (int g = 0; g < 2; ++g) route.row_units[g] = units_of(g, tile);
  route.tables = p.tables;
  route.chosen_ids = call.chosen_ids;
  route.chosen_weights = call.chosen_weights;
  return route;
}

// Of the tokens.
RowsArgs FusedMoe::row_args(const MoeCall& call, const Plan& p, const RouteArgs& route) const {
  const Instance& tile = p.choice.instance;
  RowsArgs rows{};
  rows.tokens = call.hidden;
  rows.tokens_f32 = spec_.dtype == DType::f32;
  rows.max_tokens = call.tokens;
  rows.num_tokens = call.num_tokens;
  rows.columns = static_cast<int>(spec_.hidden);
  rows.top_k = spec_.top_k;
  rows.locals = spec_.locals();
  rows.round = round_of(spec_.inputs);
  rows.e4m3 = is_fp8(tile.operand);
  rows.static_scale = input_scales_.as<InputScale>();
  rows.out = p.x1;
  rows.out_slabs = first_.shape.slabs();
  rows.scale_runs = scale_runs(tile.operand, rows.out_slabs);
  rows.row_scale = p.x1_row_scale;
  rows.block_scale = p.x1_block_scale;
  rows.pairs = pairs_of(route);
  rows.weights = call.logits == nullptr ? p.tables.weights : nullptr;
  rows.chosen_ids = call.chosen_ids;
  rows.chosen_weights = call.chosen_weights;
  rows.rank = p.tables.rank;
  rows.counts = p.tables.counts;
  rows.expert_tile = p.tables.expert_tile;
  rows.expert_per = p.tables.expert_per;
  rows.tiles = p.tables.tiles;
  rows.header = p.tables.header;
  rows.pair_row = p.tables.pair_row;
  rows.row_pair = p.tables.row_pair;
  rows.local_offset = spec_.local_offset;
  rows.experts = spec_.experts;
  rows.zero_absent = spec_.finalize ? nullptr : call.output;
  rows.result_bytes = spec_.hidden * bytes_of(spec_.dtype);
  return rows;
}

GroupedGemmArgs FusedMoe::gemm_args(const MoeCall& call, const Plan& p) const {
  GroupedGemmArgs gemm{};
  gemm.tiles = p.tables.tiles;
  gemm.header = p.tables.header;
  gemm.row_pair = p.tables.row_pair;
  gemm.ready = p.tables.ready;
  for (int g = 0; g < 2; ++g) {
    const Matrix& m = g == 0 ? first_ : second_;
    Gemm& to = gemm.gemm[g];
    to.weights = m.weights.as<uint8_t>();
    to.row_scale = m.row_scale.as<float>();
    to.block_scale = m.block_scale.as<float>();
    to.x = g == 0 ? p.x1 : p.x2;
    to.x_row_scale = g == 0 ? p.x1_row_scale : p.x2_row_scale;
    to.x_block_scale = g == 0 ? p.x1_block_scale : p.x2_block_scale;
    to.x_scale = input_scales_.as<InputScale>() + g;
    to.slabs = m.shape.slabs();
    to.row_tiles = m.shape.row_tiles();
    to.splits = p.choice.splits[g];
    to.partial = p.partial[g];
    gemm.arrivals[g] = p.tables.arrivals[g];
  }
  Gemm& one = gemm.gemm[0];
  one.store = p.store;
  one.round = rounds_in_place(spec_) ? Round::plain : round_of(spec_.inputs);
  one.gated = spec_.gated();
  one.act = spec_.act;
  one.columns = static_cast<int>(spec_.inter);
  one.bias = bias_up_.as<float>();
  one.bias_gate = bias_gate_.as<float>();
  one.alpha = alpha_.as<float>();
  one.beta = beta_.as<float>();
  one.limit = limit_.as<float>();
  one.pair_weight = spec_.weight_on_input ? p.tables.weights : nullptr;
  one.out = p.store == Store::activated || p.store == Store::raw ? static_cast<void*>(p.middle) : p.x2;
  one.out_block_scale = p.x2_block_scale;
  one.out_slabs = second_.shape.slabs();
  one.out_scale = input_scales_.as<InputScale>() + 1;
  Gemm& two = gemm.gemm[1];
  two.store = Store::result;
  two.out_f32 = spec_.dtype == DType::f32;
  two.columns = static_cast<int>(spec_.hidden);
  two.bias = bias_down_.as<float>();
  two.out = spec_.finalize ? p.results : call.output;
  return gemm;
}

}  // namespace sluice::sm90
