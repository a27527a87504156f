// SPDX-License-Identifier: Apache-2.0
// The GEMM kernel of MXFP4 weights by bfloat16 inputs, as integers. Inputs are two or three planes of bytes
// (FixedPointRow in packed_layout.h), weights are signed bytes 2w, and vpdpbusd sums four products per lane. One int32
// sums the planes one after the other, shifted left by 8 bits in between, so the sum of 32 products is exact and
// rounded once. Outliers, which the planes do not hold, are added one by one. AVX2 sums the same bytes by vpmaddubsw.
//
// Every output is one chain of fused multiply-adds: the blocks of a chunk, then its outliers, then the next chunk. The
// order does not depend on the number of rows (register_tile.h says why). A third plane of zeros multiplies a sum by
// 256 and its scale by 1/256, so rows of two and of three planes may share a tile.
#pragma once

#include "kernels/cpu/micro/mxfp4_few_rows.h"
#include "kernels/cpu/micro/mxfp4_many_rows.h"

namespace sluice::kernels::cpu {
namespace {

// A GemmFn of AVX-512.
static void gemm_mxfp4_dot(const GemmArgs& a) {
  prefetch_row_scales<Avx512>(a.w);
  const FixedPointRows rows(a);
  if (a.x.m > max_rows_in_registers(rows.planes))
    run_many_rows<Avx512>(a, rows.x);
  else if (rows.planes == 2)
    a.w.panels == 2 ? run_few_rows<2, 2>(a, rows.x) : run_few_rows<2, 1>(a, rows.x);
  else
    a.w.panels == 2 ? run_few_rows<3, 2>(a, rows.x) : run_few_rows<3, 1>(a, rows.x);
  scale_outputs<Avx512>(a);
}

}  // namespace
}  // namespace sluice::kernels::cpu
