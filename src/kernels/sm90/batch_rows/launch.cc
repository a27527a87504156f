// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/batch_rows/launch.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

#include "base/error.h"
#include "kernels/sm90/visit_operand.h"

namespace sluice::sm90 {

// Compiled by the generated files (sources.cmake).
template <WeightOperand op>
void allow_batch_rows_of();
template <WeightOperand op>
void launch_batch_rows_of(const BatchRowsArgs& args, const BatchRowsChoice& choice, int multiprocessors, Stream stream,
                          bool pdl);

template <WeightOperand op>
int batch_clusters_of(int blocks_per_sm, int size);

namespace {
// Of an operand that the kernel has instances of; nothing for others.
template <class F>
void visit(WeightOperand operand, F&& f) {
  visit_operand(operand, [&]<WeightOperand op>() {
    if constexpr (batch_rows_run(op)) f.template operator()<op>();
  });
}

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

void allow_batch_rows(WeightOperand operand) {
  visit(operand, []<WeightOperand op>() { allow_batch_rows_of<op>(); });
}

BatchRoom device_batch_room(WeightOperand operand, int multiprocessors) {
  BatchRoom room;
  room.multiprocessors = multiprocessors;
  visit(operand, [&]<WeightOperand op>() {
    for (int blocks = 1; blocks <= 2; ++blocks)
      for (int size = 1; size <= kMaxBatchCluster; ++size)
        room.clusters[blocks - 1][size - 1] = batch_clusters_of<op>(blocks, size);
  });
  return room;
}

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

void launch_batch_rows(const BatchRowsArgs& args, WeightOperand operand, const BatchRowsChoice& choice,
                       int multiprocessors, Stream stream, bool pdl) {
  check(args.rows > 0 && args.rows <= kMaxBatchRows, "rows is {}; 1 to {} are possible", args.rows, kMaxBatchRows);
  visit(operand, [&]<WeightOperand op>() { launch_batch_rows_of<op>(args, choice, multiprocessors, stream, pdl); });
}

}  // namespace sluice::sm90
