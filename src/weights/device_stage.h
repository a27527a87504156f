// SPDX-License-Identifier: Apache-2.0
// Weights made in the memory of a GPU, for loaders whose model runs there: neither a converted copy of them nor random
// ones ever lie on the host. ops::make_device_stage() has the implementation.
#pragma once

#include <span>

#include "weights/dummy.h"
#include "weights/quant_tensor.h"

namespace sluice::weights {

// Work is enqueued on one queue. One caller at a time.
class DeviceStage {
 public:
  virtual ~DeviceStage() = default;

  // Memory of the device, not initialised. It is used again, in queue order, when the tensor is gone.
  virtual Tensor make(DType dtype, Shape shape) = 0;
  // Bytes that make() can still give.
  virtual int64_t room() = 0;
  // out bf16 [E, ..]: value i of matrix e is value e * stride + first + i of the range.
  virtual void fill_dummy(Tensor& out, const DummyRange& range, int64_t first, int64_t stride) = 0;
  struct Copy {
    void* to = nullptr;  // on the device
    const void* from = nullptr;
    int64_t bytes = 0;
  };
  // Copies host memory, which may be a mapped file that is not in memory yet, by several threads through small staging
  // buffers. Returns when all is there. What is overwritten may be in use by work enqueued before.
  virtual void upload(std::span<const Copy> copies) = 0;
  // Whether there is a NaN among e4m3 codes on the device. Waits for the answer.
  virtual bool has_nan(const Tensor& codes) = 0;
  // As weights::quantize(), bit for bit, of bf16 on the device. Codes and scales stay there, but for the scales of
  // whole matrices (fp8_tensor, global scales), which come to the host and are waited for.
  virtual QuantTensor quantize(format::Format format, const QuantTensor& w) = 0;
};

}  // namespace sluice::weights
