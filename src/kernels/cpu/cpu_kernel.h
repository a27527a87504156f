// SPDX-License-Identifier: Apache-2.0
// Which GEMM kernel multiplies a weight format by an input format, and how it wants weights and inputs packed.
#pragma once

#include "format/formats.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/micro/kernel_table.h"
#include "kernels/cpu/packed_weights.h"
#include "tensor/dtype.h"

namespace sluice::kernels::cpu {

// Made by choose_cpu_kernel(). PackedWeights and PackedRows of one product are packed for the same CpuKernel.
struct CpuKernel {
  std::string_view name;  // a level of kIsas, or "avx512_vnni" for AVX-512's integer kernels
  format::Format weight_format = format::Format::bf16;
  format::InputFormat input_format = format::InputFormat::plain;
  GemmFn gemm = nullptr;
  const KernelTable* row_ops = nullptr;  // whose row operations go with it: pack_row to round_bf16 are not null

  Fp8Order fp8_order = Fp8Order::f16;       // of packed weights, if their codes have 8 bits
  PackedType input_type = PackedType::f32;  // of packed rows
  bool input_group_scales = false;          // packed rows have a float scale per 128 k
  bool contiguous_rows = false;             // the rows of a group must follow each other (AMX loads 16 at a stride)
  int max_n_tiles = 1;                      // N-tiles per call
};

// The operations on rows at `isa`: pack_row to round_bf16 are not null. Levels above avx512 have none of their own and
// take avx512's, and avx_vnni takes avx2's.
const KernelTable& row_operations(Isa isa);

// Null where `isa` has none, which only bf16_pairs and bf16_parts may be.
TileProductFn tile_product(Isa isa, TileOperands operands);

// Null exactly where tile_product() of bf16_parts is.
SoftmaxFn softmax_parts(Isa isa);

// Yes, or the reason why `isa` does not multiply these formats or does not run here.
Support cpu_kernel_supported(Isa isa, format::Format weights, format::InputFormat input);

// For formats that cpu_kernel_supported() accepts. A level that has no kernel of its own for a format uses a lower
// level's. `dtype` is the type of the inputs before rounding: float32 inputs always run float32 multiply-adds, because
// bfloat16 products would round them.
CpuKernel choose_cpu_kernel(Isa isa, format::Format weights, format::InputFormat input, DType dtype);

}  // namespace sluice::kernels::cpu
