// SPDX-License-Identifier: Apache-2.0
#include "other_program.h"

namespace sluice::bench {

namespace {
__global__ void copy_words(const uint4* from, uint4* to, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) to[i] = from[i];
}
}  // namespace

void launch_other_program(const void* from, void* to, int64_t count, void* stream) {
  constexpr int kThreads = 128;
  copy_words<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0,
               static_cast<cudaStream_t>(stream)>>>(static_cast<const uint4*>(from), static_cast<uint4*>(to), count);
}

}  // namespace sluice::bench
