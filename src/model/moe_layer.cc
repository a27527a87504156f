// SPDX-License-Identifier: Apache-2.0
#include "model/moe_layer.h"

#include <cstring>

#include "ops/elementwise.h"

namespace sluice::model {

void MoeLayer::run(const Step& step, ops::ConstMatrix x, ops::Matrix y) const {
  ops::Workspace::Scope scope(step.workspace);
  const MoeSpec& spec = experts->spec();
  const ops::Matrix logits = router_floats ? step.floats(spec.experts) : step.matrix(spec.experts);
  router.run(step, x, logits);

  ops::ConstMatrix input = x;
  ops::Matrix routed = y;
  if (latent_in) {
    const ops::Matrix latent = step.matrix(latent_in->rows());
    latent_in->run(step, x, latent);
    input = latent;
    routed = step.matrix(latent_in->rows());
  }
  moe::MoeArgs args;
  args.tokens = step.rows();
  args.hidden = input.data;
  args.logits = logits.data;
  args.logits_dtype = logits.dtype;
  if (!router_bias.empty()) args.bias = router_bias.data();
  args.output = routed.data;
  args.workspace = step.workspace.take_bytes(experts->workspace_bytes(args.tokens));
  const auto choices = args.tokens * spec.top_k;
  moe::Trace trace;
  if (step.observer != nullptr) {
    args.chosen_ids = step.workspace.take<int32_t>(choices);
    args.chosen_weights = step.workspace.take<float>(choices);
    if (step.observer->activations() != nullptr) args.trace = &trace;
  }
  experts->run(step.ctx, args);
  if (args.trace != nullptr && args.tokens > 0 && trace.input.empty())
    fail(ErrorCode::unsupported, "this MoE backend keeps no traces, which calibration reads; cpu and reference do");
  if (latent_out) latent_out->run(step, routed, y);

  ops::Matrix before_shared = y;
  if (step.observer != nullptr && shared) {
    before_shared = step.matrix(y.cols);
    for (int64_t r = 0; r < y.rows; ++r)
      std::memcpy(before_shared.row(r), y.row(r), static_cast<size_t>(y.cols * bytes_of(y.dtype)));
  }
  if (shared) {
    const ops::Matrix extra = step.matrix(y.cols);
    shared->run(step, x, extra);
    ops::add_to(step.ctx, y, extra);
  }
  if (step.observer == nullptr) return;
  const auto n = static_cast<size_t>(choices);
  step.observer->moe({index, x, logits, {args.chosen_ids, n}, {args.chosen_weights, n}, before_shared, y});
  observe(step, trace);
}

void MoeLayer::observe(const Step& step, const moe::Trace& trace) const {
  weights::ActivationObserver* activations = step.observer->activations();
  if (activations == nullptr) return;
  const weights::ExpertInputs names = weights::expert_inputs(experts_name);
  activations->observe(names.gemm1, trace.input.as<float>(), trace.input.elements());
  activations->observe(names.gemm2, trace.activated.as<float>(), trace.activated.elements());
}

int64_t MoeLayer::weight_bytes() const {
  return router.weight_bytes() + experts->weight_bytes() + (shared ? shared->weight_bytes() : 0) +
         (latent_in ? latent_in->weight_bytes() + latent_out->weight_bytes() : 0);
}

}  // namespace sluice::model
