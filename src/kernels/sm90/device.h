// SPDX-License-Identifier: Apache-2.0
// Device memory with an owner, and CUDA errors as exceptions. No CUDA header, so any host file may include it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace sluice::sm90 {

using Stream = void*;  // a cudaStream_t; null is the default stream

// Throws Error (cuda) naming the call unless `status` (a cudaError_t) is success.
void check_cuda(int status, const char* call);
// Throws the error of a launch just made.
void check_launch(const char* kernel);

// Empty when the current device can run this backend, else the sentence why not.
std::string device_problem();
int multiprocessors();  // of the current device
int current_device();
bool in_device_memory(const void* pointer);

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

// Memory of the device that is current when it is made.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(int64_t bytes);  // not initialised
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

void copy_to_device(void* device, const void* host, int64_t bytes, Stream stream);
void copy_to_host(void* host, const void* device, int64_t bytes, Stream stream);
void synchronize(Stream stream);

}  // namespace sluice::sm90
