// SPDX-License-Identifier: Apache-2.0
// The kernels of one instruction set, as a table of functions over plain data. The files micro/<isa>.cc are the only
// code that is compiled for more than the base architecture. They include nothing but intrinsics, this header and the
// headers of this folder, whose functions are static: a function shared with other files could be emitted with
// instructions that a machine lacks.
#pragma once

#include "kernels/cpu/micro/gemm_args.h"
#include "kernels/cpu/micro/row_args.h"

namespace sluice::kernels::cpu {

// Weight formats by what a GEMM kernel sees of them: the width of a code and the kind of block scales.
enum class WeightCode : uint8_t { bf16, e4m3, e4m3_block, e4m3_mx, e2m1_nv, e2m1_mx };
inline constexpr int kWeightCodes = 6;

// Probes for Ceilings, on one core (micro/probe.h).
using DotProbeFn = double (*)(int64_t steps);                   // returns the floating point operations done
using ReadProbeFn = void (*)(const uint8_t* p, int64_t bytes);  // bytes: a multiple of 4096

// A null function means that this level has none of its own: cpu_kernel.cc takes a lower level's.
struct KernelTable {
  GemmFn gemm[kWeightCodes] = {};  // f32 or bf16 inputs, by WeightCode
  GemmFn nvfp4_dot = nullptr;      // NVFP4 weights by PackedType::nvfp4, as integers
  GemmFn mxfp4_dot = nullptr;      // MXFP4 weights by PackedType::fixed_point, as integers
  PackRowFn pack_row = nullptr;
  ActivateFn activate = nullptr;
  WeightedSumFn weighted_sum = nullptr;
  RoundBf16Fn round_bf16 = nullptr;
  TileProductFn tile_product[kTileOperands] = {};  // by TileOperands
  SoftmaxFn softmax_parts = nullptr;  // goes with bf16_parts; the other levels take ops/cpu's softmax_tile()
  DotProbeFn dot_probe = nullptr;
  ReadProbeFn read_probe = nullptr;
};

extern const KernelTable kScalarKernels, kAvx2Kernels, kAvxVnniKernels, kAvx512Kernels, kAvx512Bf16Kernels, kAmxKernels;

}  // namespace sluice::kernels::cpu
