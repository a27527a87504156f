// SPDX-License-Identifier: Apache-2.0
// The level `avx512`: AVX-512 with VNNI (Cascade Lake, Ice Lake and later, Zen 4 and later). Products are float32
// multiply-adds, or integer dots for NVFP4 and MXFP4.
#include <immintrin.h>

#include "kernels/cpu/micro/kernel_table.h"

// GCC 12 warns inside its own intrinsics (bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,prefer-vector-width=512")

#include "kernels/cpu/micro/avx512_vector.h"
#include "kernels/cpu/micro/fixed_block_avx512.h"
#include "kernels/cpu/micro/gemm.h"
#include "kernels/cpu/micro/mxfp4_dot.h"
#include "kernels/cpu/micro/nvfp4_dot.h"
#include "kernels/cpu/micro/probe.h"
#include "kernels/cpu/micro/row_ops.h"
#include "kernels/cpu/micro/tile_product.h"

namespace sluice::kernels::cpu {

const KernelTable kAvx512Kernels = {
    .gemm = {gemm<Avx512, Bf16Coding>, gemm<Avx512, E4m3Coding>, gemm<Avx512, E4m3BlockCoding>,
             gemm<Avx512, E4m3MxCoding>, gemm<Avx512, E2m1NvCoding>, gemm<Avx512, E2m1MxCoding>},
    .nvfp4_dot = gemm_nvfp4_dot<Avx512>,
    .mxfp4_dot = gemm_mxfp4_dot,
    .pack_row = pack_row_or_fixed_point<FixedBlockAvx512>,
    .activate = activate,
    .weighted_sum = weighted_sum,
    .round_bf16 = round_bf16,
    .tile_product = {tile_product<Avx512, TileOperands::f32>, tile_product<Avx512, TileOperands::bf16_rows>,
                     tile_product<Avx512, TileOperands::bf16_columns>},
    .dot_probe = dot_probe<Avx512>,
    .read_probe = read_probe<Avx512>,
};

}  // namespace sluice::kernels::cpu
