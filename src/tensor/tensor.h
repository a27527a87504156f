// SPDX-License-Identifier: Apache-2.0
// A contiguous row-major block of a device's memory with a type and a shape: owned, shared or mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/device.h"
#include "tensor/dtype.h"

namespace sluice {

using Shape = std::vector<int64_t>;
std::string to_string(const Shape& shape);  // "[2, 96]"
int64_t elements_of(const Shape& shape);    // throws on overflow or a negative size

// Copying a Tensor copies the handle; the bytes live as long as the last handle.
class Tensor {
 public:
  Tensor() = default;
  // Fresh host memory, Device::kAlignment-byte aligned, NOT initialised: fill it or call zero().
  Tensor(DType dtype, Shape shape);
  // The same on a device. Throws out_of_memory.
  Tensor(Device& device, DType dtype, Shape shape);
  // A view of memory that `keep` owns (a file mapping, another tensor); may be read-only.
  Tensor(DType dtype, Shape shape, const void* data, std::shared_ptr<const void> keep, DeviceId device = {});

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t dim(int i) const { return shape_.at(i < 0 ? i + shape_.size() : static_cast<size_t>(i)); }
  int rank() const { return static_cast<int>(shape_.size()); }
  int64_t elements() const { return elements_; }
  int64_t bytes() const { return elements_ * bytes_of(dtype_); }
  bool empty() const { return data_ == nullptr; }  // no tensor at all, as opposed to zero elements

  DeviceId device() const { return device_; }
  // The address in the memory of device(), which only work on that device may read.
  void* address() { return data_; }
  const void* address() const { return data_; }

  // Host memory. Throws internal for a tensor on another device: its address means nothing here.
  const void* data() const { return host_address(); }
  void* data() { return host_address(); }
  // Typed access; T's size must equal the element size.
  template <class T>
  T* as() {
    check(sizeof(T) == static_cast<size_t>(bytes_of(dtype_)), "a tensor of {} was read as {}-byte elements",
          to_string(dtype_), sizeof(T));
    return static_cast<T*>(host_address());
  }
  template <class T>
  const T* as() const {
    return const_cast<Tensor*>(this)->as<T>();
  }

  Tensor& zero();  // host memory only, as is clone()
  Tensor clone() const;
  // A copy in the memory of `queue`'s device, or, from there, of the host: enqueued, not waited for. This tensor must
  // stay as it is until the queue has come past the copy.
  Tensor to(DeviceId device, Queue& queue) const;
  // The i-th slice of the first dimension, without copying.
  Tensor slice(int64_t i) const;
  // Rows [begin, end) of the first dimension, without copying.
  Tensor rows(int64_t begin, int64_t end) const;
  // The same bytes with another shape of as many elements.
  Tensor reshape(Shape shape) const;

 private:
  void* host_address() const {
    if (!device_.is_host()) fail(ErrorCode::internal, "a tensor on {} was read as host memory", to_string(device_));
    return data_;
  }

  DType dtype_ = DType::f32;
  Shape shape_;
  int64_t elements_ = 0;
  void* data_ = nullptr;
  DeviceId device_;
  std::shared_ptr<const void> keep_;
};

}  // namespace sluice
