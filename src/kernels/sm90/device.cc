// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/device.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "base/error.h"
#include "device/cuda.h"

namespace sluice::sm90 {

void check_cuda(int status, const char* call) {
  if (status == cudaSuccess) return;
  const auto error = static_cast<cudaError_t>(status);
  fail(error == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::cuda, "{}: {} ({})", call,
       cudaGetErrorString(error), cudaGetErrorName(error));
}

std::string device_problem() {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) cudaGetLastError();  // cuda_device_supported() says what is wrong
  return cuda_device_supported(device).reason;
}

int multiprocessors() {
  int device = 0, count = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return count;
}

int current_device() {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

MemoryPlace place_of(const void* pointer) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, pointer) != cudaSuccess) {
    cudaGetLastError();
    return {};
  }
  return {attributes.type == cudaMemoryTypeDevice, attributes.type == cudaMemoryTypeManaged, attributes.device};
}

bool read_in_place(const MemoryPlace& place, int device, std::string_view what) {
  if (place.everywhere) return true;
  if (!place.on_device) return false;
  check(place.device == device, "{} are in the memory of device {}; accepted: memory of device {} or of the host", what,
        place.device, device);
  return true;
}

DeviceGuard::DeviceGuard(int device) : before_(current_device()) {
  if (device != before_) check_cuda(cudaSetDevice(device), "cudaSetDevice");
}
DeviceGuard::~DeviceGuard() { cudaSetDevice(before_); }

DeviceBuffer::DeviceBuffer(int64_t bytes) : bytes_(bytes) {
  if (bytes <= 0) return;
  const cudaError_t status = cudaMalloc(&data_, static_cast<size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    fail(ErrorCode::out_of_memory, "could not allocate {} bytes on cuda:{}, which has {} of {} bytes free", bytes,
         current_device(), free, total);
  }
  check_cuda(status, "cudaMalloc");
}
DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr && !view_) cudaFree(data_);
}

DeviceBuffer device_memory(const CallerMemory& given, int64_t needed) {
  if (given.data == nullptr) return DeviceBuffer(needed);
  check(given.size >= needed, "memory_size is {}; {} bytes are needed", given.size, needed);
  check(reinterpret_cast<uintptr_t>(given.data) % 256 == 0, "memory is not aligned to 256 bytes");
  const MemoryPlace place = place_of(given.data);
  const int device = current_device();
  check(place.everywhere || (place.on_device && place.device == device), "memory is {}; accepted: memory of device {}",
        place.on_device ? fmt::format("of device {}", place.device) : "of the host", device);
  DeviceBuffer view;
  view.data_ = given.data;
  view.bytes_ = needed;
  view.view_ = true;
  return view;
}

void copy_to_device(void* device, const void* host, int64_t bytes, Stream stream) {
  if (bytes > 0)
    check_cuda(cudaMemcpyAsync(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                               static_cast<cudaStream_t>(stream)),
               "cudaMemcpyAsync to the device");
}
void copy_to_device_now(void* device, const void* host, int64_t bytes, Stream stream) {
  const auto* from = static_cast<const std::byte*>(host);
  copy_to_device(device, std::vector<std::byte>(from, from + bytes).data(), bytes, stream);
}
void copy_to_host(void* host, const void* device, int64_t bytes, Stream stream) {
  if (bytes > 0)
    check_cuda(cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                               static_cast<cudaStream_t>(stream)),
               "cudaMemcpyAsync to the host");
}
void synchronize(Stream stream) {
  check_cuda(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "cudaStreamSynchronize");
}

}  // namespace sluice::sm90
