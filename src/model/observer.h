// SPDX-License-Identifier: Apache-2.0
// For looking inside a run: goldens, calibration, bug reports. Costs nothing when there is none.
#pragma once

#include <span>
#include <string_view>

#include "ops/matrix.h"
#include "weights/calibration.h"

namespace sluice::model {

// One MoE block in one step. D = the run's type.
struct MoeView {
  int layer = 0;
  ops::ConstMatrix input;          // D [R, hidden], after the norm
  ops::ConstMatrix router_logits;  // [R, E]
  std::span<const int32_t> ids;    // [R, K], descending by the method's key
  std::span<const float> weights;  // [R, K]
  ops::ConstMatrix routed;         // D [R, hidden], the weighted sum (after a latent projection back)
  ops::ConstMatrix output;         // D [R, hidden], with the shared experts
};

class Observer {
 public:
  virtual ~Observer() = default;
  // The residual stream: index 0 is the embedding, i + 1 what layer i leaves. D [R, hidden].
  virtual void layer(int /*index*/, ops::ConstMatrix /*hidden*/) {}
  virtual void moe(const MoeView& /*view*/) {}
  // Where the inputs of linears and experts are recorded, by their checkpoint names; null: not wanted.
  virtual weights::ActivationObserver* activations() { return nullptr; }
};

}  // namespace sluice::model
