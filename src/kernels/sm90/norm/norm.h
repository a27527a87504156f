// SPDX-License-Identifier: Apache-2.0
// Root-mean-square norms of rows, and of groups within gated rows.
#pragma once

#include "kernels/sm90/device.h"
#include "kernels/sm90/grouped_gemm/args.h"
#include "kernels/sm90/norm/row_product.h"
#include "kernels/sm90/rows.h"

namespace sluice::sm90 {

// e4m3 codes of normed rows for the products that read them, bit for bit those that a product would make of y.
struct RowCodes {
  Round round;        // fp8_static, fp8_token, fp8_group or mxfp8; plain: there are none
  float inverse;      // fp8_static: of the calibrated scale
  uint8_t* codes;     // [rows, cols]
  float* row_scales;  // [rows]: decode factors of fp8_token
  void* scales;       // [rows, groups]: float32 of fp8_group, bytes of mxfp8
};

// The results of experts that a norm adds up itself, for a launch less: D(sum over k of weight * result), exactly as
// finalize.h, as long as weights of absent pairs are finite: their results are zeros, which finalize.h leaves out. Rows
// from *num_rows on get zeros.
struct UnsummedResults {
  const void* results;      // D [rows, top_k, cols], aligned to 16 bytes; null: none
  const float* weights;     // [rows, top_k]; null: 1
  const int32_t* num_rows;  // [1]; null: all
  int top_k;
};

struct RmsNormArgs {
  RowsView x;             // [rows, cols]; with `change`, x = D(x + change) is stored first
  ConstRowsView change;   // [rows, cols] of x's type; data null: none
  UnsummedResults sum;    // in the place of `change`, only if adds_results()
  ConstRowsView change2;  // the same; D(change + change2) is the change; data null: none
  const float* weight;    // [cols]
  float eps;
  RowsView y;  // [rows, cols] of x's type; may be x
  int64_t rows;
  int cols;
  RowCodes rounded;  // only if in_eights()
  // What y is multiplied by; only if multiplies_rows(), and without `sum`.
  RowProductArgs product;
};
// Whether rows are read and written 16 bytes at a time.
inline bool in_eights(const RmsNormArgs& a) {
  const auto fits = [](ConstRowsView v) { return v.data == nullptr || rows_aligned(v); };
  return a.cols % 8 == 0 && rows_aligned(a.x) && rows_aligned(a.y) && fits(a.change) && fits(a.change2) &&
         reinterpret_cast<uintptr_t>(a.weight) % 16 == 0;
}
// Whether the kernel adds up `sum`. Longer rows are read twice, and float32 is not what experts run in.
inline constexpr int kSummedColumns = 8192;
inline bool adds_results(const RmsNormArgs& a) {
  return !a.x.f32 && in_eights(a) && a.cols <= kSummedColumns && reinterpret_cast<uintptr_t>(a.sum.results) % 16 == 0;
}
// Whether the kernel multiplies its rows by `product`.
inline bool multiplies_rows(const RmsNormArgs& a) {
  return !a.x.f32 && in_eights(a) && row_product_fits(a.rows, a.cols, a.product.outputs);
}
// On the current device, before the first norm with a product. The kernels of one token, two launches after it, ask for
// the largest shared memory: left alone, this kernel would ask for the other split (docs/kernels/sm90_norm.md).
void allow_row_product();
// Both norms read their weight, `sum.num_rows` and the product's matrix while the kernels before them in the stream may
// still run: none of those may write them.
void launch_rms_norm(const RmsNormArgs& args, Stream stream, bool pdl);

struct GatedNormArgs {
  ConstRowsView x;      // float32 [rows, groups * size]
  ConstRowsView gate;   // D, as x
  RowsView y;           // D, as x
  const float* weight;  // [groups * size]
  float eps;
  int64_t rows;
  int groups, size;
};
void launch_gated_group_rms_norm(const GatedNormArgs& args, Stream stream, bool pdl);

}  // namespace sluice::sm90
