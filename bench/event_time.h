// SPDX-License-Identifier: Apache-2.0
// The time of work on a GPU's queue by events around it.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "device/device.h"
#include "kernels/sm90/device.h"

namespace sluice::bench {

// The median of 5 to 25 runs in microseconds, after one that warms up; no further run once `enough_us` have passed.
inline double median_us(Queue& queue, double enough_us, const std::function<void()>& run) {
  auto* stream = static_cast<cudaStream_t>(queue.stream());
  cudaEvent_t start, stop;
  sm90::check_cuda(cudaEventCreate(&start), "cudaEventCreate");
  sm90::check_cuda(cudaEventCreate(&stop), "cudaEventCreate");
  std::vector<float> us;
  double total = 0;
  run();
  queue.wait();
  while (us.size() < 5 || (us.size() < 25 && total < enough_us)) {
    cudaEventRecord(start, stream);
    run();
    cudaEventRecord(stop, stream);
    queue.wait();
    float ms = 0;
    sm90::check_cuda(cudaEventElapsedTime(&ms, start, stop), "cudaEventElapsedTime");
    us.push_back(ms * 1e3f);
    total += static_cast<double>(us.back());
  }
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  std::nth_element(us.begin(), us.begin() + static_cast<std::ptrdiff_t>(us.size() / 2), us.end());
  return static_cast<double>(us[us.size() / 2]);
}

}  // namespace sluice::bench
