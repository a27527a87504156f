// SPDX-License-Identifier: Apache-2.0
// A layer of another device for callers whose tensors lie on the host: each call copies its inputs over, runs, copies
// the results back and waits. So a model on the CPU can run its experts on a GPU.
#pragma once

#include <mutex>

#include "moe/backend.h"

namespace sluice::moe {

// The device's memory for one staged call. The layers of a model share one: it grows to the largest call, not to the
// number of layers times that (58 layers of DeepSeek-V3 at 512 tokens would hold 7 GB).
class Staging {
 public:
  explicit Staging(std::unique_ptr<Device> device);

  Device& device() { return *device_; }
  Queue& queue() { return *queue_; }

 private:
  friend class StagedLayer;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Queue> queue_;
  std::mutex mutex_;
  Tensor memory_;  // u8
};

class StagedLayer : public MoeLayer {
 public:
  // `layer` runs on staging->device().
  StagedLayer(std::unique_ptr<MoeLayer> layer, std::shared_ptr<Staging> staging);

  const MoeSpec& spec() const override { return layer_->spec(); }
  int64_t weight_bytes() const override { return layer_->weight_bytes(); }
  int64_t workspace_bytes(int64_t) const override { return 0; }  // the workspace is on the device
  bool row_invariant() const override { return layer_->row_invariant(); }
  void run(Context& ctx, const MoeArgs& args) const override;
  void refit(Context& ctx, const weights::ExpertWeights& w) override;

 private:
  std::shared_ptr<Staging> staging_;  // outlives the layer, whose memory is of its device
  std::unique_ptr<MoeLayer> layer_;
};

}  // namespace sluice::moe
