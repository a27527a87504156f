// SPDX-License-Identifier: Apache-2.0
// MXFP4 weights by bfloat16 inputs as integers: inputs are two or three planes of bytes (micro.h: FixedRow), weights
// signed bytes 2w, and vpdpbusd sums four products a lane and instruction. One int32 takes the planes in turn, shifted
// by 8 bits between them, so the sum of each 32 products is exact, then rounded once. What the planes do not hold is
// added one by one. Needs AVX-512 VNNI.
//
// Every output is one chain of fused multiply-adds: the blocks of a chunk, then its rest, then the next chunk, whatever
// the number of rows (micro/tile.h says why). A third plane of zeros multiplies a sum by 256 and its scale by 1/256, so
// rows of two and three planes may share a tile.
#pragma once

#include "kernels/cpu/micro/mxfp4_few.h"
#include "kernels/cpu/micro/mxfp4_many.h"

namespace sluice::kernels::cpu {
namespace {

static void gemm_mxfp4_dot(const GemmArgs& a) {
  prefetch_row_scales<Avx512>(a);
  const uint8_t* x[kMaxRows];
  int planes = 2;
  for (int i = 0; i < a.m; ++i) {
    x[i] = a.x + (a.x_rows != nullptr ? a.x_rows[i] : i) * a.x_stride;
    planes = planes_of(FixedRow(a.k), x[i]) > planes ? 3 : planes;
  }
  if (a.m <= fixed_packed_rows(planes))
    if (planes == 2)
      a.panels == 2 ? run_fixed_few<2, 2>(a, x) : run_fixed_few<2, 1>(a, x);
    else
      a.panels == 2 ? run_fixed_few<3, 2>(a, x) : run_fixed_few<3, 1>(a, x);
  else if (a.units == 2)
    run_fixed_many<4>(a, x);
  else
    a.panels == 2 ? run_fixed_many<2>(a, x) : run_fixed_many<1>(a, x);
  scale_outputs<Avx512>(a);
}

}  // namespace
}  // namespace sluice::kernels::cpu
