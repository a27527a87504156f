// SPDX-License-Identifier: Apache-2.0
// A contiguous row-major block of host memory with a type and a shape: owned, shared or mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "tensor/dtype.h"

namespace sluice {

using Shape = std::vector<int64_t>;
std::string to_string(const Shape& shape);  // "[2, 96]"
int64_t elements_of(const Shape& shape);    // throws on overflow or a negative size

// Copying a Tensor copies the handle; the bytes live as long as the last handle.
class Tensor {
 public:
  Tensor() = default;
  // Fresh, 64-byte aligned, NOT initialised: fill it or call zero().
  Tensor(DType dtype, Shape shape);
  // A view of memory that `keep` owns (a file mapping, another tensor); may be read-only.
  Tensor(DType dtype, Shape shape, const void* data, std::shared_ptr<const void> keep);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t dim(int i) const { return shape_.at(i < 0 ? i + shape_.size() : static_cast<size_t>(i)); }
  int rank() const { return static_cast<int>(shape_.size()); }
  int64_t elements() const { return elements_; }
  int64_t bytes() const { return elements_ * bytes_of(dtype_); }
  bool empty() const { return data_ == nullptr; }  // no tensor at all, as opposed to zero elements

  const void* data() const { return data_; }
  void* data() { return data_; }
  // Typed access; T's size must equal the element size.
  template <class T>
  T* as() {
    check(sizeof(T) == static_cast<size_t>(bytes_of(dtype_)), "a tensor of {} was read as {}-byte elements",
          to_string(dtype_), sizeof(T));
    return static_cast<T*>(data_);
  }
  template <class T>
  const T* as() const {
    return const_cast<Tensor*>(this)->as<T>();
  }

  Tensor& zero();
  Tensor clone() const;
  // The i-th slice of the first dimension, without copying.
  Tensor slice(int64_t i) const;
  // Rows [begin, end) of the first dimension, without copying.
  Tensor rows(int64_t begin, int64_t end) const;
  // The same bytes with another shape of as many elements.
  Tensor reshape(Shape shape) const;

 private:
  DType dtype_ = DType::f32;
  Shape shape_;
  int64_t elements_ = 0;
  void* data_ = nullptr;
  std::shared_ptr<const void> keep_;
};

}  // namespace sluice
