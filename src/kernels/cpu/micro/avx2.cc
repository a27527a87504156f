// SPDX-License-Identifier: Apache-2.0
// The level `avx2`: AVX2 with FMA and F16C. Products are float32 multiply-adds, or integer dots for NVFP4
// and MXFP4.
#include <immintrin.h>

#include "kernels/cpu/micro/kernel_table.h"

#pragma GCC target("avx2,fma,f16c")

#include "kernels/cpu/micro/avx2_vector.h"
#include "kernels/cpu/micro/fixed_block_avx2.h"
#include "kernels/cpu/micro/gemm.h"
#include "kernels/cpu/micro/mxfp4_many_rows.h"
#include "kernels/cpu/micro/nvfp4_dot.h"
#include "kernels/cpu/micro/probe.h"
#include "kernels/cpu/micro/row_ops.h"
#include "kernels/cpu/micro/tile_product.h"

namespace sluice::kernels::cpu {

const KernelTable kAvx2Kernels = {
    .gemm = {gemm<Avx2, Bf16Coding>, gemm<Avx2, E4m3Coding>, gemm<Avx2, E4m3BlockCoding>, gemm<Avx2, E4m3MxCoding>,
             gemm<Avx2, E2m1NvCoding>, gemm<Avx2, E2m1MxCoding>},
    .nvfp4_dot = gemm_nvfp4_dot<Avx2>,
    .mxfp4_dot = gemm_mxfp4_dot_many_rows<Avx2>,
    .pack_row = pack_row_or_fixed_point<FixedBlockAvx2>,
    .activate = activate,
    .weighted_sum = weighted_sum,
    .round_bf16 = round_bf16,
    .tile_product = {tile_product<Avx2, TileOperands::f32>, tile_product<Avx2, TileOperands::bf16_rows>,
                     tile_product<Avx2, TileOperands::bf16_columns>},
    .dot_probe = dot_probe<Avx2>,
    .read_probe = read_probe<Avx2>,
};

}  // namespace sluice::kernels::cpu
