// SPDX-License-Identifier: Apache-2.0
// Scratch memory of a device that grows once and is then reused: after the largest batch has been seen nothing is
// allocated.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ops/rounded_rows.h"
#include "tensor/tensor.h"

namespace sluice::ops {

class Workspace {
 public:
  explicit Workspace(Device& device = host_device()) : device_(device) {}

  // Device::kAlignment-byte aligned, not initialised; valid until the Scope that it was taken in ends.
  template <class T>
  T* take(int64_t count) {
    return static_cast<T*>(take_bytes(count * static_cast<int64_t>(sizeof(T))));
  }
  Matrix matrix(DType dtype, int64_t rows, int64_t cols) {
    return {take_bytes(rows * cols * bytes_of(dtype)), dtype, rows, cols, cols};
  }
  // What a norm fills; without memory for a plain rounding.
  RoundedRows rounded_rows(const Rounding& rounding, int64_t rows, int64_t cols);
  void* take_bytes(int64_t bytes);
  int64_t capacity() const;
  // Changes whenever memory was allocated or freed: addresses that were taken before may not come again.
  uint64_t generation() const { return generation_; }

  // For tests of operations: what is taken from now on is an allocation of its own, whose end `allocate` can watch. In
  // blocks a write beyond what was taken falls into memory that is there, and goes unnoticed.
  using Allocate = std::function<std::shared_ptr<void>(int64_t bytes)>;
  void isolate(Allocate allocate) { allocate_ = std::move(allocate); }

  // Gives back what was taken while it lived. Scopes nest like blocks.
  class Scope {
   public:
    explicit Scope(Workspace& w) : w_(w), block_(w.block_), used_(w.used_), isolated_(w.isolated_.size()) {
      ++w_.depth_;
    }
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Workspace& w_;
    size_t block_;
    int64_t used_;
    size_t isolated_;
  };

 private:
  Device& device_;
  // Blocks never move while in use; when the outermost Scope ends several become one.
  std::vector<Tensor> blocks_;
  size_t block_ = 0;  // the block being filled
  int64_t used_ = 0;  // of it
  int depth_ = 0;
  uint64_t generation_ = 0;
  Allocate allocate_;
  std::vector<std::shared_ptr<void>> isolated_;  // by allocate_
};

}  // namespace sluice::ops
