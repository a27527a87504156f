// SPDX-License-Identifier: Apache-2.0
// One way to launch: with programmatic dependent launch or without.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "kernels/sm90/device.h"

namespace sluice::sm90 {

// Every kernel may use 48 KB of shared memory, and its static part counts. A kernel that uses more dynamic memory than
// this must be allowed to.
inline constexpr int kFreeSharedMemory = 40 * 1024;
// On the current device, before the first launch with more. `most` is the same for all callers of a kernel: a smaller
// number would take back what another object was allowed.
template <class... Params>
void allow_shared_memory(void (*kernel)(Params...), int most) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most), "cudaFuncSetAttribute");
}

// On the current device, before the first launch: a multiprocessor on which the kernel runs has as much shared memory
// as it can, and the least L1 cache. Left alone, the driver gives a kernel of little shared memory more cache. Then the
// next kernel, if it needs more, cannot begin on a multiprocessor before the last block there has ended.
template <class... Params>
void prefer_shared_memory(void (*kernel)(Params...)) {
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
      "cudaFuncSetAttribute");
}

struct LaunchOptions {
  bool pdl;
  bool largest_shared_memory;  // as prefer_shared_memory(), of this launch
  LaunchOptions(bool pdl, bool largest_shared_memory = false)
      : pdl(pdl), largest_shared_memory(largest_shared_memory) {}
};

// `pdl` lets the kernel start before the one ahead of it in the stream has finished; it must call griddepcontrol.wait
// before it touches anything that an earlier kernel wrote. Before that it may read only what was complete
// before the kernel ahead let it start. `cluster` neighbouring blocks share their memory. smem
// beyond kFreeSharedMemory has been allowed.
template <class... Params, class... Args>
void launch_clusters(void (*kernel)(Params...), int cluster, dim3 blocks, int threads, int smem, Stream stream,
                     LaunchOptions options, Args&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(smem);
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute attributes[3]{};
  config.attrs = attributes;
  if (options.pdl) {
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a.val.programmaticStreamSerializationAllowed = 1;
  }
  if (options.largest_shared_memory) {
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    a.val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  }
  if (cluster > 1) {
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim.x = static_cast<unsigned>(cluster);
    a.val.clusterDim.y = a.val.clusterDim.z = 1;
  }
  check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), "cudaLaunchKernelEx");
}

template <class... Params, class... Args>
void launch(void (*kernel)(Params...), dim3 blocks, int threads, int smem, Stream stream, LaunchOptions options,
            Args&&... args) {
  launch_clusters(kernel, 1, blocks, threads, smem, stream, options, std::forward<Args>(args)...);
}

// Reads one word of every 64 bytes of a kernel's parameters. The first use of a line on a multiprocessor waits for the
// L2 cache: here that happens while the kernel before it runs.
template <class Args>
__device__ __forceinline__ void touch_parameters(const Args& args) {
  const auto* words = reinterpret_cast<const uint32_t*>(&args);
  uint32_t sum = 0;
#pragma unroll
  for (size_t i = 0; i < sizeof(Args) / 4; i += 16) sum += words[i];
  if (sum == 0x9e3779b9u) __nanosleep(0);  // nothing: the reads must have a use
}

}  // namespace sluice::sm90
