// SPDX-License-Identifier: Apache-2.0
// Divides a block of memory into arrays. Code that lays out a workspace runs twice: once with a null base to count the
// bytes, once with the memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::kernels::cpu {

class BumpAllocator {
 public:
  // base: null, or 64-byte aligned memory of at least used() bytes, as counted by a run with a null base.
  explicit BumpAllocator(void* base) : base_(static_cast<std::byte*>(base)) {}
  // The next `count` elements, 64-byte aligned and not initialised. Null if the base is null.
  template <class T>
  T* allocate(int64_t count) {
    std::byte* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return reinterpret_cast<T*>(piece);
  }
  int64_t used() const { return used_; }  // bytes

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

}  // namespace sluice::kernels::cpu
