// SPDX-License-Identifier: Apache-2.0
// Memory of a device that a test fills and reads from the host: nothing here reads an address of the device.
//
// What is not set is NaN in float32, bfloat16 and e4m3, and -1 in int32.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include "base/bf16.h"
#include "format/e4m3.h"
#include "ops/matrix.h"
#include "ops/pages.h"
#include "tensor/tensor.h"
#include "tests/ops/reference.h"

namespace sluice::ops {

// Bytes that the host and the device take turns with. Ask for device() before each operation: from then on the device
// holds the newest values, and host() brings them back. Poisoned bands on both sides find writes out of bounds.
class Memory {
 public:
  static constexpr int64_t kBand = Device::kAlignment;  // a multiple of it, so that device() is aligned
  static constexpr std::byte kPoison{0xff};

  Memory(Queue& queue, int64_t bytes)
      : queue_(&queue), image_(static_cast<size_t>(bytes + 2 * kBand), kPoison), device_(allocate()) {}
  Memory(const Memory& other) : queue_(other.queue_), image_(other.fetched()), device_(allocate()) {}
  Memory& operator=(const Memory& other) {
    image_ = other.fetched();
    device_ = allocate();
    host_is_valid_ = true;
    device_is_valid_ = false;
    return *this;
  }
  Memory(Memory&&) = default;
  Memory& operator=(Memory&&) = default;

  int64_t bytes() const { return static_cast<int64_t>(image_.size()) - 2 * kBand; }
  Device& device_of() const { return queue_->device(); }

  void* device() {
    if (!device_is_valid_) {
      queue_->copy(device_.get(), image_.data(), static_cast<int64_t>(image_.size()));
      queue_->wait();
    }
    device_is_valid_ = true;
    host_is_valid_ = false;
    return static_cast<std::byte*>(device_.get()) + kBand;
  }
  const std::byte* host() const { return fetched().data() + kBand; }
  std::byte* host() {
    fetched();
    device_is_valid_ = false;
    return image_.data() + kBand;
  }
  bool same_bytes(const Memory& other) const { return fetched() == other.fetched(); }

 private:
  // Freed when the queue has come past the work that uses it.
  std::shared_ptr<void> allocate() const {
    std::shared_ptr<void> memory = queue_->device().allocate(static_cast<int64_t>(image_.size()));
    void* address = memory.get();
    return {address, [memory = std::move(memory), queue = queue_](void*) {
              try {
                queue->wait();
              } catch (const std::exception& e) {
                ADD_FAILURE() << e.what();
              }
            }};
  }

  const std::vector<std::byte>& fetched() const {
    if (!host_is_valid_) {
      queue_->copy(image_.data(), device_.get(), static_cast<int64_t>(image_.size()));
      queue_->wait();
      host_is_valid_ = true;
      const auto untouched = [](std::byte b) { return b == kPoison; };
      if (!std::all_of(image_.begin(), image_.begin() + kBand, untouched)) ADD_FAILURE() << "a write before the memory";
      if (!std::all_of(image_.end() - kBand, image_.end(), untouched))
        ADD_FAILURE() << "a write after the end of the memory";
    }
    return image_;
  }

  Queue* queue_;
  mutable std::vector<std::byte> image_;
  std::shared_ptr<void> device_;
  mutable bool host_is_valid_ = true;
  bool device_is_valid_ = false;
};

// Memory of the device between poisoned bands, which are looked at when it is freed.
inline std::shared_ptr<void> guarded(Queue& queue, int64_t bytes) {
  auto memory = std::make_shared<Memory>(queue, bytes);
  void* address = memory->device();
  return {address, [memory = std::move(memory)](void*) {
            try {
              static_cast<const Memory&>(*memory).host();
            } catch (const std::exception& e) {
              ADD_FAILURE() << e.what();
            }
          }};
}

// A list of float32, bfloat16, e4m3 or int32 values.
class Values {
 public:
  Values(Queue& queue, DType dtype, int64_t count) : dtype_(dtype), memory_(queue, count * bytes_of(dtype)) {}
  Values(Queue& queue, const std::vector<int32_t>& ints)
      : Values(queue, DType::i32, static_cast<int64_t>(ints.size())) {
    if (!ints.empty()) std::memcpy(memory_.host(), ints.data(), ints.size() * sizeof(int32_t));
  }

  DType dtype() const { return dtype_; }
  int64_t count() const { return memory_.bytes() / bytes_of(dtype_); }
  void set(int64_t i, float v) {
    std::byte* at = memory_.host() + i * bytes_of(dtype_);
    const bf16_t narrow = float_to_bf16(v);
    if (dtype_ == DType::f32)
      std::memcpy(at, &v, sizeof v);
    else if (dtype_ == DType::e4m3)
      *at = std::byte{format::float_to_e4m3(v)};
    else
      std::memcpy(at, &narrow, sizeof narrow);
  }
  float at(int64_t i) const {
    const std::byte* at = memory_.host() + i * bytes_of(dtype_);
    float v = 0;
    bf16_t narrow = 0;
    if (dtype_ == DType::f32) {
      std::memcpy(&v, at, sizeof v);
      return v;
    }
    if (dtype_ == DType::e4m3) return format::e4m3_to_float(std::to_integer<uint8_t>(*at));
    std::memcpy(&narrow, at, sizeof narrow);
    return bf16_to_float(narrow);
  }
  bool untouched(int64_t i) const {
    const std::byte* at = memory_.host() + i * bytes_of(dtype_);
    return std::all_of(at, at + bytes_of(dtype_), [](std::byte b) { return b == Memory::kPoison; });
  }
  Memory& memory() { return memory_; }
  const Memory& memory() const { return memory_; }
  const int32_t* ints() { return static_cast<const int32_t*>(memory_.device()); }
  float* floats() { return static_cast<float*>(memory_.device()); }
  Tensor tensor(Shape shape) { return {dtype_, std::move(shape), memory_.device(), nullptr, memory_.device_of().id()}; }

 private:
  DType dtype_;
  Memory memory_;
};

// Rows of D with `gap` elements before, between and after them: with an odd gap no row is aligned to more than an
// element.
class Rows {
 public:
  Rows(Queue& queue, DType dtype, int64_t rows, int64_t cols, int64_t gap = 3)
      : rows_(rows), cols_(cols), gap_(gap), values_(queue, dtype, gap + rows * (cols + gap)) {}

  DType dtype() const { return values_.dtype(); }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

  Rows& randomize(float deviation = 1.0f, float mean = 0.0f) {
    for (int64_t r = 0; r < rows_; ++r)
      for (int64_t c = 0; c < cols_; ++c) set(r, c, normal(mean, deviation));
    return *this;
  }
  void set(int64_t r, int64_t c, double v) { values_.set(index(r, c), static_cast<float>(v)); }
  double at(int64_t r, int64_t c) const { return values_.at(index(r, c)); }
  void copy_row(int64_t r, const Rows& from, int64_t row) {
    for (int64_t c = 0; c < cols_; ++c) set(r, c, from.at(row, c));
  }

  // For an operation that follows at once (Memory::device).
  Matrix view() {
    auto* data = static_cast<std::byte*>(values_.memory().device()) + gap_ * bytes_of(dtype());
    return {data, dtype(), rows_, cols_, cols_ + gap_};
  }
  Matrix view(int64_t first, int64_t count) {
    Matrix all = view();
    return {all.row(first), all.dtype, count, all.cols, all.stride};
  }
  float* floats() { return static_cast<float*>(view().data); }
  // Rows without gaps, as weights are.
  Tensor tensor() { return tensor({rows_, cols_}); }
  Tensor tensor(Shape shape) {
    check(gap_ == 0, "a tensor has no gaps between its rows; these have {} elements", gap_);
    return values_.tensor(std::move(shape));
  }

  bool same_row(int64_t r, const Rows& other, int64_t row) const {
    const int64_t size = bytes_of(dtype());
    return dtype() == other.dtype() && cols_ == other.cols_ &&
           std::memcmp(values_.memory().host() + index(r, 0) * size,
                       other.values_.memory().host() + other.index(row, 0) * size,
                       static_cast<size_t>(cols_ * size)) == 0;
  }
  bool same_bytes(const Rows& other) const { return values_.memory().same_bytes(other.values_.memory()); }
  bool row_untouched(int64_t r) const {
    for (int64_t c = 0; c < cols_; ++c)
      if (!values_.untouched(index(r, c))) return false;
    return true;
  }
  // Nothing around the rows was written.
  bool gaps_untouched() const {
    for (int64_t i = 0; i < values_.count(); ++i)
      if ((i < gap_ || (i - gap_) % (cols_ + gap_) >= cols_) && !values_.untouched(i)) return false;
    return true;
  }

 private:
  int64_t index(int64_t r, int64_t c) const { return gap_ + r * (cols_ + gap_) + c; }

  int64_t rows_, cols_, gap_;
  Values values_;
};

// Paged memory of some blocks, by slot = block * block_size + offset. Of e4m3 pages set() and at() take and give codes,
// without their scale.
class PagedRows {
 public:
  PagedRows(Queue& queue, DType dtype, int64_t blocks, int64_t block_size, int64_t heads, int64_t width,
            float scale = 1)
      : shape_{nullptr, dtype, blocks, block_size, heads, width, scale},
        values_(queue, dtype, blocks * block_size * heads * width) {}

  Pages view() {
    Pages pages = shape_;
    pages.data = values_.memory().device();
    return pages;
  }
  void set(int64_t slot, int64_t head, int64_t c, double v) {
    values_.set(index(slot, head, c), static_cast<float>(v));
  }
  double at(int64_t slot, int64_t head, int64_t c) const { return values_.at(index(slot, head, c)); }
  bool slot_untouched(int64_t slot) const {
    for (int64_t h = 0; h < shape_.heads; ++h)
      for (int64_t c = 0; c < shape_.width; ++c)
        if (!values_.untouched(index(slot, h, c))) return false;
    return true;
  }
  int64_t slots() const { return shape_.blocks * shape_.block_size; }
  bool same_bytes(const PagedRows& other) const { return values_.memory().same_bytes(other.values_.memory()); }

 private:
  // [blocks][heads][block_size][width]
  int64_t index(int64_t slot, int64_t head, int64_t c) const {
    const int64_t block = slot / shape_.block_size, i = slot % shape_.block_size;
    return ((block * shape_.heads + head) * shape_.block_size + i) * shape_.width + c;
  }

  Pages shape_;
  Values values_;
};

}  // namespace sluice::ops
