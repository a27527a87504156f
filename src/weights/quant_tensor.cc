// SPDX-License-Identifier: Apache-2.0
#include "weights/quant_tensor.h"

#include "format/quantize_weights.h"
#include "weights/scale_grid.h"

namespace sluice::weights {

using format::Format;
using format::FormatInfo;

QuantTensor make_quant_tensor(Format format, int64_t experts, int64_t rows, int64_t cols) {
  const FormatInfo f = info(format);
  check(experts >= 0 && rows >= 0 && cols >= 0, "a weight of {} experts, {} rows and {} columns has a negative size",
        experts, rows, cols);
  check(f.bits != 4 || cols % 2 == 0,
        "{} columns cannot be stored as {}: two 4-bit codes share a byte, so the number "
        "must be even",
        cols, f.name);
  const ScaleGrid grid = scale_grid(format, rows, cols);
  QuantTensor w{format, experts, rows, cols, {}, {}, {}};
  w.codes = Tensor(code_type(f), {experts, rows, f.bits == 4 ? cols / 2 : cols});
  Shape scales{experts};
  if (grid.rank >= 1) scales.push_back(grid.rows);
  if (grid.rank == 2) scales.push_back(grid.cols);
  if (f.scale != format::ScaleType::none) w.scales = Tensor(scale_type(f), std::move(scales));
  if (f.global_scale) w.global = Tensor(DType::f32, {experts});
  return w;
}

Tensor dequantize(const QuantTensor& w) {
  Tensor out(DType::f32, {w.experts, w.rows, w.cols});
  for (int64_t e = 0; e < w.experts; ++e) {
    const void* scales = w.scales.empty() ? nullptr : w.scales.rows(e, e + 1).data();
    const float global = w.global.empty() ? 1.0f : w.global.as<float>()[e];
    format::dequantize_weight(w.format, w.codes.slice(e).data(), scales, global, w.rows, w.cols,
                              out.as<float>() + e * w.rows * w.cols);
  }
  return out;
}

}  // namespace sluice::weights
