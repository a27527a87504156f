// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "base/math.h"

namespace sluice {

namespace {
constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;

std::shared_ptr<void> allocate(int64_t bytes) {
  // Large blocks start on a huge page and ask for them: first touch of 4 KiB pages runs at 0.4 GB/s.
  const size_t alignment = bytes >= static_cast<int64_t>(kHugePage) ? kHugePage : kAlignment;
  const size_t size = round_up<size_t>(std::max<int64_t>(bytes, 1), alignment);
  void* p = std::aligned_alloc(alignment, size);
  if (p == nullptr) fail(ErrorCode::out_of_memory, "could not allocate {} bytes", bytes);
  if (alignment == kHugePage) madvise(p, size, MADV_HUGEPAGE);
  return {p, std::free};
}
}  // namespace

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

int64_t elements_of(const Shape& shape) {
  int64_t n = 1;
  for (int64_t d : shape) {
    const auto product = checked_mul(n, d);
    check(product.has_value(), "shape {} has a negative size or more than 2^63 elements", to_string(shape));
    n = *product;
  }
  return n;
}

Tensor::Tensor(DType dtype, Shape shape) : dtype_(dtype), shape_(std::move(shape)), elements_(elements_of(shape_)) {
  const auto bytes = checked_mul(elements_, bytes_of(dtype_));
  check(bytes.has_value(), "shape {} of {} is larger than memory", to_string(shape_), to_string(dtype_));
  auto block = allocate(*bytes);
  data_ = block.get();
  keep_ = std::move(block);
}

Tensor::Tensor(DType dtype, Shape shape, const void* data, std::shared_ptr<const void> keep)
    : dtype_(dtype),
      shape_(std::move(shape)),
      elements_(elements_of(shape_)),
      data_(const_cast<void*>(data)),
      keep_(std::move(keep)) {}

Tensor& Tensor::zero() {
  std::memset(data_, 0, static_cast<size_t>(bytes()));
  return *this;
}

Tensor Tensor::clone() const {
  if (empty()) return {};
  Tensor copy(dtype_, shape_);
  std::memcpy(copy.data_, data_, static_cast<size_t>(bytes()));
  return copy;
}

Tensor Tensor::slice(int64_t i) const {
  Tensor row = rows(i, i + 1);
  row.shape_.erase(row.shape_.begin());
  return row;
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  check(rank() >= 1 && begin >= 0 && begin <= end && end <= dim(0), "rows [{}, {}) of a tensor of shape {}", begin, end,
        to_string(shape_));
  const int64_t row_bytes = dim(0) == 0 ? 0 : bytes() / dim(0);
  Shape shape = shape_;
  shape[0] = end - begin;
  return {dtype_, std::move(shape), static_cast<const std::byte*>(data_) + begin * row_bytes, keep_};
}

Tensor Tensor::reshape(Shape shape) const {
  check(elements_of(shape) == elements_, "shape {} cannot be seen as {}", to_string(shape_), to_string(shape));
  return {dtype_, std::move(shape), data_, keep_};
}

}  // namespace sluice
