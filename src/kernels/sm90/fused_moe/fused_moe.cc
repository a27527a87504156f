// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/fused_moe/fused_moe.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/math.h"
#include "kernels/sm90/combine/combine.h"
#include "kernels/sm90/fused_moe/plan.h"
#include "kernels/sm90/grouped_gemm/launch.h"
#include "kernels/sm90/prologue/prologue.h"
#include "kernels/sm90/quantize/input_round.h"
#include "kernels/sm90/quantize/rows.h"
#include "kernels/sm90/quantize/token_rows.h"

namespace sluice::sm90 {

namespace {

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
  // Scales that are there already need no copy between two layers' launches.
  if (!filled_ || std::memcmp(scales, sent_scales_, sizeof(scales)) != 0)
    copy_to_device(input_scales_.data(), scales, sizeof(scales), stream);
  std::memcpy(sent_scales_, scales, sizeof(scales));
  filled_ = true;
}

GemmChoice FusedMoe::choice(int64_t tokens, const GemmForce& force) const {
  return choose_gemm(gemm_problem(spec_, tokens), multiprocessors_, fixed_force(spec_, force));
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

void FusedMoe::multiply(const MoeCall& call, const Plan& p, GroupedGemmArgs gemm, const RowsArgs& rows,
                        Stream stream) const {
  const Instance& tile = p.choice.instance;
  const bool completes = completes_rows(spec_, tile.operand, tile.max_n);
  if (p.middle == nullptr && (completes || !rounds_in_place(spec_))) {
    gemm.gemms = 2;
    gemm.token_scale = completes ? p.x2_row_scale : nullptr;
    return launch_grouped_gemm(gemm, tile, stream, call.pdl);
  }
  gemm.gemms = 1;
  launch_grouped_gemm(gemm, tile, stream, call.pdl);
  round_between(p, gemm.gemm[0], rows, stream, call.pdl);
  gemm.gemm[0] = gemm.gemm[1];
  gemm.arrivals[0] = gemm.arrivals[1];
  gemm.ticket = 1;
  launch_grouped_gemm(gemm, tile, stream, call.pdl);
}

void FusedMoe::run(const MoeCall& call, Stream stream) const {
  if (call.tokens == 0) return;
  const DeviceGuard guard(device_);
  const Plan p = plan(call.tokens, call.force, call.workspace);
  const RouteArgs route = route_args(call, p);
  const RowsArgs rows = row_args(call, p, route);
  GroupedGemmArgs gemm = gemm_args(call, p);
  if (prologue_fits(route)) {  // few tokens: one launch before the GEMMs
    const bool early = starts_early(spec_, p.choice.instance) && call.logits == nullptr;
    launch_prologue(route, rows, early, rehearsal_.data(), stream, call.pdl);
    if (early)
      gemm.given = {call.topk_ids, call.topk_weights == nullptr, call.tokens,   call.num_tokens, spec_.top_k,
                    spec_.experts, spec_.local_offset,           spec_.locals()};
  } else {
    launch_route(route, stream, call.pdl);
    launch_gather(rows, stream, call.pdl);
  }
  multiply(call, p, gemm, rows, stream);
  if (!spec_.finalize) return;
  CombineArgs combine{};
  combine.results = p.results;
  combine.weights = spec_.weight_on_input ? nullptr : p.tables.weights;
  combine.pair_row = p.tables.pair_row;
  combine.out = call.output;
  combine.f32 = spec_.dtype == DType::f32;
  combine.tokens = call.tokens;
  combine.num_tokens = call.num_tokens;
  combine.columns = static_cast<int>(spec_.hidden);
  combine.top_k = spec_.top_k;
  launch_combine(combine, stream, call.pdl);
}

}  // namespace sluice::sm90
