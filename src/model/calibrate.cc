// SPDX-License-Identifier: Apache-2.0
#include "model/calibrate.h"

#include <algorithm>

#include "model/windows.h"

namespace sluice::model {

namespace {
struct Recorder : Observer {
  weights::ActivationObserver recorded;
  weights::ActivationObserver* activations() override { return &recorded; }
};
}  // namespace

std::map<std::string, float> calibrate(Context& ctx, const Model& model, std::span<const int32_t> ids, bool head,
                                       int64_t window) {
  check(!ids.empty(), "the calibration text has no tokens");
  if (window == 0) window = std::min<int64_t>(512, model.info().max_positions);
  Recorder recorder;
  run_windows(ctx, model, ids, window, head, &recorder, "calibrating", [](const WindowPiece&) {});
  return recorder.recorded.amax();
}

}  // namespace sluice::model
