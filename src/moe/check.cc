// SPDX-License-Identifier: Apache-2.0
#include "moe/check.h"

#include <algorithm>

#include <cfloat>
#include <cmath>

#include "format/quantize_weights.h"

namespace sluice::moe {

namespace {

using weights::QuantTensor;

void check_tensor(const Tensor& t, std::string_view what, const Shape& shape) {
  check(t.dtype() == DType::f32 && t.shape() == shape, "{} is {} {}; needed: float32 {}", what, to_string(t.dtype()),
        to_string(t.shape()), to_string(shape));
}

void check_extra(const Tensor& t, std::string_view what, bool wanted, const Shape& shape) {
  check(wanted || t.empty(), "{} is given, but the spec does not say so; it would be ignored", what);
  if (!t.empty()) check_tensor(t, what, shape);
}

void check_stack(const QuantTensor& w, std::string_view what, const MoeSpec& s, int64_t rows, int64_t cols) {
  check(w.format == s.weights, "the {} weights are {}; the spec says {}", what, format::info(w.format).name,
        format::info(s.weights).name);
  check(w.experts == s.locals() && w.rows == rows && w.cols == cols,
        "the {} weights are [{}, {}, {}]; needed: [{}, {}, {}]", what, w.experts, w.rows, w.cols, s.locals(), rows,
        cols);
  const format::FormatInfo f = format::info(w.format);
  const int64_t elements = w.experts * rows * cols * f.bits / 8;
  int64_t bytes = w.codes.bytes();
  for (const Tensor& matrix : w.apart) bytes += matrix.bytes();
  check(bytes == elements, "the {} weights have {} bytes of codes; needed: {}", what, bytes, elements);
  const int64_t scales = w.experts * format::scale_count(w.format, rows, cols);
  check((w.scales.empty() ? 0 : w.scales.elements()) == scales, "the {} weights in {} have {} scales; needed: {}", what,
        f.name, w.scales.empty() ? 0 : w.scales.elements(), scales);
  check(!f.global_scale || (!w.global.empty() && w.global.elements() == w.experts),
        "the {} weights in {} need a global scale for each of {} experts", what, f.name, w.experts);
}

bool readable(DType d) { return d == DType::f32 || d == DType::bf16; }

}  // namespace

void check_weights(const MoeSpec& s, const weights::ExpertWeights& w) {
  const int64_t experts = s.locals();
  check_stack(w.up, "up", s, s.inter, s.hidden);
  check_stack(w.down, "down", s, s.hidden, s.inter);
  check(s.gated() != w.gate.empty(), "activation {} {} gate weights", name_of(activation::kActivations, s.act),
        s.gated() ? "needs" : "takes no");
  if (s.gated()) check_stack(w.gate, "gate", s, s.inter, s.hidden);
  if (format::is_static(s.inputs))
    for (float scale : {w.input_scale1, w.input_scale2})
      check(std::isfinite(scale) && scale >= FLT_MIN,
            "the input scale is {} with inputs {}; a positive, normal, finite float is needed", scale,
            name_of(format::kInputFormats, s.inputs));
  check_extra(w.bias_up, "the up bias", s.bias, {experts, s.inter});
  check_extra(w.bias_gate, "the gate bias", s.bias && s.gated(), {experts, s.inter});
  check_extra(w.bias_down, "the down bias", s.bias, {experts, s.hidden});
  check_extra(w.alpha, "alpha", s.act_params, {experts});
  check_extra(w.beta, "beta", s.act_params, {experts});
  check_extra(w.limit, "limit", s.act_params, {experts});
  const auto values = [](const Tensor& t) { return t.empty() ? nullptr : t.as<float>(); };
  activation::check_params(s.act, values(w.alpha), values(w.beta), values(w.limit), experts);
}

void check_args(const MoeSpec& s, const MoeArgs& a) {
  check(a.tokens >= 0, "tokens is {}; it must not be negative", a.tokens);
  if (a.tokens == 0) return;
  check(a.hidden != nullptr && a.output != nullptr, "hidden states or output are null for {} tokens", a.tokens);
  if (s.routed) {
    check(a.topk_ids != nullptr, "the spec says routed, but no top-k ids are given");
    check(readable(a.topk_weights_dtype), "the top-k weights are {}; accepted: float32, bfloat16",
          to_string(a.topk_weights_dtype));
    check(a.logits == nullptr && a.bias == nullptr, "routing logits or a bias are given, but the spec says routed");
  } else {
    check(a.logits != nullptr, "no routing logits are given; set routed in the spec to give top-k ids");
    check(a.topk_ids == nullptr && a.topk_weights == nullptr,
          "top-k ids or weights are given, but the spec does not say routed");
    check(readable(a.logits_dtype) && readable(a.bias_dtype),
          "logits are {} and their bias {}; accepted: float32, bfloat16", to_string(a.logits_dtype),
          to_string(a.bias_dtype));
    check(a.bias == nullptr || routing::takes_bias(s.routing), "a routing bias is given, but routing {} ignores it",
          name_of(routing::kMethods, s.routing));
  }
}

MoeArgs real_args(MoeArgs args) {
  if (args.num_tokens != nullptr) args.tokens = std::clamp<int64_t>(*args.num_tokens, 0, args.tokens);
  args.num_tokens = nullptr;
  return args;
}

void check_no_memory(std::string_view backend, const PrepareOptions& options) {
  check(options.memory.data == nullptr, "memory is given for prepared weights, but backend {} allocates its own",
        backend);
}

void check_workspace(const void* workspace, int64_t size, int64_t tokens, int64_t needed, int alignment) {
  if (needed == 0) return;
  check(workspace != nullptr, "workspace is null; a call of {} tokens needs {} bytes", tokens, needed);
  check(size >= needed, "workspace_size is {}; a call of {} tokens needs {} bytes", size, tokens, needed);
  check(reinterpret_cast<uintptr_t>(workspace) % static_cast<uintptr_t>(alignment) == 0,
        "workspace is not aligned to {} bytes", alignment);
}

}  // namespace sluice::moe
