// SPDX-License-Identifier: Apache-2.0
#include "weights/requantize.h"

#include <algorithm>
#include <vector>

#include "format/quantize.h"
#include "format/quantize_weights.h"
#include "weights/region.h"
#include "weights/scale_grid.h"

namespace sluice::weights {

using format::Format;

namespace {

// Rows of one task: a multiple of every format's scale rows, so that no scale has two writers.
constexpr int64_t kRows = 128;

// Rows [begin, end) of matrix e as float.
void read_rows(const QuantTensor& w, int64_t e, Range rows, std::vector<float>& out) {
  out.resize(static_cast<size_t>(rows.size() * w.cols));
  if (w.format == Format::bf16) {
    const auto* codes = reinterpret_cast<const uint16_t*>(w.code_row(e, rows.begin));
    std::transform(codes, codes + out.size(), out.begin(), bf16_to_float);
    return;
  }
  const Tensor values = dequantize(cut(w, {e, e + 1}, rows, {0, w.cols}));
  std::copy_n(values.as<float>(), out.size(), out.begin());
}

}  // namespace

QuantTensor quantize(Context& ctx, Format format, const QuantTensor& w, const MakeTensor& make_codes) {
  if (format == w.format) return w;
  QuantTensor out = make_quant_tensor(format, w.experts, w.rows, w.cols, make_codes);
  const format::FormatInfo f = info(format);
  const ScaleGrid grid = scale_grid(format, w.rows, w.cols);
  const int64_t chunks = ceil_div(w.rows, kRows), tasks = w.experts * chunks;
  const bool whole = format == Format::fp8_tensor || f.global_scale;  // a scale needs every row's amax first
  std::vector<std::vector<float>> values(static_cast<size_t>(ctx.pool.size()));
  const auto rows_of = [&](int64_t task) {
    const int64_t begin = task % chunks * kRows;
    return Range{begin, std::min(begin + kRows, w.rows)};
  };

  std::vector<float> amax(static_cast<size_t>(whole ? tasks : 0));
  if (whole)
    ctx.pool.parallel_for(tasks, [&](int64_t task, int worker) {
      auto& x = values[static_cast<size_t>(worker)];
      w.begin_rows(task / chunks, rows_of(task).begin, rows_of(task).end);
      read_rows(w, task / chunks, rows_of(task), x);
      amax[static_cast<size_t>(task)] = format::amax_of(x.data(), static_cast<int64_t>(x.size()));
    });
  for (int64_t task = 0; task < static_cast<int64_t>(amax.size()); ++task) {
    // NaN wins, as in amax_bits: std::max would lose it.
    float& of_matrix = amax[static_cast<size_t>(task / chunks * chunks)];
    const float x = amax[static_cast<size_t>(task)];
    if (of_matrix == of_matrix && !(x <= of_matrix)) of_matrix = x;
  }

  auto* codes = static_cast<std::byte*>(out.codes.data());
  auto* scales = static_cast<std::byte*>(out.scales.data());
  const int64_t scale_bytes = f.scale == format::ScaleType::none ? 0 : bytes_of(scale_type(f));
  ctx.pool.parallel_for(tasks, [&](int64_t task, int worker) {
    const int64_t e = task / chunks;
    const Range rows = rows_of(task);
    auto& x = values[static_cast<size_t>(worker)];
    w.begin_rows(e, rows.begin, rows.end);
    read_rows(w, e, rows, x);
    w.end_rows(e, rows.begin, rows.end);
    const int64_t scale_at = (e * grid.rows + rows.begin / grid.group_n) * grid.cols;
    float same_scale = 0, same_global = 0;  // what every task of one matrix finds; its first task stores it
    void* scales_at = format == Format::fp8_tensor ? static_cast<void*>(&same_scale) : scales + scale_at * scale_bytes;
    format::quantize_weight(format, x.data(), rows.size(), w.cols,
                            codes + (e * w.rows + rows.begin) * w.cols * f.bits / 8, scales_at, &same_global,
                            whole ? std::optional(amax[static_cast<size_t>(e * chunks)]) : std::nullopt);
    if (rows.begin == 0 && format == Format::fp8_tensor) out.scales.as<float>()[e] = same_scale;
    if (rows.begin == 0 && f.global_scale) out.global.as<float>()[e] = same_global;
  });
  if (chunks == 0) fill_neutral(out);
  return out;
}

ExpertWeights quantize(Context& ctx, Format format, const ExpertWeights& w, const MakeTensor& make_codes) {
  ExpertWeights out = w;
  out.up = quantize(ctx, format, w.up, make_codes);
  if (!w.gate.empty()) out.gate = quantize(ctx, format, w.gate, make_codes);
  out.down = quantize(ctx, format, w.down, make_codes);
  return out;
}

}  // namespace sluice::weights
