// SPDX-License-Identifier: Apache-2.0
// AVX-512 with VNNI (Cascade Lake, Ice Lake and later, Zen 4 and later): float32 multiply-adds, integer dots for
// NVFP4 and MXFP4.
#include <immintrin.h>

#include "kernels/cpu/micro/micro.h"

// GCC 12 warns inside its own intrinsics (bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,prefer-vector-width=512")

#include "kernels/cpu/micro/probe.h"
#include "kernels/cpu/micro/rows.h"
#include "kernels/cpu/micro/tile.h"
//
#include "kernels/cpu/micro/avx512_vector.h"
//
#include "kernels/cpu/micro/fixed_row.h"
#include "kernels/cpu/micro/mxfp4_dot.h"
#include "kernels/cpu/micro/nvfp4_dot.h"

namespace sluice::kernels::cpu {

const Micro kAvx512 = {{gemm<Avx512, Bf16Coding>, gemm<Avx512, E4m3Coding>, gemm<Avx512, E4m3BlockCoding>,
                        gemm<Avx512, E4m3MxCoding>, gemm<Avx512, E2m1NvCoding>, gemm<Avx512, E2m1MxCoding>},
                       gemm_nvfp4_dot<Avx512>,
                       gemm_mxfp4_dot,
                       prepare_avx512_row,
                       activate<Avx512>,
                       combine<Avx512>,
                       round_bf16<Avx512>,
                       dot_probe<Avx512>,
                       read_probe<Avx512>};

}  // namespace sluice::kernels::cpu
