// SPDX-License-Identifier: Apache-2.0
#include "model/moe_block.h"

namespace sluice::model {

ops::Rounding MoeBlock::rounding(int64_t rows) const {
  if (latent_in) return latent_in->rounding(rows);
  return shared ? shared->rounding(rows) : ops::Rounding{};
}

ops::Change MoeBlock::run(const ForwardContext& forward, const ops::LinearInput& x, ops::Matrix given, ops::Matrix y,
                          ops::Matrix more, const Unsummed& unsummed) const {
  ops::Workspace::Scope scope(forward.ops.workspace());
  ops::Workspace& workspace = forward.ops.workspace();
  const MoeSpec& spec = experts->spec();
  const bool multiplied = given.data != nullptr;
  ops::Matrix logits = multiplied ? given : this->logits(forward);
  if (!multiplied) router.run(forward, x, logits);
  if (random_routing) logits = forward.random_logits.rows_from(number * forward.rows(), forward.rows());

  ops::ConstMatrix input = x.rows;
  ops::Matrix routed = y;
  if (latent_in) {
    const ops::Matrix latent = forward.matrix(latent_in->rows());
    latent_in->run(forward, x, latent);
    input = latent;
    routed = forward.matrix(latent_in->rows());
  }
  moe::MoeArgs args;
  args.tokens = forward.rows();
  args.num_tokens = forward.batch.num_rows;  // rows of no sequence would read experts that nobody else needs
  args.hidden = input.data;
  args.logits = logits.data;
  args.logits_dtype = logits.dtype;
  if (!router_bias.empty() && !random_routing) args.bias = router_bias.address();
  args.output = routed.data;
  args.workspace_size = experts->workspace_bytes(args.tokens);
  args.workspace = workspace.take_bytes(args.workspace_size);
  const auto choices = args.tokens * spec.top_k;
  moe::Trace trace;
  if (forward.observer != nullptr) {
    args.chosen_ids = workspace.take<int32_t>(choices);
    args.chosen_weights = workspace.take<float>(choices);
    if (forward.observer->activations() != nullptr) args.trace = &trace;
  }
  const bool sums = unsummed.results.data == nullptr;
  if (!sums) {
    args.finalize = false;
    args.output = unsummed.results.data;
    args.chosen_weights = unsummed.weights;
  }
  experts->run(forward.ops.ctx(), args);
  if (args.trace != nullptr && args.tokens > 0 && trace.input.empty())
    fail(ErrorCode::unsupported, "this MoE backend keeps no traces, which calibration reads; cpu and reference do");
  if (latent_out) latent_out->run(forward, routed, y);

  if (shared) shared->run(forward, x, more);
  if (!sums) {
    const ops::ExpertResults results{unsummed.results.data, spec.weight_on_input ? nullptr : unsummed.weights,
                                     forward.batch.num_rows, spec.top_k};
    return {results, shared ? ops::ConstMatrix(more) : ops::ConstMatrix()};
  }
  if (forward.observer == nullptr) return shared ? ops::Change(y, more) : y;
  ops::Matrix before_shared = y;
  if (shared) {
    before_shared = forward.matrix(y.cols);
    forward.ops.copy(y, before_shared);
    forward.ops.add(y, more);
  }
  const auto n = static_cast<size_t>(choices);
  forward.observer->moe({index, x.rows, logits, {args.chosen_ids, n}, {args.chosen_weights, n}, before_shared, y});
  observe(forward, trace);
  return y;
}

void MoeBlock::observe(const ForwardContext& forward, const moe::Trace& trace) const {
  weights::ActivationObserver* activations = forward.observer->activations();
  if (activations == nullptr) return;
  const weights::ExpertInputs names = weights::expert_inputs(experts_name);
  activations->observe(names.gemm1, trace.input.as<float>(), trace.input.elements());
  activations->observe(names.gemm2, trace.activated.as<float>(), trace.activated.elements());
}

int64_t MoeBlock::weight_bytes() const {
  return router.weight_bytes() + experts->weight_bytes() + (shared ? shared->weight_bytes() : 0) +
         (latent_in ? latent_in->weight_bytes() + latent_out->weight_bytes() : 0);
}

}  // namespace sluice::model
