// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/packed_rows.h"

#include <cstring>

#include "base/math.h"

namespace sluice::kernels::cpu {

namespace {
int64_t row_bytes(PackedType type, int64_t padded_k) {
  switch (type) {
    case PackedType::f32:
      return 4 * padded_k;
    case PackedType::bf16:
      return 2 * padded_k;
    case PackedType::fixed_point:
      return FixedPointRow(padded_k).bytes;
    case PackedType::nvfp4:
      break;
  }
  return padded_k / 16 * int64_t{sizeof(Nvfp4Group)};
}
}  // namespace

PackedRows allocate_packed_rows(BumpAllocator& allocator, const CpuKernel& kernel, int64_t rows, int64_t k,
                                int64_t padded_k) {
  PackedRows p;
  p.kernel = kernel;
  p.rows = rows;
  p.k = k;
  p.padded_k = padded_k;
  // One cache line more than needed, so that the rows of a tile do not fall into one set of L1 when K is a power of
  // two.
  p.stride = round_up<int64_t>(row_bytes(kernel.input_type, padded_k), 64) + 64;
  p.data = allocator.allocate<uint8_t>(rows * p.stride);
  p.row_scale = allocator.allocate<float>(rows);
  if (kernel.input_group_scales) {
    p.group_stride = ceil_div<int64_t>(padded_k, 128);
    p.group_scale = allocator.allocate<float>(rows * p.group_stride);
  }
  return p;
}

void pack_row(const PackedRows& packed, int64_t row, const SourceRow& source, float input_scale, float* staging) {
  PackRowArgs a;
  a.rounding = static_cast<InputRounding>(packed.kernel.input_format);
  a.input_scale = input_scale;
  a.source = {source.data, source.dtype == DType::bf16, source.round_to_bf16_first, packed.k};
  a.target.type = packed.kernel.input_type;
  a.target.data = packed.data + row * packed.stride;
  a.target.row_scale = packed.row_scale + row;
  if (packed.group_scale != nullptr) a.target.group_scale = packed.group_scale + row * packed.group_stride;
  a.target.padded_n = packed.padded_k;
  a.staging = staging;
  packed.kernel.row_ops->pack_row(a);
}

void copy_packed_row(const PackedRows& source, int64_t from, const PackedRows& target, int64_t to) {
  std::memcpy(target.data + to * target.stride, source.data + from * source.stride, static_cast<size_t>(source.stride));
  target.row_scale[to] = source.row_scale[from];
  if (source.group_scale != nullptr)
    std::memcpy(target.group_scale + to * target.group_stride, source.group_scale + from * source.group_stride,
                static_cast<size_t>(source.group_stride) * sizeof(float));
}

}  // namespace sluice::kernels::cpu
