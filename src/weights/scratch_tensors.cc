// SPDX-License-Identifier: Apache-2.0
#include "weights/scratch_tensors.h"

#include <algorithm>
namespace sluice::weights {

namespace {
constexpr int64_t kSmall = int64_t{8} << 20;  // bytes that are not worth keeping
}

Tensor ScratchTensors::make(DType dtype, Shape shape) {
  const int64_t bytes = elements_of(shape) * bytes_of(dtype);
  if (device_->id().is_host() && bytes < kSmall) return {dtype, std::move(shape)};
  const auto is_free = [](const Block& b) { return b.memory.use_count() == 1; };
  // The smallest that is large enough.
  const Block* best = nullptr;
  for (const Block& b : blocks_)
    if (is_free(b) && b.bytes >= bytes && (best == nullptr || b.bytes < best->bytes)) best = &b;
  if (best == nullptr) {
    blocks_.erase(std::remove_if(blocks_.begin(), blocks_.end(), is_free), blocks_.end());
    best = &blocks_.emplace_back(Block{device_->allocate(bytes), bytes});
  }
  return {dtype, std::move(shape), best->memory.get(), best->memory, device_->id()};
}

int64_t ScratchTensors::unused_bytes() const {
  int64_t bytes = 0;
  for (const Block& b : blocks_) bytes += b.memory.use_count() == 1 ? b.bytes : 0;
  return bytes;
}

}  // namespace sluice::weights
