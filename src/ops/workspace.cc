// SPDX-License-Identifier: Apache-2.0
#include "ops/workspace.h"

#include <algorithm>

#include "base/math.h"

namespace sluice::ops {

void* Workspace::take_bytes(int64_t bytes) {
  if (allocate_) {
    ++generation_;
    return isolated_.emplace_back(allocate_(bytes)).get();
  }
  bytes = round_up<int64_t>(std::max<int64_t>(bytes, 1), Device::kAlignment);
  while (block_ < blocks_.size() && used_ + bytes > blocks_[block_].bytes()) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) {
    const int64_t size = std::max({bytes, capacity(), int64_t{1} << 16});
    blocks_.emplace_back(device_, DType::u8, Shape{size});
    ++generation_;
  }
  void* p = static_cast<std::byte*>(blocks_[block_].address()) + used_;
  used_ += bytes;
  return p;
}

RoundedRows Workspace::rounded_rows(const Rounding& rounding, int64_t rows, int64_t cols) {
  RoundedRows out{rounding};
  if (!rounding) return out;
  out.codes = take<uint8_t>(rows * cols);
  if (rounding.format == format::InputFormat::fp8_token) out.row_scales = take<float>(rows);
  if (const int64_t bytes = group_scale_bytes(rounding, cols); bytes > 0) out.scales = take_bytes(rows * bytes);
  return out;
}

int64_t Workspace::capacity() const {
  int64_t total = 0;
  for (const Tensor& b : blocks_) total += b.bytes();
  return total;
}

Workspace::Scope::~Scope() {
  w_.block_ = block_;
  w_.used_ = used_;
  w_.isolated_.resize(isolated_);
  if (--w_.depth_ == 0 && w_.blocks_.size() > 1) {
    const int64_t total = w_.capacity();
    w_.blocks_.clear();
    ++w_.generation_;
    try {
      w_.blocks_.emplace_back(w_.device_, DType::u8, Shape{total});
    } catch (...) {  // a destructor must not throw; without a block the next take_bytes() asks again, and says so
    }
  }
}

}  // namespace sluice::ops
