// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/operand.h"

#include <cstring>

#include "base/math.h"

namespace sluice::kernels::cpu {

Operand carve_operand(Carver& carver, const GemmChoice& choice, int64_t rows, int64_t cols, int64_t padded) {
  Operand o;
  o.choice = choice;
  o.rows = rows;
  o.cols = cols;
  o.padded = padded;
  const int64_t row_bytes = choice.operand == OperandKind::f32     ? 4 * padded
                            : choice.operand == OperandKind::bf16  ? 2 * padded
                            : choice.operand == OperandKind::fixed ? FixedRow(padded).bytes
                                                                   : padded / 16 * int64_t{sizeof(Nvfp4Group)};
  // A cache line more than a multiple of 64, so that the rows of a tile do not fall into the same set of L1 when K is
  // a power of two.
  o.stride = round_up<int64_t>(row_bytes, 64) + 64;
  o.data = carver.take<uint8_t>(rows * o.stride);
  o.row_scale = carver.take<float>(rows);
  if (choice.group_scales) {
    o.group_stride = ceil_div<int64_t>(padded, 128);
    o.group_scale = carver.take<float>(rows * o.group_stride);
  }
  return o;
}

void prepare_operand_row(const Operand& operand, int64_t row, const SourceRow& source, float input_scale,
                         float* staging) {
  PrepareArgs a;
  a.input = static_cast<int>(operand.choice.input);
  a.kind = operand.choice.operand;
  a.source_bf16 = source.dtype == DType::bf16;
  a.round_bf16_first = source.round_bf16_first;
  a.source = source.data;
  a.n = operand.cols;
  a.padded = operand.padded;
  a.input_scale = input_scale;
  a.operand = operand.data + row * operand.stride;
  a.row_scale = operand.row_scale + row;
  if (operand.group_scale != nullptr) a.group_scale = operand.group_scale + row * operand.group_stride;
  a.staging = staging;
  operand.choice.rows->prepare(a);
}

void copy_operand_row(const Operand& source, int64_t from, const Operand& target, int64_t to) {
  std::memcpy(target.data + to * target.stride, source.data + from * source.stride, static_cast<size_t>(source.stride));
  target.row_scale[to] = source.row_scale[from];
  if (source.group_scale != nullptr)
    std::memcpy(target.group_scale + to * target.group_stride, source.group_scale + from * source.group_stride,
                static_cast<size_t>(source.group_stride) * sizeof(float));
}

}  // namespace sluice::kernels::cpu
