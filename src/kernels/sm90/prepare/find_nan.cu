// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/prepare/find_nan.h"

#include <algorithm>

#include "base/math.h"
#include "kernels/sm90/launch.cuh"

namespace sluice::sm90 {

namespace {

constexpr int kThreads = 256, kMaxBlocks = 132 * 16;

// Whether one of four bytes is 0x7f or 0xff: a magnitude plus one carries into the sign bit.
__device__ inline bool any_nan(uint32_t four) { return (((four & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u) != 0; }

__global__ void __launch_bounds__(kThreads) find_nan_kernel(const __grid_constant__ FindNanArgs a, int64_t vectors) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x,
                step = static_cast<int64_t>(gridDim.x) * kThreads;
  bool nan = false;
  for (int64_t i = first; i < vectors; i += step) {
    const uint4 v = reinterpret_cast<const uint4*>(a.codes)[i];
    nan = nan || any_nan(v.x) || any_nan(v.y) || any_nan(v.z) || any_nan(v.w);
  }
  for (int64_t i = vectors * 16 + first; i < a.count; i += step) nan = nan || (a.codes[i] & 0x7f) == 0x7f;
  if (nan) *a.found = 1;
}

}  // namespace

void launch_find_nan(const FindNanArgs& a, Stream stream) {
  if (a.count == 0) return;
  const int64_t vectors = reinterpret_cast<uintptr_t>(a.codes) % 16 == 0 ? a.count / 16 : 0;
  const int64_t blocks =
      std::clamp<int64_t>(ceil_div<int64_t>(std::max(vectors, a.count - vectors * 16), kThreads), 1, kMaxBlocks);
  launch(find_nan_kernel, dim3(static_cast<unsigned>(blocks)), kThreads, 0, stream, false, a, vectors);
}

}  // namespace sluice::sm90
