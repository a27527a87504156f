// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "device/context.h"
#include "weights/device_stage.h"
#include "weights/scratch_tensors.h"

namespace sluice::ops::sm90 {

class Sm90Stage : public weights::DeviceStage {
 public:
  explicit Sm90Stage(Context& ctx) : ctx_(ctx), scratch_(ctx.device()) {}

  Tensor make(DType dtype, Shape shape) override { return scratch_.make(dtype, std::move(shape)); }
  int64_t room() override { return ctx_.device().memory().free + scratch_.unused_bytes(); }
  void fill_dummy(Tensor& out, const weights::DummyRange& range, int64_t first, int64_t stride) override;
  void upload(std::span<const Copy> copies) override;
  bool has_nan(const Tensor& codes) override;
  weights::QuantTensor quantize(format::Format format, const weights::QuantTensor& w) override;

 private:
  int index() const { return ctx_.device().id().index; }
  void* stream() const { return ctx_.queue.stream(); }

  Context& ctx_;
  weights::ScratchTensors scratch_;
  // One of each reader; made with the first upload.
  std::vector<std::unique_ptr<Queue>> queues_;
  std::shared_ptr<void> staging_;
  int64_t piece_ = 0;  // bytes of a reader's part of staging_
};

}  // namespace sluice::ops::sm90
