// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor.h"

#include <cstring>

#include "base/math.h"

namespace sluice {

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

int64_t elements_of(const Shape& shape) {
  int64_t n = 1;
  for (int64_t d : shape) {
    const auto product = checked_mul(n, d);
    if (!product)  // check() would write out the whole shape for each of its sizes
      fail(ErrorCode::invalid_argument, "shape {} has a negative size or more than 2^63 elements", to_string(shape));
    n = *product;
  }
  return n;
}

Tensor::Tensor(DType dtype, Shape shape) : Tensor(host_device(), dtype, std::move(shape)) {}

Tensor::Tensor(Device& device, DType dtype, Shape shape)
    : dtype_(dtype), shape_(std::move(shape)), elements_(elements_of(shape_)), device_(device.id()) {
  const auto bytes = checked_mul(elements_, bytes_of(dtype_));
  check(bytes.has_value(), "shape {} of {} is larger than memory", to_string(shape_), to_string(dtype_));
  auto block = device.allocate(*bytes);
  data_ = block.get();
  keep_ = std::move(block);
}

Tensor::Tensor(DType dtype, Shape shape, const void* data, std::shared_ptr<const void> keep, DeviceId device)
    : dtype_(dtype),
      shape_(std::move(shape)),
      elements_(elements_of(shape_)),
      data_(const_cast<void*>(data)),
      device_(device),
      keep_(std::move(keep)) {}

Tensor& Tensor::zero() {
  std::memset(data(), 0, static_cast<size_t>(bytes()));
  return *this;
}

Tensor Tensor::clone() const {
  if (empty()) return {};
  Tensor copy(dtype_, shape_);
  std::memcpy(copy.data(), data(), static_cast<size_t>(bytes()));
  return copy;
}

Tensor Tensor::to(DeviceId device, Queue& queue) const {
  if (empty()) return {};
  const DeviceId here = queue.device().id();
  if (device != here && !device.is_host())
    fail(ErrorCode::internal, "a copy to {} was enqueued on {}", to_string(device), to_string(here));
  if (device_ != here && !device_.is_host())
    fail(ErrorCode::internal, "a copy from {} was enqueued on {}", to_string(device_), to_string(here));
  Tensor copy(device.is_host() ? host_device() : queue.device(), dtype_, shape_);
  queue.copy(copy.data_, data_, bytes());
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
  return {dtype_, std::move(shape), static_cast<const std::byte*>(data_) + begin * row_bytes, keep_, device_};
}

Tensor Tensor::reshape(Shape shape) const {
  check(elements_of(shape) == elements_, "shape {} cannot be seen as {}", to_string(shape_), to_string(shape));
  return {dtype_, std::move(shape), data_, keep_, device_};
}

}  // namespace sluice
