// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpu_kernel.h"

#include "activation/kind.h"

namespace sluice::kernels::cpu {

using activation::Activation;
using format::Format;
using format::InputFormat;

// micro/row_args.h repeats two enumerations.
static_assert(static_cast<int>(InputRounding::plain) == static_cast<int>(InputFormat::plain) &&
              static_cast<int>(InputRounding::fp8_static) == static_cast<int>(InputFormat::fp8_static) &&
              static_cast<int>(InputRounding::fp8_token) == static_cast<int>(InputFormat::fp8_token) &&
              static_cast<int>(InputRounding::fp8_group) == static_cast<int>(InputFormat::fp8_group) &&
              static_cast<int>(InputRounding::mxfp8) == static_cast<int>(InputFormat::mxfp8) &&
              static_cast<int>(InputRounding::nvfp4) == static_cast<int>(InputFormat::nvfp4) &&
              static_cast<int>(InputRounding::nvfp4_token) == static_cast<int>(InputFormat::nvfp4_token) &&
              format::kInputFormats.size() == 7);
static_assert(static_cast<int>(ActivationCode::gelu) == static_cast<int>(Activation::gelu) &&
              static_cast<int>(ActivationCode::silu) == static_cast<int>(Activation::silu) &&
              static_cast<int>(ActivationCode::swiglu) == static_cast<int>(Activation::swiglu) &&
              static_cast<int>(ActivationCode::geglu) == static_cast<int>(Activation::geglu) &&
              static_cast<int>(ActivationCode::relu2) == static_cast<int>(Activation::relu2) &&
              static_cast<int>(ActivationCode::geglu_tanh) == static_cast<int>(Activation::geglu_tanh) &&
              static_cast<int>(ActivationCode::identity) == static_cast<int>(Activation::identity) &&
              activation::kActivations.size() == 7);

namespace {
WeightCode weight_code_of(Format f) {
  switch (f) {
    case Format::bf16:
      return WeightCode::bf16;
    case Format::fp8_tensor:
    case Format::fp8_channel:
      return WeightCode::e4m3;
    case Format::fp8_block:
      return WeightCode::e4m3_block;
    case Format::mxfp8:
      return WeightCode::e4m3_mx;
    case Format::nvfp4:
      return WeightCode::e2m1_nv;
    case Format::mxfp4:
      return WeightCode::e2m1_mx;
  }
  return WeightCode::bf16;
}

bool is_nvfp4(InputFormat f) { return f == InputFormat::nvfp4 || f == InputFormat::nvfp4_token; }
}  // namespace

const KernelTable& row_operations(Isa isa) {
  return isa == Isa::scalar ? kScalarKernels : isa < Isa::avx512 ? kAvx2Kernels : kAvx512Kernels;
}

TileProductFn tile_product(Isa isa, TileOperands operands) {
  if (operands == TileOperands::bf16_parts && isa == Isa::amx)
    return kAmxKernels.tile_product[static_cast<size_t>(operands)];
  if (operands == TileOperands::bf16_pairs && isa >= Isa::avx512_bf16)
    return kAvx512Bf16Kernels.tile_product[static_cast<size_t>(operands)];
  return row_operations(isa).tile_product[static_cast<size_t>(operands)];
}

SoftmaxFn softmax_parts(Isa isa) { return isa == Isa::amx ? kAmxKernels.softmax_parts : nullptr; }

Support cpu_kernel_supported(Isa isa, Format weights, InputFormat input) {
  if (const Support s = supported(isa); !s) return s;
  // One float scale per 128 columns needs a sum that stops every 128 columns. Only fp8_block kernels have that.
  if (input == InputFormat::fp8_group && weights != Format::fp8_block)
    return Support::no(fmt::format("inputs=fp8_group goes with weights=fp8_block, not with {}", info(weights).name));
  return Support::yes(std::string(choose_cpu_kernel(isa, weights, input, DType::bf16).name));
}

CpuKernel choose_cpu_kernel(Isa isa, Format weights, InputFormat input, DType dtype) {
  CpuKernel c;
  c.weight_format = weights;
  c.input_format = input;
  c.row_ops = &row_operations(isa);
  c.input_group_scales = weights == Format::fp8_block;
  const size_t code = static_cast<size_t>(weight_code_of(weights));
  const KernelTable& integers = isa == Isa::avx_vnni ? kAvxVnniKernels : *c.row_ops;
  const std::string_view integers_name = isa < Isa::avx512 ? name_of(kIsas, isa) : "avx512_vnni";
  if (weights == Format::nvfp4 && is_nvfp4(input) && integers.nvfp4_dot != nullptr) {
    c.gemm = isa == Isa::avx512_bf16 ? kAvx512Bf16Kernels.nvfp4_dot : integers.nvfp4_dot;
    c.input_type = PackedType::nvfp4;
    c.name = integers_name;
    return c;
  }
  const bool exact_in_bf16 = dtype == DType::bf16;
  if (exact_in_bf16 && weights == Format::mxfp4 && isa <= Isa::avx512 && integers.mxfp4_dot != nullptr) {
    c.gemm = integers.mxfp4_dot;
    c.input_type = PackedType::fixed_point;
    c.max_n_tiles = isa < Isa::avx512 ? 1 : 2;
    c.name = integers_name;
    return c;
  }
  if (exact_in_bf16 && isa == Isa::amx && kAmxKernels.gemm[code] != nullptr) {
    c.gemm = kAmxKernels.gemm[code];
    c.contiguous_rows = true;
    c.max_n_tiles = kMaxNTiles;
    c.name = "amx";
  } else if (exact_in_bf16 && isa >= Isa::avx512_bf16 && kAvx512Bf16Kernels.gemm[code] != nullptr) {
    c.gemm = kAvx512Bf16Kernels.gemm[code];
    c.name = "avx512_bf16";
  } else {
    c.gemm = c.row_ops->gemm[code];
    c.name = name_of(kIsas, isa > Isa::avx512 ? Isa::avx512 : isa);
    return c;
  }
  c.input_type = PackedType::bf16;
  c.fp8_order = Fp8Order::bf16_pairs;
  return c;
}

}  // namespace sluice::kernels::cpu
