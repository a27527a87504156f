// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/fused_moe/fused_moe.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/math.h"
#include "kernels/sm90/finalize/finalize.h"
#include "kernels/sm90/grouped_gemm/launch.h"
#include "kernels/sm90/one_token/one_token.h"
#include "kernels/sm90/quantize/input_round.h"
#include "kernels/sm90/quantize/rows.h"
#include "kernels/sm90/quantize/token_rows.h"
#include "kernels/sm90/route_permute/route_permute.h"
#include "kernels/sm90/tuning.h"

namespace sluice::sm90 {

namespace {

// Rounding a long row takes long enough that weights may be streamed meanwhile (early_weights.cuh).
bool starts_early(const MoeSpec& spec, const Instance& tile, int64_t tokens) {
  return spec.hidden >= tuning::kEarlyColumns && tokens * spec.top_k <= tuning::kEarlyPairs && tile.cluster == 1 &&
         spec.locals() <= kEarlyExperts;
}

const MoeSpec& supported(const MoeSpec& spec) {
  const Support s = supports_spec(spec);
  check(static_cast<bool>(s), "{}", s.reason);
  return spec;
}

}  // namespace

FusedMoe::FusedMoe(const MoeSpec& spec, int multiprocessors, const CallerMemory& memory)
    : spec_(supported(spec)),
      device_(current_device()),
      multiprocessors_(multiprocessors > 0 ? multiprocessors : sm90::multiprocessors()),
      workspace_(moe_workspace(spec_, multiprocessors_)),
      memory_at_(moe_memory(spec_)),
      given_memory_(memory.data != nullptr),
      memory_(device_memory(memory, memory_at_.bytes)) {
  first_.place(first_shape(spec_), memory_, memory_at_.first);
  second_.place(second_shape(spec_), memory_, memory_at_.second);
  allow_grouped_gemm(second_.shape.operand);
  allow_one_token(second_.shape.operand);
  allow_route(spec_.experts, spec_.locals());
  allow_route_permute(spec_.experts, spec_.locals(), spec_.hidden >= tuning::kEarlyColumns);
  const InputScale ones[2];
  input_scales_ = DeviceBuffer(memory_, memory_at_.input_scales);
  copy_to_device_now(input_scales_.data(), ones, sizeof(ones), memory.stream);
  warm_up_ = DeviceBuffer(memory_, memory_at_.warm_up);
  write_warm_up(memory.stream);
  synchronize(memory.stream);
}

void FusedMoe::write_warm_up(Stream stream) {
  const InputScale one;
  std::vector<uint8_t> warm_up(static_cast<size_t>(warm_up_bytes(spec_.experts)));
  std::memcpy(warm_up.data(), &one, sizeof(one));
  copy_to_device_now(warm_up_.data(), warm_up.data(), warm_up_.bytes(), stream);
}

int64_t FusedMoe::weight_bytes() const { return first_.bytes() + second_.bytes(); }

void FusedMoe::set_weights(const weights::ExpertWeights& w, Stream stream) {
  const DeviceGuard guard(device_);
  const struct {
    DeviceBuffer& to;
    const Tensor& from;
    Span at;
    const char* name;
  } parameters[] = {{bias_up_, w.bias_up, memory_at_.bias_up, "the up bias"},
                    {bias_gate_, w.bias_gate, memory_at_.bias_gate, "the gate bias"},
                    {bias_down_, w.bias_down, memory_at_.bias_down, "the down bias"},
                    {alpha_, w.alpha, memory_at_.alpha, "alpha"},
                    {beta_, w.beta, memory_at_.beta, "beta"},
                    {limit_, w.limit, memory_at_.limit, "limit"}};
  // All that can be refused comes before the first write: a refit that is refused leaves the layer as it was.
  for (const auto& [to, from, at, name] : parameters) {
    check(from.bytes() == 0 || from.bytes() == at.bytes, "{} has {} bytes; the spec says {}", name, from.bytes(),
          at.bytes);
    check(!filled_ || to.bytes() == from.bytes(),
          "{} was {} before this refit and is {} now; captured graphs could not follow", name,
          to.bytes() > 0 ? "given" : "absent", from.bytes() > 0 ? "given" : "absent");
  }
  MatrixStaging first = first_.stage(w.up, spec_.gated() ? &w.gate : nullptr);
  MatrixStaging second = second_.stage(w.down, nullptr);
  first_.fill(first, stream);
  second_.fill(second, stream, true);
  for (const auto& [to, from, at, name] : parameters) {
    if (!filled_ && from.bytes() > 0) to = DeviceBuffer(memory_, at);
    copy_to_device_now(to.data(), from.data(), from.bytes(), stream);
  }
  const Round round = round_of(spec_.inputs);
  InputScale scales[2];
  if (is_static(round)) {
    scales[0] = input_scale(round, w.input_scale1);
    scales[1] = input_scale(round, w.input_scale2);
  }
  // A caller's memory may have lost what it held before this refit (torch's allocators discard memory of engines that
  // sleep). Else scales that the device has already are not copied again: a copy would lie between two layers'
  // launches.
  const bool may_be_lost = given_memory_ && filled_;
  if (may_be_lost) write_warm_up(stream);
  if (!filled_ || may_be_lost || std::memcmp(scales, sent_scales_, sizeof(scales)) != 0)
    copy_to_device_now(input_scales_.data(), scales, sizeof(scales), stream);
  std::memcpy(sent_scales_, scales, sizeof(scales));
  filled_ = true;
}

GemmChoice FusedMoe::choice(int64_t tokens, const GemmForce& force) const {
  return choose_gemm(gemm_problem(spec_, tokens), multiprocessors_, force);
}

int64_t FusedMoe::workspace_bytes(int64_t tokens) const { return workspace_.bytes(tokens); }

int64_t FusedMoe::workspace_bytes(int64_t tokens, const GemmForce& force) const {
  return plan_moe(spec_, multiprocessors_, tokens, force, nullptr).bytes;
}

// Turns GEMM1's results into GEMM2's rows, where that takes a launch of its own. `rows`: the arguments that made
// GEMM1's rows.
void FusedMoe::round_between(const MoePlan& p, const GemmArgs& first, RowsArgs rows, Stream stream, bool pdl) const {
  if (rounds_in_place(spec_)) {
    const TokenRowsArgs args{p.x2, second_.shape.k_blocks(), p.x2_row_scale, p.tables.tiles, p.tables.header};
    return launch_token_rows(args, p.tiles, p.choice.instance.max_n, stream, pdl);
  }
  rows.source.tokens = nullptr;
  rows.source.float_rows = p.middle;
  rows.source.columns = static_cast<int>(spec_.inter);
  rows.source.raw = p.store == Store::raw;
  rows.source.gated = spec_.gated();
  rows.source.act = spec_.act;
  rows.activation.bias = bias_up_.as<float>();
  rows.activation.bias_gate = bias_gate_.as<float>();
  rows.activation.alpha = alpha_.as<float>();
  rows.activation.beta = beta_.as<float>();
  rows.activation.limit = limit_.as<float>();
  rows.out.static_scale = first.epilogue.out_scale;
  rows.out.data = p.x2;
  rows.out.k_blocks = second_.shape.k_blocks();
  rows.out.scale_runs = scale_runs(p.choice.instance.operand, rows.out.k_blocks);
  rows.out.row_scale = p.x2_row_scale;
  rows.out.block_scale = p.x2_block_scale;
  launch_requantize(rows, p.tiles, p.choice.instance.max_n, rows.source.max_tokens * spec_.top_k, stream, pdl);
}

void FusedMoe::multiply(const MoeCall& call, const MoePlan& p, GroupedGemmArgs gemm, const RowsArgs& rows,
                        Stream stream) const {
  const Instance& tile = p.choice.instance;
  const bool completes = completes_rows(spec_, tile.operand, tile.max_n) && !call.force.separate_rounding &&
                         (!call.force.none() || completing_pays(spec_, call.tokens));
  if (completes || (p.middle == nullptr && !rounds_in_place(spec_))) {
    gemm.gemms = 2;
    gemm.token_scale = completes ? p.x2_row_scale : nullptr;
    return launch_grouped_gemm(gemm, tile, multiprocessors_, stream, call.pdl);
  }
  gemm.gemms = 1;
  launch_grouped_gemm(gemm, tile, multiprocessors_, stream, call.pdl);
  round_between(p, gemm.gemm[0], rows, stream, call.pdl);
  gemm.gemm[0] = gemm.gemm[1];
  gemm.arrivals[0] = gemm.arrivals[1];
  gemm.ticket = 1;
  launch_grouped_gemm(gemm, tile, multiprocessors_, stream, call.pdl);
}

// Both products and the sum.
void FusedMoe::multiply_one_token(const MoeCall& call, const MoePlan& p, const GroupedGemmArgs& gemm,
                                  const RouteArgs& route, Stream stream) const {
  OneTokenArgs args{};
  args.pairs = pairs_of(route);
  args.experts = static_cast<int>(spec_.experts);
  args.local_offset = static_cast<int>(spec_.local_offset);
  args.locals = static_cast<int>(spec_.locals());
  args.x = static_cast<const bf16_t*>(call.hidden);
  args.x_columns = static_cast<int>(spec_.hidden);
  args.chosen_ids = call.chosen_ids;
  args.chosen_weights = call.chosen_weights;
  for (int g = 0; g < 2; ++g) args.gemm[g] = gemm.gemm[g];
  args.gemm[0].epilogue.round = round_of(spec_.inputs);
  args.gemm[1].epilogue.out = call.output;
  args.middle = p.middle;
  args.middle_max = p.middle_max;
  args.middle_bf16 = rounds_in_place(spec_);
  args.weighs_input = spec_.weight_on_input;
  args.finalize = finalizes(call);
  args.num_tokens = call.num_tokens;
  args.top_k = static_cast<int>(spec_.top_k);
  launch_one_token(args, p.choice.instance.operand, multiprocessors_, stream, call.pdl, call.follows_own);
}

bool FusedMoe::finalize_can_wait(int64_t tokens) const {
  return spec_.finalize && tokens <= tuning::kFinalizeInNormTokens && !runs_one_token(spec_, multiprocessors_, tokens);
}

void FusedMoe::run(const MoeCall& call, Stream stream) const {
  if (call.tokens == 0) return;
  const DeviceGuard guard(device_);
  const MoePlan p = plan_moe(spec_, multiprocessors_, call.tokens, call.force, call.workspace);
  check(call.workspace_size >= p.bytes, "workspace_size is {}; a call of {} tokens needs {} bytes", call.workspace_size,
        call.tokens, p.bytes);
  const RouteArgs route = route_args(call, p);
  GroupedGemmArgs gemm = gemm_args(call, p);
  const WarmUp warm_up{warm_up_.data(), call.follows_own};
  if (p.one_token) {
    if (route.logits != nullptr) launch_choose(route, warm_up, stream, call.pdl);
    return multiply_one_token(call, p, gemm, route, stream);
  }
  RowsArgs rows = row_args(call, p, route);
  if (route_permute_fits(route)) {  // few tokens: one or two launches before the GEMMs
    const bool early = starts_early(spec_, p.choice.instance, call.tokens) && call.logits == nullptr;
    launch_route_permute(route, rows, early, warm_up, stream, call.pdl);
    if (early)
      gemm.given = {call.topk_ids, call.topk_weights == nullptr, call.tokens,   call.num_tokens, spec_.top_k,
                    spec_.experts, spec_.local_offset,           spec_.locals()};
  } else {
    if (route.logits != nullptr) launch_choose(route, warm_up, stream, call.pdl);
    launch_tables(route, stream, call.pdl);
    rows.out.token_scale = p.token_scale;
    launch_gather(rows, p.tiles, p.choice.instance.max_n, stream, call.pdl);
  }
  multiply(call, p, gemm, rows, stream);
  if (!finalizes(call)) return;
  FinalizeArgs finalize{};
  finalize.results = p.results;
  finalize.weights = spec_.weight_on_input ? nullptr : p.tables.weights;
  finalize.pair_row = p.tables.pair_row;
  finalize.out = call.output;
  finalize.f32 = spec_.dtype == DType::f32;
  finalize.tokens = call.tokens;
  finalize.num_tokens = call.num_tokens;
  finalize.columns = static_cast<int>(spec_.hidden);
  finalize.top_k = spec_.top_k;
  launch_finalize(finalize, stream, call.pdl);
}

}  // namespace sluice::sm90
