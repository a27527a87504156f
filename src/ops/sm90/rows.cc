// SPDX-License-Identifier: Apache-2.0
// Rows, norms, rotary embedding: what the CPU's folder has in elementwise, norm and rope.
#include "kernels/sm90/attention/prefill.h"
#include "kernels/sm90/elementwise/elementwise.h"
#include "kernels/sm90/finalize/finalize.h"
#include "kernels/sm90/flashinfer/expanded.h"
#include "kernels/sm90/flashinfer/latent.h"
#include "kernels/sm90/mla/head_product.h"
#include "kernels/sm90/mla/key_values.h"
#include "kernels/sm90/norm/norm.h"
#include "kernels/sm90/quantize/input_round.h"
#include "kernels/sm90/rope/rope.h"
#include "kernels/sm90/route/random_logits.h"
#include "kernels/sm90/route/route.h"
#include "kernels/sm90/sample/sample.h"
#include "kernels/sm90/ssm/ssm.h"
#include "ops/sm90/linear.h"
#include "ops/sm90/sm90_ops.h"
#include "ops/sm90/views.h"

namespace sluice::ops::sm90 {

using namespace sluice::sm90;

Sm90Ops::Sm90Ops(Context& ctx) : Ops(ctx), index_(ctx.device().id().index) {
  const DeviceGuard guard(index_);
  multiprocessors_ = multiprocessors();
  allow_attention();
  allow_flash();
  allow_latent();
  allow_key_values();
  allow_expanded();
  allow_head_product();
  allow_row_product();
  allow_sample();
  allow_chunked_scan();
}

void Sm90Ops::embed(const int32_t* ids, const Tensor& table, Matrix y) {
  const DeviceGuard guard(index_);
  const ConstRowsView rows{table.address(), table.dim(1), is_f32(table.dtype(), "the embedding table")};
  launch_gather_rows({rows, ids, view(y, "y"), y.rows, y.cols}, stream(), true);
}

void Sm90Ops::gather_rows(ConstMatrix x, const int32_t* rows, Matrix y) {
  check_same_type(x.dtype, y.dtype, "gather_rows");
  const DeviceGuard guard(index_);
  launch_gather_rows({view(x, "x"), rows, view(y, "y"), y.rows, y.cols}, stream(), true);
}

void Sm90Ops::copy(ConstMatrix x, Matrix y) { gather_rows(x, nullptr, y); }

void Sm90Ops::add(Matrix x, ConstMatrix y) {
  check_same_type(x.dtype, y.dtype, "add");
  const DeviceGuard guard(index_);
  launch_elementwise({Elementwise::add, view(x, "x"), view(y, "y"), x.rows, x.cols}, stream(), true);
}

void Sm90Ops::silu_multiply(Matrix gate, ConstMatrix up) {
  check_same_type(gate.dtype, up.dtype, "silu_multiply");
  const DeviceGuard guard(index_);
  launch_elementwise({Elementwise::silu_multiply, view(gate, "gate"), view(up, "up"), gate.rows, gate.cols}, stream(),
                     true);
}

void Sm90Ops::relu_squared(Matrix x) {
  const DeviceGuard guard(index_);
  launch_elementwise({Elementwise::relu_squared, view(x, "x"), {}, x.rows, x.cols}, stream(), true);
}

float Sm90Ops::amax(ConstMatrix x) {
  const Workspace::Scope scope(workspace());
  auto* largest = workspace().take<uint32_t>(1);
  auto* result = static_cast<float*>(waited_.at_least(ctx().device(), sizeof(float)));
  ctx().queue.zero(largest, sizeof(uint32_t));
  {
    const DeviceGuard guard(index_);
    launch_amax({view(x, "x"), x.rows, x.cols, largest}, stream(), true);
  }
  ctx().queue.copy(result, largest, sizeof(float));
  ctx().queue.wait();
  return *result;
}

void Sm90Ops::random_logits(const int32_t* positions, int64_t rows, Matrix logits) {
  if (rows == 0) return;
  const DeviceGuard guard(index_);
  launch_random_logits({positions, rows, logits.rows / rows, view(logits, "logits"), static_cast<int>(logits.cols)},
                       stream(), true);
}

namespace {
RmsNormArgs norm_args(RowsView x, const RmsNorm& norm, Matrix y, const RoundedRows& rounded) {
  RmsNormArgs args{};
  args.x = x;
  args.weight = floats(norm.weight, "the norm's weight");
  args.eps = norm.eps;
  args.y = view(y, "y");
  args.rows = y.rows;
  args.cols = static_cast<int>(y.cols);
  args.rounded = {round_of(rounded.rounding.format), format::fp8_static_inverse(rounded.rounding.scale), rounded.codes,
                  rounded.row_scales, rounded.scales};
  return args;
}

// All of x's change but results that have not been added up.
void set_change(RmsNormArgs& args, DType dtype, const Change& change) {
  const auto matrix = [&](const ConstMatrix& m) {
    check_same_type(dtype, m.dtype, "add_rms_norm");
    return view(m, "change");
  };
  if (change.experts.results == nullptr) args.change = matrix(change.first);
  if (change.second.data != nullptr) args.change2 = matrix(change.second);
}

void launch_norm(const RmsNormArgs& args, void* stream) {
  check(args.rounded.round == Round::plain || in_eights(args),
        "a norm is to make codes of rows of {} columns; multiples of 8 in rows aligned to 16 bytes have them",
        args.cols);
  launch_rms_norm(args, stream, true);
}
}  // namespace

void Sm90Ops::rms_norm(ConstMatrix x, const RmsNorm& norm, Matrix y, const RoundedRows& rounded) {
  check_same_type(x.dtype, y.dtype, "rms_norm");
  const DeviceGuard guard(index_);
  const RowsView source{const_cast<void*>(x.data), x.stride, is_f32(x.dtype, "x")};  // read only without a change
  launch_norm(norm_args(source, norm, y, rounded), stream());
}

// In scratch memory, of as many rows and columns as x has.
ConstMatrix Sm90Ops::sum_of(const ExpertResults& experts, Matrix x) {
  check(experts.top_k <= kMaxTopK, "the results of {} experts are to be added; at most {} are supported on the GPU",
        experts.top_k, kMaxTopK);
  const Matrix sum = workspace().matrix(x.dtype, x.rows, x.cols);
  if (experts.num_rows != nullptr) ctx().queue.zero(sum.data, x.rows * x.cols * bytes_of(x.dtype));
  FinalizeArgs args{};
  args.results = experts.results;
  args.weights = experts.weights;
  args.out = sum.data;
  args.f32 = is_f32(x.dtype, "x");
  args.tokens = x.rows;
  args.num_tokens = experts.num_rows;
  args.columns = static_cast<int>(x.cols);
  args.top_k = static_cast<int>(experts.top_k);
  launch_finalize(args, stream(), true);
  return sum;
}

void Sm90Ops::add_rms_norm(Matrix x, const Change& change, const RmsNorm& norm, Matrix y, const RoundedRows& rounded) {
  check_same_type(x.dtype, y.dtype, "add_rms_norm");
  const DeviceGuard guard(index_);
  const Workspace::Scope scope(workspace());
  RmsNormArgs args = norm_args(view(x, "x"), norm, y, rounded);
  set_change(args, x.dtype, change);
  if (const ExpertResults& e = change.experts; e.results != nullptr) {
    args.sum = {e.results, e.weights, e.num_rows, static_cast<int>(e.top_k)};
    if (!adds_results(args)) {
      args.sum = {};
      args.change = view(sum_of(e, x), "change");
    }
  }
  launch_norm(args, stream());
}

void Sm90Ops::add_rms_norm_multiply(Matrix x, const Change& change, const RmsNorm& norm, Matrix y,
                                    const RoundedRows& rounded, const NormProduct& product) {
  const auto* linear = dynamic_cast<const Sm90Linear*>(product.linear);
  const uint8_t* weights = linear == nullptr ? nullptr : linear->plain_weights();
  RmsNormArgs args = norm_args(view(x, "x"), norm, y, rounded);
  set_change(args, x.dtype, change);
  args.product = {weights, static_cast<int>(product.linear->outputs()), view(product.z, "z")};
  if (weights == nullptr || change.experts.results != nullptr || !multiplies_rows(args))
    return Ops::add_rms_norm_multiply(x, change, norm, y, rounded, product);
  check_same_type(x.dtype, y.dtype, "add_rms_norm_multiply");
  const DeviceGuard guard(index_);
  launch_norm(args, stream());
}

void Sm90Ops::gated_group_rms_norm(ConstMatrix x, ConstMatrix gate, int64_t groups, const RmsNorm& norm, Matrix y) {
  check(x.dtype == DType::f32, "x of gated_group_rms_norm is {}; float32 is expected", to_string(x.dtype));
  check_same_type(gate.dtype, y.dtype, "gated_group_rms_norm");
  const DeviceGuard guard(index_);
  launch_gated_group_rms_norm({view(x, "x"), view(gate, "gate"), view(y, "y"), floats(norm.weight, "the norm's weight"),
                               norm.eps, x.rows, static_cast<int>(groups), static_cast<int>(x.cols / groups)},
                              stream(), true);
}

void Sm90Ops::rope_angles(const RopeFrequencies& f, const int32_t* positions, int64_t rows, DType dtype, float* cosine,
                          float* sine) {
  RopeAnglesArgs args{};
  check(f.inv_freq.size() <= kMaxRopePairs, "the rotary embedding turns {} pairs; at most {} are supported on the GPU",
        f.inv_freq.size(), kMaxRopePairs);
  std::copy(f.inv_freq.begin(), f.inv_freq.end(), args.inv_freq);
  args.attention_factor = f.attention_factor;
  args.positions = positions;
  args.rows = rows;
  args.pairs = static_cast<int>(f.inv_freq.size());
  args.round_bf16 = dtype == DType::bf16;
  args.cosine = cosine;
  args.sine = sine;
  const DeviceGuard guard(index_);
  launch_rope_angles(args, stream(), true);
}

namespace {
void check_head(int64_t dim) {
  check(dim <= kMaxHeadDim, "heads have {} values; at most {} are supported on the GPU", dim, kMaxHeadDim);
}
void set_norm(HeadGroup& group, const RmsNorm& norm, int64_t dim) {
  if (!norm) return;
  group.norm = floats(norm.weight, "a head's norm");
  group.norm_dim = static_cast<int>(dim);
  group.eps = norm.eps;
}
void set_pages(HeadGroup& group, const Pages& pages) {
  group.pages = pages.data;
  group.e4m3 = pages.dtype == DType::e4m3;
  group.scale = pages.scale;
}
}  // namespace

void Sm90Ops::norm_rope_store(const Batch& batch, const QkvLayout& layout, const RopeAngles& angles, Matrix qkv,
                              const Pages& keys, const Pages& values) {
  check_head(layout.head_dim);
  check_page_type(qkv.dtype, keys, "norm_rope_store");
  check_page_type(qkv.dtype, values, "norm_rope_store");
  HeadsArgs args{};
  args.num_groups = 3;
  const int64_t first[] = {0, layout.heads, layout.heads + layout.kv_heads};
  for (int i = 0; i < 3; ++i) {
    HeadGroup& g = args.groups[i];
    const int64_t heads = i == 0 ? layout.heads : layout.kv_heads;
    g.x = view(qkv.columns(first[i] * layout.head_dim, heads * layout.head_dim), "qkv");
    g.heads = static_cast<int>(heads);
    g.dim = static_cast<int>(layout.head_dim);
    if (i < 2 && layout.rotary) g.half = static_cast<int>(angles.half);
  }
  set_norm(args.groups[0], layout.q_norm, layout.head_dim);
  set_norm(args.groups[1], layout.k_norm, layout.head_dim);
  set_pages(args.groups[1], keys);
  set_pages(args.groups[2], values);
  args.rows = qkv.rows;
  args.cosine = angles.cosine;
  args.sine = angles.sine;
  args.kv_slots = batch.kv_slots;
  args.block_size = static_cast<int>(keys.block_size);
  const DeviceGuard guard(index_);
  launch_heads(args, stream(), true);
}

void Sm90Ops::mla_norm_rope_store(const Batch& batch, const MlaShape& shape, RopeLayout layout,
                                  const RopeAngles& angles, const RmsNorm& norm, Matrix q, Matrix latent,
                                  const Pages& keys) {
  check_head(shape.query());
  check_head(shape.cached());
  check_same_type(q.dtype, latent.dtype, "mla_norm_rope_store");
  check_same_type(latent.dtype, keys.dtype, "mla_norm_rope_store");
  HeadsArgs args{};
  args.num_groups = 2;
  HeadGroup &queries = args.groups[0], &rows = args.groups[1];
  queries.x = view(q, "q");
  queries.heads = static_cast<int>(shape.heads);
  queries.dim = static_cast<int>(shape.query());
  queries.rotary_first = static_cast<int>(shape.nope);
  rows.x = view(latent, "latent");
  rows.heads = 1;
  rows.dim = static_cast<int>(shape.cached());
  rows.rotary_first = static_cast<int>(shape.latent);
  rows.pages = keys.data;
  set_norm(rows, norm, shape.latent);
  for (HeadGroup* g : {&queries, &rows}) {
    g->half = static_cast<int>(angles.half);
    g->interleaved = layout == RopeLayout::interleaved;
  }
  args.rows = latent.rows;
  args.cosine = angles.cosine;
  args.sine = angles.sine;
  args.kv_slots = batch.kv_slots;
  args.block_size = static_cast<int>(keys.block_size);
  const DeviceGuard guard(index_);
  launch_heads(args, stream(), true);
}

}  // namespace sluice::ops::sm90
