// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm_choice.h"

namespace sluice::kernels::cpu {

using format::Format;
using format::InputFormat;

namespace {
Code code_of(Format f) {
  switch (f) {
    case Format::bf16:
      return Code::bf16;
    case Format::fp8_tensor:
    case Format::fp8_channel:
      return Code::e4m3;
    case Format::fp8_block:
      return Code::e4m3_block;
    case Format::mxfp8:
      return Code::e4m3_mx;
    case Format::nvfp4:
      return Code::e2m1_nv;
    case Format::mxfp4:
      return Code::e2m1_mx;
  }
  return Code::bf16;
}

// The row operations of a level; those above avx512 have none of their own.
const Micro& row_operations(Isa isa) { return isa == Isa::scalar ? kScalar : isa == Isa::avx2 ? kAvx2 : kAvx512; }

bool is_nvfp4(InputFormat f) { return f == InputFormat::nvfp4 || f == InputFormat::nvfp4_token; }
}  // namespace

Support gemm_supported(Isa isa, Format weights, InputFormat input) {
  if (const Support s = supported(isa); !s) return s;
  // Float scales a 128 columns need sums that stop at 128 columns, as only 128x128 blocks have them.
  if (input == InputFormat::fp8_group && weights != Format::fp8_block)
    return Support::no(fmt::format("inputs=fp8_group goes with weights=fp8_block, not with {}", info(weights).name));
  return Support::yes(std::string(choose_gemm(isa, weights, input, DType::bf16).name));
}

GemmChoice choose_gemm(Isa isa, Format weights, InputFormat input, DType dtype) {
  GemmChoice c;
  c.input = input;
  c.rows = &row_operations(isa);
  c.group_scales = weights == Format::fp8_block;
  const size_t code = static_cast<size_t>(code_of(weights));
  if (weights == Format::nvfp4 && is_nvfp4(input) && c.rows->nvfp4_dot != nullptr) {
    c.gemm = isa == Isa::avx512_bf16 ? kAvx512Bf16.nvfp4_dot : c.rows->nvfp4_dot;
    c.operand = OperandKind::nvfp4;
    c.name = "avx512_vnni";
    return c;
  }
  const bool exact_in_bf16 = dtype == DType::bf16;
  if (exact_in_bf16 && weights == Format::mxfp4 && isa <= Isa::avx512 && c.rows->mxfp4_dot != nullptr) {
    c.gemm = c.rows->mxfp4_dot;
    c.operand = OperandKind::fixed;
    c.units = 2;
    c.name = "avx512_vnni";
    return c;
  }
  if (exact_in_bf16 && isa == Isa::amx && kAmx.gemm[code] != nullptr) {
    c.gemm = kAmx.gemm[code];
    c.consecutive_rows = true;
    c.units = 4;
    c.name = "amx";
  } else if (exact_in_bf16 && isa >= Isa::avx512_bf16 && kAvx512Bf16.gemm[code] != nullptr) {
    c.gemm = kAvx512Bf16.gemm[code];
    c.name = "avx512_bf16";
  } else {
    c.gemm = c.rows->gemm[code];
    c.name = name_of(kIsas, isa > Isa::avx512 ? Isa::avx512 : isa);
    return c;
  }
  c.operand = OperandKind::bf16;
  c.order = weights::Fp8Order::pairs;
  return c;
}

}  // namespace sluice::kernels::cpu
