// SPDX-License-Identifier: Apache-2.0
// Device memory with an owner, and CUDA errors as exceptions. No CUDA header, so any host file may include it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/sm90/layout.h"

namespace sluice::sm90 {

using Stream = void*;  // a cudaStream_t; null is the default stream

// Throws Error (cuda) naming the call unless `status` (a cudaError_t) is success.
void check_cuda(int status, const char* call);

// Empty when the current device can run this backend, else the sentence why not.
std::string device_problem();
int multiprocessors();  // of the current device
int current_device();

// What memory a pointer points to, as the driver says.
struct MemoryPlace {
  bool on_device = false, everywhere = false;  // everywhere: managed memory
  int device = 0;                              // whose, where on_device
};
MemoryPlace place_of(const void* pointer);
// Whether kernels on `device` read it in place; false: it must be copied from the host. Memory of another device
// throws, naming `what` and both devices: without peer access it cannot be read, and with it every read would cross the
// bus.
bool read_in_place(const MemoryPlace& place, int device, std::string_view what);

// Memory of the caller on an object's device, aligned to 256 bytes, that outlives the object; written in the order of
// `stream`. No data: the object allocates.
struct CallerMemory {
  void* data = nullptr;
  int64_t size = 0;
  Stream stream = nullptr;
};

// Makes `device` current for its scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_;
};

// Memory of the device that is current when it is made, or a part of memory that somebody else owns.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(int64_t bytes);  // not initialised
  DeviceBuffer(const DeviceBuffer& of, Span part)
      : data_(of.as<char>() + part.offset), bytes_(part.bytes), view_(true) {}
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_), view_(other.view_) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(view_, other.view_);
    return *this;
  }
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  friend DeviceBuffer device_memory(const CallerMemory& given, int64_t needed);
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  bool view_ = false;
};

// The caller's memory, if it is given, is on the current device, aligned and large enough; else as much of our own.
DeviceBuffer device_memory(const CallerMemory& given, int64_t needed);

// Page-locked `host` memory is read in the stream's order and must not change until then; other memory is read before
// this returns.
void copy_to_device(void* device, const void* host, int64_t bytes, Stream stream);
// Of a caller's small tensor: `host` may change as soon as this returns, page-locked or not.
void copy_to_device_now(void* device, const void* host, int64_t bytes, Stream stream);
void copy_to_host(void* host, const void* device, int64_t bytes, Stream stream);
void synchronize(Stream stream);

}  // namespace sluice::sm90
