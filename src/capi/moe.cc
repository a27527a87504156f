// SPDX-License-Identifier: Apache-2.0
// One fused layer over raw host pointers.
#include <memory>
#include <string>

#include "capi/context.h"
#include "capi/status.h"
#include "moe/select.h"
#include "weights/scale_grid.h"

using namespace sluice;
using capi::guard;
using capi::read_struct;
using capi::required;

struct sluice_moe {
  std::shared_ptr<capi::SharedContext> shared;
  std::unique_ptr<moe::MoeLayer> layer;
};

namespace {

// A tensor over the caller's memory, which outlives every use here: layers copy what they prepare.
Tensor view(DType dtype, Shape shape, const void* data) { return {dtype, std::move(shape), data, nullptr}; }

weights::QuantTensor view_matrices(const MoeSpec& spec, const char* name, const sluice_matrices& m, int64_t rows,
                                   int64_t cols) {
  const format::FormatInfo f = info(spec.weights);
  const weights::ScaleGrid grid = weights::scale_grid(spec.weights, rows, cols);
  const int64_t experts = spec.locals();
  check(m.codes != nullptr, "weights.{}.codes is NULL; the spec needs [{}, {}, {}] of {}", name, experts, rows, cols,
        f.name);
  check(f.bits != 4 || cols % 2 == 0, "weights.{} has {} columns; {} stores two codes a byte and needs an even number",
        name, cols, f.name);
  weights::QuantTensor w{spec.weights, experts, rows, cols, {}, {}, {}};
  w.codes = view(weights::code_type(f), {experts, rows, f.bits == 4 ? cols / 2 : cols}, m.codes);
  if (f.scale != format::ScaleType::none) {
    check(m.scales != nullptr, "weights.{}.scales is NULL; {} has scales", name, f.name);
    Shape shape{experts};
    if (grid.rank >= 1) shape.push_back(grid.rows);
    if (grid.rank == 2) shape.push_back(grid.cols);
    w.scales = view(weights::scale_type(f), std::move(shape), m.scales);
  }
  if (f.global_scale) {
    check(m.global_scales != nullptr, "weights.{}.global_scales is NULL; {} has one a matrix", name, f.name);
    w.global = view(DType::f32, {experts}, m.global_scales);
  }
  return w;
}

Tensor view_floats(const char* name, const float* data, bool allowed, Shape shape) {
  check(data == nullptr || allowed, "weights.{} is given, but the spec does not announce it", name);
  return data == nullptr ? Tensor{} : view(DType::f32, std::move(shape), data);
}

weights::ExpertWeights view_weights(const MoeSpec& spec, const sluice_moe_weights* given) {
  const auto w = read_struct(given, "weights", sizeof(sluice_moe_weights));
  const int64_t experts = spec.locals();
  weights::ExpertWeights out;
  out.up = view_matrices(spec, "up", w.up, spec.inter, spec.hidden);
  if (spec.gated()) {
    out.gate = view_matrices(spec, "gate", w.gate, spec.inter, spec.hidden);
  } else {
    check(w.gate.codes == nullptr, "weights.gate is given, but the spec's activation is not gated");
  }
  out.down = view_matrices(spec, "down", w.down, spec.hidden, spec.inter);
  if (w.input_scale1 != 0) out.input_scale1 = w.input_scale1;
  if (w.input_scale2 != 0) out.input_scale2 = w.input_scale2;
  out.bias_up = view_floats("bias_up", w.bias_up, spec.bias, {experts, spec.inter});
  out.bias_gate = view_floats("bias_gate", w.bias_gate, spec.bias && spec.gated(), {experts, spec.inter});
  out.bias_down = view_floats("bias_down", w.bias_down, spec.bias, {experts, spec.hidden});
  out.alpha = view_floats("alpha", w.alpha, spec.act_params, {experts});
  out.beta = view_floats("beta", w.beta, spec.act_params, {experts});
  out.limit = view_floats("limit", w.limit, spec.act_params, {experts});
  return out;
}

DType dtype_of(sluice_dtype dtype, const char* name) {
  check(dtype == SLUICE_F32 || dtype == SLUICE_BF16, "{} is {}; accepted: SLUICE_F32, SLUICE_BF16", name,
        static_cast<int>(dtype));
  return dtype == SLUICE_F32 ? DType::f32 : DType::bf16;
}

// What contradicts the spec is refused by the layer itself.
moe::MoeArgs read_args(const sluice_moe_args* given) {
  const auto a = read_struct(given, "args", sizeof(sluice_moe_args));
  moe::MoeArgs args;
  args.tokens = a.tokens;
  args.hidden = a.hidden;
  args.logits = a.logits;
  args.logits_dtype = dtype_of(a.logits_dtype, "args.logits_dtype");
  args.bias = a.bias;
  args.bias_dtype = dtype_of(a.bias_dtype, "args.bias_dtype");
  args.topk_ids = a.topk_ids;
  args.topk_weights = a.topk_weights;
  args.topk_weights_dtype = dtype_of(a.topk_weights_dtype, "args.topk_weights_dtype");
  args.output = a.output;
  args.workspace = a.workspace;
  args.chosen_ids = a.chosen_ids;
  args.chosen_weights = a.chosen_weights;
  return args;
}

std::string explain(const MoeSpec& spec) {
  std::string text;
  bool chosen = false;
  for (const auto& [backend, support] : moe::ask_backends(spec)) {
    const std::string_view verdict = !support ? "no" : chosen ? "usable" : "chosen";
    chosen = chosen || support;
    text += fmt::format("{}: {}", backend->name(), verdict);
    if (const std::string& why = support ? support.choice : support.reason; !why.empty())
      text += fmt::format(" ({})", why);
    text += '\n';
  }
  return text;
}

}  // namespace

extern "C" {

sluice_status sluice_moe_create(sluice_context* context, const char* spec_line, const char* backend,
                                const sluice_moe_weights* weights, sluice_moe** out) {
  return guard([&] {
    required(out, "out") = nullptr;
    const MoeSpec spec = parse_moe_spec(&required(spec_line, "spec"));
    validate(spec);
    auto made = std::make_unique<sluice_moe>();
    made->shared = required(context, "context").shared;
    const auto viewed = view_weights(spec, weights);
    made->shared->use([&](Context& ctx) {
      made->layer = moe::select(spec, &required(backend, "backend")).prepare(ctx, spec, viewed);
    });
    *out = made.release();
  });
}

sluice_status sluice_moe_refit(sluice_moe* moe, const sluice_moe_weights* weights) {
  return guard([&] {
    const auto viewed = view_weights(required(moe, "moe").layer->spec(), weights);
    moe->shared->use([&](Context& ctx) { moe->layer->refit(ctx, viewed); });
  });
}

void sluice_moe_destroy(sluice_moe* moe) { delete moe; }

sluice_status sluice_moe_workspace_bytes(const sluice_moe* moe, int64_t tokens, int64_t* out) {
  return guard([&] {
    check(tokens >= 0, "tokens is {}; it must be 0 or more", tokens);
    required(out, "out") = required(moe, "moe").layer->workspace_bytes(tokens);
  });
}

sluice_status sluice_moe_run(const sluice_moe* moe, const sluice_moe_args* given) {
  return guard([&] {
    required(moe, "moe");
    moe::MoeArgs args = read_args(given);
    Tensor own;
    if (args.workspace == nullptr && args.tokens > 0) {
      own = Tensor(DType::u8, {moe->layer->workspace_bytes(args.tokens)});
      args.workspace = own.data();
    }
    check(reinterpret_cast<uintptr_t>(args.workspace) % 64 == 0, "args.workspace is not aligned to 64 bytes");
    moe->shared->use([&](Context& ctx) { moe->layer->run(ctx, args); });
  });
}

sluice_status sluice_moe_explain(const char* spec_line, char* buffer, size_t size, size_t* needed) {
  return guard([&] {
    const MoeSpec spec = parse_moe_spec(&required(spec_line, "spec"));
    validate(spec);
    return capi::copy_text(explain(spec), buffer, size, needed);
  });
}
}
