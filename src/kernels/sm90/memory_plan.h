// SPDX-License-Identifier: Apache-2.0
// Offsets of parts that follow each other in one block of memory, each aligned to 256 bytes. It holds no memory.
#pragma once

#include "base/math.h"
#include "kernels/sm90/layout.h"

namespace sluice::sm90 {

class MemoryPlan {
 public:
  Span take(int64_t bytes) {
    const Span span{used_, bytes};
    used_ = round_up<int64_t>(used_ + bytes, 256);
    return span;
  }
  MatrixMemory take(const WeightShape& shape) {
    MatrixMemory m;
    m.weights = take(shape.bytes());
    m.row_scale = take(has_row_scale(shape.operand) ? shape.row_scales() * 4 : 0);
    m.block_scale = take(shape.block_scales() * 4);
    return m;
  }
  int64_t used() const { return used_; }

 private:
  int64_t used_ = 0;
};

// The same for the pieces of a call's workspace, as pointers. With a null workspace they are null, and only used()
// means anything.
class WorkspacePlan {
 public:
  explicit WorkspacePlan(void* workspace) : workspace_(static_cast<uint8_t*>(workspace)) {}
  // Null if there are no elements.
  template <class T>
  T* take(int64_t elements) {
    const Span span = plan_.take(elements * static_cast<int64_t>(sizeof(T)));
    return workspace_ == nullptr || elements == 0 ? nullptr : reinterpret_cast<T*>(workspace_ + span.offset);
  }
  int64_t used() const { return plan_.used(); }

 private:
  MemoryPlan plan_;
  uint8_t* workspace_;
};

}  // namespace sluice::sm90
