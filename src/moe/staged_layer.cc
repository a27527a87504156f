// SPDX-License-Identifier: Apache-2.0
#include "moe/staged_layer.h"

#include <algorithm>
#include <vector>

#include "base/math.h"
#include "moe/check.h"

namespace sluice::moe {

namespace {
struct Copy {
  void* host;
  void* device;
  int64_t bytes;
};

// A call's tensors in device memory from `base` on; with `base` null only their size counts.
struct Placement {
  MoeArgs args;  // of the device
  std::vector<Copy> inputs, outputs;
  int64_t bytes = 0;
};

Placement place(const MoeLayer& layer, const MoeArgs& host, std::byte* base) {
  const MoeSpec& s = layer.spec();
  const int64_t tokens = host.tokens, choices = tokens * s.top_k, element = bytes_of(s.dtype);
  Placement p;
  p.args = host;
  const auto take = [&](int64_t bytes) {
    std::byte* at = base == nullptr ? nullptr : base + p.bytes;
    p.bytes += round_up<int64_t>(bytes, Device::kAlignment);
    return at;
  };
  const auto move = [&](auto*& pointer, int64_t bytes, std::vector<Copy>& list) {
    if (pointer == nullptr) return;
    std::byte* at = take(bytes);
    list.push_back({const_cast<void*>(static_cast<const void*>(pointer)), at, bytes});
    pointer = reinterpret_cast<std::decay_t<decltype(pointer)>>(at);
  };
  move(p.args.hidden, tokens * s.hidden * element, p.inputs);
  move(p.args.num_tokens, 4, p.inputs);
  move(p.args.logits, tokens * s.experts * bytes_of(host.logits_dtype), p.inputs);
  move(p.args.bias, s.experts * bytes_of(host.bias_dtype), p.inputs);
  move(p.args.topk_ids, choices * 4, p.inputs);
  move(p.args.topk_weights, choices * bytes_of(host.topk_weights_dtype), p.inputs);
  move(p.args.output, (finalizes(s, host) ? tokens : choices) * s.hidden * element, p.outputs);
  move(p.args.chosen_ids, choices * 4, p.outputs);
  move(p.args.chosen_weights, choices * 4, p.outputs);
  p.args.workspace_size = layer.workspace_bytes(tokens);
  p.args.workspace = take(p.args.workspace_size);
  return p;
}
}  // namespace

Staging::Staging(std::unique_ptr<Device> device) : device_(std::move(device)), queue_(device_->make_queue()) {}

StagedLayer::StagedLayer(std::unique_ptr<MoeLayer> layer, std::shared_ptr<Staging> staging)
    : staging_(std::move(staging)), layer_(std::move(layer)) {}

void StagedLayer::run(Context& ctx, const MoeArgs& args) const {
  check_args(spec(), args);
  if (args.tokens == 0) return;
  Staging& staging = *staging_;
  const std::lock_guard<std::mutex> lock(staging.mutex_);
  const int64_t bytes = place(*layer_, args, nullptr).bytes;
  if (staging.memory_.empty() || staging.memory_.bytes() < bytes) {
    staging.memory_ = {};  // before the larger one is allocated
    staging.memory_ = Tensor(staging.device(), DType::u8, {bytes});
  }
  const Placement p = place(*layer_, args, static_cast<std::byte*>(staging.memory_.address()));
  Queue& queue = staging.queue();
  for (const Copy& c : p.inputs) queue.copy(c.device, c.host, c.bytes);
  // Rows beyond num_tokens keep what they had.
  if (args.num_tokens != nullptr)
    for (const Copy& c : p.outputs) queue.copy(c.device, c.host, c.bytes);
  Context on_device{ctx.pool, ctx.log, ctx.progress, queue};
  layer_->run(on_device, p.args);
  for (const Copy& c : p.outputs) queue.copy(c.host, c.device, c.bytes);
  queue.wait();
}

void StagedLayer::refit(Context& ctx, const weights::ExpertWeights& w) {
  const std::lock_guard<std::mutex> lock(staging_->mutex_);
  Context on_device{ctx.pool, ctx.log, ctx.progress, staging_->queue()};
  layer_->refit(on_device, w);
  staging_->queue().wait();
}

}  // namespace sluice::moe
