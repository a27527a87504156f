// SPDX-License-Identifier: Apache-2.0
// Which kernel multiplies a weight format by an input format, and what it wants from both.
#pragma once

#include "format/formats.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/micro/micro.h"
#include "tensor/dtype.h"
#include "weights/panel.h"

namespace sluice::kernels::cpu {

struct GemmChoice {
  GemmFn gemm = nullptr;
  const Micro* rows = nullptr;  // the row operations of this level
  OperandKind operand = OperandKind::f32;
  weights::Fp8Order order = weights::Fp8Order::halves;
  format::InputFormat input = format::InputFormat::plain;
  bool group_scales = false;      // the kernel reads x_group
  int units = 1;                  // units of weights in one call, at most
  bool consecutive_rows = false;  // operand rows must lie in the order of the calls (AMX loads 16 rows at a stride)
  std::string_view name;          // "avx512", "avx512_vnni", "amx"
};

// An empty reason when `isa` (or, for parts that it lacks, a lower level) computes weights x inputs.
// f32 inputs always run float32 multiply-adds: bfloat16 products would round them.
Support gemm_supported(Isa isa, format::Format weights, format::InputFormat input);
GemmChoice choose_gemm(Isa isa, format::Format weights, format::InputFormat input, DType dtype);

}  // namespace sluice::kernels::cpu
