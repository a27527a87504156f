// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/fused_moe/fused_moe.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/math.h"
#include "kernels/sm90/combine/combine.h"
#include "kernels/sm90/grouped_gemm/launch.h"
#include "kernels/sm90/prologue/prologue.h"
#include "kernels/sm90/quantize/input_round.h"
#include "kernels/sm90/quantize/rows.h"
#include "kernels/sm90/quantize/token_rows.h"
#include "kernels/sm90/route/route.h"

namespace sluice::sm90 {

namespace {

// NVFP4 per token rounds the activation to the run's bf16 before it looks for a row's largest, so GEMM1 leaves such
// rows where GEMM2 reads them, and a kernel between the two replaces them.
bool rounds_in_place(const MoeSpec& spec) {
  return round_of(spec.inputs) == Round::nvfp4_token && spec.dtype == DType::bf16;
}

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

// Rounding a long row takes long enough that weights may be streamed meanwhile (early.cuh): DeepSeek-V3, 8 tokens, BF16
// 163 -> 157 us, NVFP4 84 -> 79. After a short one the GEMM would only start later: NVFP4, 2048 columns, 28 -> 31 us.
bool starts_early(const MoeSpec& spec, const Instance& tile) {
  return spec.hidden >= 4096 && tile.cluster == 1 && spec.locals() <= kEarlyExperts;
}

}  // namespace

FusedMoe::FusedMoe(const MoeSpec& spec, int multiprocessors) : spec_(spec), device_(current_device()) {
  const Support s = supports_spec(spec);
  check(static_cast<bool>(s), "{}", s.reason);
  multiprocessors_ = multiprocessors > 0 ? multiprocessors : sm90::multiprocessors();
  second_.shape = second_shape(spec);
  first_.shape = first_shape(spec);
  first_.allocate();
  second_.allocate();
  const InputScale ones[2];
  input_scales_ = DeviceBuffer(sizeof(ones));
  copy_to_device(input_scales_.data(), ones, sizeof(ones), nullptr);
  std::vector<uint8_t> rehearsal(static_cast<size_t>(rehearsal_bytes(spec.experts)));
  std::memcpy(rehearsal.data(), ones, sizeof(InputScale));
  rehearsal_ = DeviceBuffer(static_cast<int64_t>(rehearsal.size()));
  copy_to_device(rehearsal_.data(), rehearsal.data(), rehearsal_.bytes(), nullptr);
  synchronize(nullptr);
}

int64_t FusedMoe::weight_bytes() const { return first_.bytes() + second_.bytes(); }

void FusedMoe::set_weights(const weights::ExpertWeights& w, Stream stream) {
  const DeviceGuard guard(device_);
  first_.fill(w.up, spec_.gated() ? &w.gate : nullptr, stream);
  second_.fill(w.down, nullptr, stream, true);
  const auto upload = [&](DeviceBuffer& to, const Tensor& from, const char* name) {
    if (!filled_) to = DeviceBuffer(from.bytes());
    check(to.bytes() == from.bytes(), "{} was {} before this refit and is {} now; captured graphs could not follow",
          name, to.bytes() > 0 ? "given" : "absent", from.bytes() > 0 ? "given" : "absent");
    copy_to_device(to.data(), from.data(), from.bytes(), stream);
  };
  upload(bias_up_, w.bias_up, "the up bias");
  upload(bias_gate_, w.bias_gate, "the gate bias");
  upload(bias_down_, w.bias_down, "the down bias");
  upload(alpha_, w.alpha, "alpha");
  upload(beta_, w.beta, "beta");
  upload(limit_, w.limit, "limit");
  const Round round = round_of(spec_.inputs);
  InputScale scales[2];
  if (is_static(round)) {
    scales[0] = input_scale(round, w.input_scale1);
    scales[1] = input_scale(round, w.input_scale2);
  }
  // A copy between two layers costs as much as a hundredth of one.
  if (!filled_ || std::memcmp(scales, sent_scales_, sizeof(scales)) != 0)
    copy_to_device(input_scales_.data(), scales, sizeof(scales), stream);
  std::memcpy(sent_scales_, scales, sizeof(scales));
  filled_ = true;
}

GemmChoice FusedMoe::choice(int64_t tokens, const GemmForce& force) const {
  return choose_gemm(gemm_problem(spec_, tokens), multiprocessors_, fixed_force(spec_, force));
}

// Workspace pieces; with a null workspace only `bytes` means anything.
struct FusedMoe::Plan {
  GemmChoice choice;
  Store store;
  int64_t rows, tiles, bytes = 0;
  RouteTables tables{};
  uint8_t *x1, *x2;
  float *x1_row_scale, *x2_row_scale, *x1_block_scale, *x2_block_scale, *middle, *partial[2];
  void* results;
};

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
    const int units = static_cast<int>(ceil_div(m.shape.row_tiles(), tile.m_tiles));
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

int64_t FusedMoe::workspace_bytes(int64_t tokens, const GemmForce& force) const {
  return plan(tokens, force, nullptr).bytes;
}

// GEMM1's rows to those of GEMM2 where that takes a launch of its own. `rows`: of the tokens.
void FusedMoe::round_between(const Plan& p, const Gemm& first, RowsArgs rows, Stream stream, bool pdl) const {
  if (rounds_in_place(spec_)) {
    const TokenRowsArgs args{p.x2, second_.shape.slabs(), p.x2_row_scale, p.tables.tiles, p.tables.header};
    return launch_token_rows(args, p.tiles, p.choice.instance.max_n, stream, pdl);
  }
  rows.tokens = nullptr;
  rows.rows = p.middle;
  rows.columns = static_cast<int>(spec_.inter);
  rows.raw = p.store == Store::raw;
  rows.gated = spec_.gated();
  rows.act = spec_.act;
  rows.bias = bias_up_.as<float>();
  rows.bias_gate = bias_gate_.as<float>();
  rows.alpha = alpha_.as<float>();
  rows.beta = beta_.as<float>();
  rows.limit = limit_.as<float>();
  rows.static_scale = first.out_scale;
  rows.out = p.x2;
  rows.out_slabs = second_.shape.slabs();
  rows.scale_runs = scale_runs(p.choice.instance.operand, rows.out_slabs);
  rows.row_scale = p.x2_row_scale;
  rows.block_scale = p.x2_block_scale;
  launch_requantize(rows, p.rows, stream, pdl);
}

void FusedMoe::run(const MoeCall& call, Stream stream) const {
  if (call.tokens == 0) return;
  const DeviceGuard guard(device_);
  Plan p = plan(call.tokens, call.force, call.workspace);
  const Instance& tile = p.choice.instance;
  const Round round = round_of(spec_.inputs);
  const bool f32 = spec_.dtype == DType::f32, e4m3 = is_fp8(tile.operand);
  const int units[2] = {static_cast<int>(ceil_div(first_.shape.row_tiles(), tile.m_tiles)),
                        static_cast<int>(ceil_div(second_.shape.row_tiles(), tile.m_tiles))};

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
  route.row_units[0] = units[0];
  route.row_units[1] = units[1];
  route.tables = p.tables;
  route.chosen_ids = call.chosen_ids;
  route.chosen_weights = call.chosen_weights;

  RowsArgs rows{};
  rows.tokens = call.hidden;
  rows.tokens_f32 = f32;
  rows.max_tokens = call.tokens;
  rows.num_tokens = call.num_tokens;
  rows.columns = static_cast<int>(spec_.hidden);
  rows.top_k = spec_.top_k;
  rows.locals = spec_.locals();
  rows.round = round;
  rows.e4m3 = e4m3;
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
  // Few tokens: one launch before the GEMMs.
  const bool small = prologue_fits(route);
  const bool early = small && starts_early(spec_, tile) && call.logits == nullptr;
  if (small) {
    launch_prologue(route, rows, early, rehearsal_.data(), stream, call.pdl);
  } else {
    launch_route(route, stream, call.pdl);
    launch_gather(rows, stream, call.pdl);
  }

  GroupedGemmArgs gemm{};
  gemm.tiles = p.tables.tiles;
  gemm.header = p.tables.header;
  gemm.row_pair = p.tables.row_pair;
  gemm.ready = p.tables.ready;
  if (early)
    gemm.given = {call.topk_ids, call.topk_weights == nullptr, call.tokens,   call.num_tokens, spec_.top_k,
                  spec_.experts, spec_.local_offset,           spec_.locals()};
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
  one.round = rounds_in_place(spec_) ? Round::plain : round;
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
  two.out_f32 = f32;
  two.columns = static_cast<int>(spec_.hidden);
  two.bias = bias_down_.as<float>();
  two.out = spec_.finalize ? p.results : call.output;

  if (p.middle == nullptr && !rounds_in_place(spec_)) {
    gemm.gemms = 2;
    launch_grouped_gemm(gemm, tile, stream, call.pdl);
  } else {
    gemm.gemms = 1;
    launch_grouped_gemm(gemm, tile, stream, call.pdl);
    round_between(p, one, rows, stream, call.pdl);
    gemm.gemm[0] = two;
    gemm.arrivals[0] = gemm.arrivals[1];
    gemm.ticket = 1;
    launch_grouped_gemm(gemm, tile, stream, call.pdl);
  }

  if (spec_.finalize) {
    CombineArgs combine{};
    combine.results = p.results;
    combine.weights = spec_.weight_on_input ? nullptr : p.tables.weights;
    combine.pair_row = p.tables.pair_row;
    combine.out = call.output;
    combine.f32 = f32;
    combine.tokens = call.tokens;
    combine.num_tokens = call.num_tokens;
    combine.columns = static_cast<int>(spec_.hidden);
    combine.top_k = spec_.top_k;
    launch_combine(combine, stream, call.pdl);
  }
}

}  // namespace sluice::sm90
