// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/rows_map/rows_map.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

#include "base/error.h"
#include "kernels/sm90/device.h"

namespace sluice::sm90 {

namespace {
using EncodeTiled = decltype(&cuTensorMapEncodeTiled);
// The driver's function. Nothing links the driver, so that a program starts without one.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    constexpr unsigned kSince = 12000;
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kSince, cudaEnableDefault, &result),
               "cudaGetDriverEntryPointByVersion");
    check(result == cudaDriverEntryPointSuccess && found != nullptr, "the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<EncodeTiled>(found);
  }();
  return function;
}
}  // namespace

TensorMap rows_map(const void* data, int64_t rows, int64_t bytes, int64_t stride, int box_rows) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(bytes), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride)};
  const cuuint32_t box[2] = {128, static_cast<cuuint32_t>(box_rows)}, steps[2] = {1, 1};
  CUtensorMap map;
  const CUresult status = encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(data), sizes,
                                         strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                         CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(status == CUDA_SUCCESS, "cuTensorMapEncodeTiled of {} rows of {} bytes, {} apart, at {}: error {}", rows, bytes,
        stride, data, static_cast<int>(status));
  TensorMap out;
  static_assert(sizeof(out) == sizeof(map));
  std::memcpy(&out, &map, sizeof(out));
  return out;
}

}  // namespace sluice::sm90
