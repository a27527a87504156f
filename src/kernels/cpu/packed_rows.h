// SPDX-License-Identifier: Apache-2.0
// Input rows in the form that a GEMM kernel reads: rounded to the input format, then packed.
#pragma once

#include "kernels/cpu/bump_allocator.h"
#include "kernels/cpu/cpu_kernel.h"

namespace sluice::kernels::cpu {

// X [rows, K] packed for one kernel, in memory of the caller.
struct PackedRows {
  CpuKernel kernel;
  int64_t rows = 0, k = 0, padded_k = 0;  // padded_k: K'
  int64_t stride = 0;                     // bytes from one row to the next
  int64_t group_stride = 0;               // floats from one row's group scales to the next row's
  uint8_t* data = nullptr;                // [rows] of kernel.input_type
  float* row_scale = nullptr;             // [rows]
  float* group_scale = nullptr;           // [rows][ceil(K' / 128)]; null unless kernel.input_group_scales
};

// Takes the memory for X [rows, k] from `allocator`; pack_row() fills it. padded_k: PackedWeights::padded_k().
PackedRows allocate_packed_rows(BumpAllocator& allocator, const CpuKernel& kernel, int64_t rows, int64_t k,
                                int64_t padded_k);

struct SourceRow {
  const void* data = nullptr;  // float32 or bfloat16 [K]
  DType dtype = DType::f32;
  bool round_to_bf16_first = false;  // float32 sources: rounded to bfloat16 before they are quantised
};

// Rounds `source` to the kernel's input format and stores it as row `row` of `packed`.
//   input_scale   the calibrated scale of the static input formats (fp8_static, nvfp4); others do not read it
//   staging       float[padded_k] of the calling thread; may be null if kernel.input_type is f32
// Rows may be packed by several threads at once.
void pack_row(const PackedRows& packed, int64_t row, const SourceRow& source, float input_scale, float* staging);

// Row `from` of `source` becomes row `to` of `target`. Both are packed for the same kernel and K.
void copy_packed_row(const PackedRows& source, int64_t from, const PackedRows& target, int64_t to);

}  // namespace sluice::kernels::cpu
