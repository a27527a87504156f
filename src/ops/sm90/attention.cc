// SPDX-License-Identifier: Apache-2.0
// Attention, latent attention and Mamba-2.
#include <algorithm>

#include "kernels/sm90/attention/prefill.h"
#include "kernels/sm90/mla/expanded.h"
#include "kernels/sm90/mla/latent_attention.h"
#include "kernels/sm90/mla/mla.h"
#include "kernels/sm90/ssm/ssm.h"
#include "ops/sm90/sm90_ops.h"
#include "ops/sm90/views.h"

namespace sluice::ops::sm90 {

using namespace sluice::sm90;

void Sm90Ops::prefill(const Batch& batch, AttentionArgs& args) {
  PrefillArgs p{};
  p.attention = &args;
  p.rows = batch.rows;
  // Alone in its batch a sequence is computed here whatever its length: its bound may be above it.
  p.min_rows = batch.sequences == 1 ? 1 : kPrefillMinRows;
  p.plan = plan_prefill(args.shape, batch.rows, batch.sequences, batch.longest_rows, multiprocessors_, kPrefillLists);
  if (p.plan.tiles > kMaxPrefillTiles) return;
  p.work = prefill_work(p.plan, workspace().take<int32_t>(prefill_work_ints(p.plan)));
  const DeviceGuard guard(index_);
  launch_prefill(p, stream(), true);
  args.prefill_rows = p.min_rows;
}

void Sm90Ops::latent_attention(const AttentionBounds& bounds, bool row_invariant, const AttentionArgs& args) {
  LatentCall call{};
  call.attention = &args;
  call.plan = plan_latent(args.shape.heads, bounds, row_invariant, multiprocessors_);
  call.work = workspace().take<int32_t>(latent_work_ints(call.plan));
  call.partial = workspace().take_bytes(latent_partial_bytes(call.plan));
  call.partial_stats = static_cast<float*>(workspace().take_bytes(latent_stats_bytes(call.plan)));
  const DeviceGuard guard(index_);
  launch_latent_attention(call, stream(), true);
}

namespace {
// All but what a plan decides.
AttentionArgs attention_args(const Batch& batch, ConstMatrix q, const Pages& keys, const Pages& values,
                             int64_t value_width, const AttentionOptions& options, Matrix out) {
  AttentionArgs args{};
  args.q = view(q, "q");
  args.keys = keys.data;
  args.values = values.data;
  args.pages_e4m3 = keys.dtype == DType::e4m3;
  args.pages_f32 = !args.pages_e4m3 && is_f32(keys.dtype, "the pages");
  args.value_scale = values.data == nullptr ? keys.scale : values.scale;
  args.out = view(out, "out");
  args.shape = {static_cast<int>(q.cols / keys.width), static_cast<int>(keys.heads), static_cast<int>(keys.width),
                static_cast<int>(value_width)};
  args.block_size = static_cast<int>(keys.block_size);
  args.scale = options.scale * keys.scale;
  args.rows = q.rows;
  args.sequences = static_cast<int>(batch.sequences);
  args.one_row_each = batch.longest_rows == 1 && batch.rows == batch.sequences;
  args.row_begin = batch.row_begin;
  args.block_begin = batch.block_begin;
  args.blocks = batch.blocks;
  args.contexts = batch.contexts;
  return args;
}
}  // namespace

void Sm90Ops::attention(const Batch& batch, ConstMatrix q, const Pages& keys, const Pages& values, int64_t value_width,
                        const AttentionOptions& options, Matrix out) {
  AttentionArgs args = attention_args(batch, q, keys, values, value_width, options, out);
  const bool shared = values.data == nullptr;
  const bool tensor_cores = attention_on_tensor_cores(args.shape, args.q.f32, args.pages_f32, shared);
  if (!tensor_cores && f32_shared_bytes(args.shape, shared) > kMaxSharedBytes)
    fail(ErrorCode::unsupported, "attention with keys of {} and values of {} does not fit in the GPU's shared memory",
         keys.width, value_width);
  const Workspace::Scope scope(workspace());
  if (latent_fits(args))
    return latent_attention({batch.rows, batch.sequences, batch.longest_rows, batch.longest_context},
                            options.row_invariant, args);
  int64_t longest_rows = batch.longest_rows;
  if (!options.row_invariant && longest_rows >= kPrefillMinRows && prefill_fits(args)) {
    prefill(batch, args);
    if (args.prefill_rows == 1) return;
    if (args.prefill_rows > 0) longest_rows = std::min<int64_t>(longest_rows, args.prefill_rows - 1);
  }
  args.plan = plan_attention(args.shape, tensor_cores, {q.rows, batch.sequences, longest_rows, batch.longest_context},
                             options.row_invariant, multiprocessors_);
  launch_planned(args);
}

void Sm90Ops::launch_planned(AttentionArgs& args) {
  const Workspace::Scope scope(workspace());
  if (args.plan.split()) {
    args.partial = static_cast<float*>(workspace().take_bytes(partial_bytes(args.shape, args.plan)));
    args.partial_stats = static_cast<float*>(workspace().take_bytes(partial_stats_bytes(args.shape, args.plan)));
  }
  const DeviceGuard guard(index_);
  launch_attention(args, stream(), true);
}

void Sm90Ops::norm_rope_attention(const Batch& batch, const QkvLayout& layout, const RopeAngles& angles, Matrix qkv,
                                  const Pages& keys, const Pages& values, const AttentionOptions& options, Matrix out) {
  const int64_t dim = layout.head_dim, keys_at = layout.heads * dim, values_at = keys_at + layout.kv_heads * dim;
  check_page_type(qkv.dtype, keys, "norm_rope_attention");
  check_page_type(qkv.dtype, values, "norm_rope_attention");
  AttentionArgs args = attention_args(batch, qkv.columns(0, keys_at), keys, values, dim, options, out);
  const auto* columns = static_cast<const bf16_t*>(qkv.data);
  ProjectedHeads& heads = args.projected;
  heads.keys = columns + keys_at;
  heads.values = columns + values_at;
  heads.q_norm = floats(layout.q_norm.weight, "a head's norm");
  heads.k_norm = floats(layout.k_norm.weight, "a head's norm");
  heads.q_eps = layout.q_norm.eps;
  heads.k_eps = layout.k_norm.eps;
  if (layout.rotary) heads.cosine = angles.cosine, heads.sine = angles.sine;
  heads.kv_slots = batch.kv_slots;
  heads.key_pages = keys.data;
  heads.value_pages = values.data;
  heads.key_scale = keys.scale;
  if (attention_on_tensor_cores(args.shape, args.q.f32, args.pages_f32, false) && keys.dtype == values.dtype &&
      (!layout.rotary || 2 * angles.half == dim)) {
    args.plan = plan_attention(args.shape, true, {qkv.rows, batch.sequences, batch.longest_rows, batch.longest_context},
                               options.row_invariant, multiprocessors_);
    if (takes_projected(args)) return launch_planned(args);
  }
  Ops::norm_rope_attention(batch, layout, angles, qkv, keys, values, options, out);
}

DType Sm90Ops::absorbed_type(const MlaShape& shape, DType dtype) const {
  const bool fits = has_flashinfer() && shape.latent == kLatent && shape.rope == kLatentRope;
  return fits ? dtype : DType::f32;
}

namespace {
MlaWeights weights_of(const MlaShape& shape, const Tensor& kv_b) {
  check(shape.nope <= kMaxNope, "heads have {} values without position; at most {} are supported on the GPU",
        shape.nope, kMaxNope);
  return {kv_b.address(),
          is_f32(kv_b.dtype(), "kv_b"),
          static_cast<int>(shape.heads),
          static_cast<int>(shape.nope),
          static_cast<int>(shape.rope),
          static_cast<int>(shape.value),
          static_cast<int>(shape.latent)};
}
}  // namespace

void Sm90Ops::mla_absorb(const MlaShape& shape, const Tensor& kv_b, ConstMatrix q, Matrix out) {
  const DeviceGuard guard(index_);
  launch_mla_absorb({weights_of(shape, kv_b), view(q, "q"), view(out, "out"), q.rows}, stream(), true);
}

void Sm90Ops::mla_expand(const MlaShape& shape, const Tensor& kv_b, ConstMatrix mixed, Matrix out) {
  const DeviceGuard guard(index_);
  launch_mla_expand({weights_of(shape, kv_b), view(mixed, "mixed"), view(out, "out"), mixed.rows}, stream(), true);
}

// Prompts in the expanded form where that is quicker, the other sequences in the absorbed one.
void Sm90Ops::mla_attention(const Batch& batch, const MlaShape& shape, const Tensor& kv_b, ConstMatrix q,
                            const Pages& keys, const AttentionOptions& options, Matrix out) {
  ExpandedCall call{};
  call.weights = weights_of(shape, kv_b);
  call.min_rows = static_cast<int>(kPromptRows);
  call.multiprocessors = multiprocessors_;
  call.bounds = {batch.prompts, batch.prompt_rows, batch.prompt_positions};
  if (!options.row_invariant) call.plan = plan_expanded(call.weights.heads, call.bounds, multiprocessors_);
  AttentionArgs args{};
  args.q = view(q, "q");
  args.keys = keys.data;
  args.pages_f32 = is_f32(keys.dtype, "the pages");
  args.out = view(out, "out");
  args.block_size = static_cast<int>(keys.block_size);
  args.scale = options.scale;
  args.rows = batch.rows;
  args.sequences = static_cast<int>(batch.sequences);
  args.row_begin = batch.row_begin;
  args.block_begin = batch.block_begin;
  args.blocks = batch.blocks;
  args.contexts = batch.contexts;
  if (call.plan.heads > 0)
    call.tiles = plan_expanded_tiles(call.plan, call.bounds, batch.longest_rows, multiprocessors_);
  if (call.plan.heads == 0 || call.tiles.tiles > kMaxPrefillTiles || !expanded_fits(call.weights, args))
    return Ops::mla_attention(batch, shape, kv_b, q, keys, options, out);
  const Workspace::Scope scope(workspace());
  const DeviceGuard guard(index_);
  call.attention = &args;
  call.other_rows = batch.rows - batch.prompt_rows;
  call.work =
      expanded_work(workspace().take<int32_t>(expanded_work_ints(batch.sequences, call.other_rows)), batch.sequences);
  launch_expanded_work(call, stream(), true);
  {
    const Workspace::Scope prompts(workspace());
    call.tile_work = workspace().take<int32_t>(prefill_work_ints(call.tiles));
    call.expanded = workspace().take_bytes(expanded_bytes(call.plan));
    launch_expanded_attention(call, stream(), true);
  }
  if (call.other_rows == 0) return;
  const Matrix absorbed = workspace().matrix(q.dtype, call.other_rows, shape.heads * shape.cached());
  const Matrix mixed = workspace().matrix(q.dtype, call.other_rows, shape.heads * shape.latent);
  launch_mla_absorb({call.weights, args.q, view(absorbed, "absorbed"), call.other_rows, call.work.other_rows}, stream(),
                    true);
  AttentionArgs others = args;
  others.q = view(absorbed, "absorbed");
  others.out = view(mixed, "mixed");
  others.shape = {call.weights.heads, 1, kLatentCached, kLatent};
  others.rows = call.other_rows;
  others.row_begin = call.work.other_begin;
  latent_attention(
      {call.other_rows, batch.sequences, std::min(batch.longest_rows, kPromptRows - 1), batch.longest_context}, false,
      others);
  launch_mla_expand({call.weights, others.out, args.out, call.other_rows, call.work.other_rows}, stream(), true);
}

namespace {
StateRows state_rows(const Batch& batch, const States& states) {
  return {batch.rows,      batch.longest_rows, static_cast<int>(batch.sequences),
          batch.row_begin, batch.state_in,     batch.state_out,
          states.data,     states.floats};
}
}  // namespace

void Sm90Ops::causal_conv(const Batch& batch, const MambaShape& shape, ConstMatrix xbc, const Tensor& weight,
                          const Tensor& bias, const States& states, Matrix out) {
  check(shape.taps <= kMaxConvTaps, "the convolution has {} taps; at most {} are supported", shape.taps, kMaxConvTaps);
  CausalConvArgs args{};
  args.batch = state_rows(batch, states);
  args.xbc = view(xbc, "xbc");
  args.weight = floats(weight, "the convolution's weight");
  args.bias = floats(bias, "the convolution's bias");
  args.out = view(out, "out");
  args.channels = static_cast<int>(shape.channels());
  args.taps = static_cast<int>(shape.taps);
  const DeviceGuard guard(index_);
  launch_causal_conv(args, stream(), true);
}

void Sm90Ops::state_scan(const Batch& batch, const MambaShape& shape, ConstMatrix xbc, ConstMatrix dt,
                         const StateScanOptions& options, const States& states, Matrix y) {
  const int dim = static_cast<int>(shape.head_dim), state = static_cast<int>(shape.state);
  if (!scan_fits(dim, state))
    fail(ErrorCode::unsupported, "Mamba heads of {} values with a state of {} do not fit in the GPU's registers", dim,
         state);
  StateScanArgs args{};
  args.batch = state_rows(batch, states);
  args.xbc = view(xbc, "xbc");
  args.dt = view(dt, "dt");
  args.dt_bias = floats(options.dt_bias, "dt_bias");
  args.a = floats(options.a, "A");
  args.skip = floats(options.skip, "D");
  args.y = view(y, "y");
  args.heads = static_cast<int>(shape.heads);
  args.head_dim = dim;
  args.groups = static_cast<int>(shape.groups);
  args.state = state;
  const bool chunked = !options.row_invariant && batch.longest_rows >= kChunkedMinRows && chunked_scan_fits(args);
  // Alone in its batch a sequence is computed in chunks whatever its length: its bound may be above it.
  args.chunked_rows = !chunked ? 0 : batch.sequences == 1 ? 1 : kChunkedMinRows;
  const Workspace::Scope scope(workspace());
  if (chunked) {
    args.segments = scan_segments(shape.heads, batch.sequences, batch.longest_rows, multiprocessors_);
    args.carried = workspace().take<float>(carried_floats(shape.heads, batch.sequences, args.segments));
    args.decays = workspace().take<float>(batch.sequences * args.segments * shape.heads);
  }
  const DeviceGuard guard(index_);
  if (!chunked || batch.sequences > 1) launch_state_scan(args, stream(), true);
  if (chunked) launch_chunked_scan(args, stream(), true);
}

void Sm90Ops::copy_states(const States& states, std::span<const std::pair<int32_t, int32_t>> places) {
  for (const auto& [from, to] : places)
    if (from != to) ctx().queue.copy(states.at(to), states.at(from), states.floats * 4);
}

}  // namespace sluice::ops::sm90
