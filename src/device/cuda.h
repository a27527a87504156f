// SPDX-License-Identifier: Apache-2.0
// An NVIDIA GPU as a device: a queue is a stream, recorded work a CUDA graph. No CUDA header, so any host file may
// include it. In a build without CUDA each function says so.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/support.h"
#include "device/device.h"

namespace sluice {

// GPUs that the driver shows; 0 without one, or in a build without CUDA.
int cuda_device_count();

// Yes, or the reason: the index does not exist, or the kernels of this build do not run on that GPU. Nothing is made on
// it.
Support cuda_device_supported(int index);

// One sentence on why the CUDA runtime finds no GPU. driver, runtime: their CUDA versions as CUDA codes them (13000 is
// 13.0); driver 0: none is installed. `says`: the runtime's error message, which is given where versions do not explain
// it.
std::string no_device_reason(int driver, int runtime, std::string_view says);

// Throws unsupported with that reason; out_of_memory when others hold the GPU's memory.
std::unique_ptr<Device> make_cuda_device(int index);

// A queue on a stream of the caller's (a cudaStream_t; null: the default stream), which stays the caller's.
std::unique_ptr<Queue> make_cuda_queue(Device& device, void* stream);

// Where a pointer's memory lies; nothing for memory of the host that CUDA does not know. Operations check with it that
// weights lie on the GPU that reads them.
std::optional<DeviceId> device_of(const void* pointer);

// What one operation of recorded work took, run alone.
struct OperationTime {
  std::string name;  // of the kernel; "copy", "fill"
  double microseconds = 0;
};

// Records the work that `enqueue` enqueues on the queue, runs it `repeat` times with a time stamp after each
// operation, and returns the median time of each, in order. None starts before the one ahead of it has ended, so that
// their sum is more than the work takes. Empty, without calling `enqueue`, for the CPU's queue.
std::vector<OperationTime> time_operations(Queue& queue, const std::function<void()>& enqueue, int repeat);

}  // namespace sluice
