// SPDX-License-Identifier: Apache-2.0
// Tensors whose memory is used again after they are gone. Experts that are quantised while loading, or that cannot be
// packed from where the file has them, lie in a stack until they are packed. Memory that the kernel has to zero page by
// page costs more than the copy (57 % of a load of 2.5 GB from the page cache), so the next layer's stack takes the
// same pages.
#pragma once

#include <memory>
#include <vector>

#include "device/device.h"
#include "tensor/tensor.h"

namespace sluice::weights {

// For one thread; the tensors themselves may go anywhere. On a GPU all work on them is enqueued on one queue, so that
// what a tensor's successor holds comes after what it held.
class ScratchTensors {
 public:
  explicit ScratchTensors(Device& device = host_device()) : device_(&device) {}
  // Not initialised. Small ones on the host are ordinary tensors.
  Tensor make(DType dtype, Shape shape);
  int64_t unused_bytes() const;  // kept for later tensors

 private:
  struct Block {
    std::shared_ptr<void> memory;  // used by this object alone: free
    int64_t bytes;
  };
  Device* device_;
  std::vector<Block> blocks_;
};

}  // namespace sluice::weights
