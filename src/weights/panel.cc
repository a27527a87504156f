// SPDX-License-Identifier: Apache-2.0
#include "weights/panel.h"

#include <cstring>
#include <limits>

#include "base/math.h"
#include "weights/panel_codes.h"

namespace sluice::weights {

using format::Format;
using format::ScaleType;

namespace {
constexpr int kBlockBytes = 64;

bool has_e4m3_nan(const uint8_t* codes, int64_t n) {
  uint8_t found = 0;  // a byte, so that the compiler compares 16 and more at once
  for (int64_t i = 0; i < n; ++i) found |= static_cast<uint8_t>((codes[i] & 0x7f) == 0x7f ? 1 : 0);
  return found != 0;
}

bool has_byte(const uint8_t* bytes, int64_t n, uint8_t value) {
  uint8_t found = 0;
  for (int64_t i = 0; i < n; ++i) found |= static_cast<uint8_t>(bytes[i] == value ? 1 : 0);
  return found != 0;
}

// The scale that is applied to the finished sum of row n; NaN where a code or a block scale of the row is NaN.
float row_scale(const QuantTensor& w, int64_t e, int64_t n, Fp8Order order) {
  const format::FormatInfo f = info(w.format);
  float scale = 1.0f;
  if (w.format == Format::fp8_tensor) scale = w.scales.as<float>()[e];
  if (w.format == Format::fp8_channel) scale = w.scales.as<float>()[e * w.rows + n];
  if (f.global_scale) scale = w.global.as<float>()[e];
  if (f.bits == 8 && order == Fp8Order::halves) scale *= kHalfFactor;
  if (f.scale == ScaleType::e4m3) scale *= kHalfFactor;

  bool nan =
      f.bits == 8 && has_e4m3_nan(static_cast<const uint8_t*>(w.codes.data()) + (e * w.rows + n) * w.cols, w.cols);
  if (f.scale == ScaleType::e8m0 || f.scale == ScaleType::e4m3) {
    const int64_t groups = ceil_div<int64_t>(w.cols, f.group_k);
    const uint8_t* row = static_cast<const uint8_t*>(w.scales.data()) + (e * w.rows + n) * groups;
    nan = nan || (f.scale == ScaleType::e8m0 ? has_byte(row, groups, 255u) : has_e4m3_nan(row, groups));
  }
  return nan ? std::numeric_limits<float>::quiet_NaN() : scale;
}
}  // namespace

PanelStack::PanelStack(Context& ctx, const QuantTensor& w, const QuantTensor* up, Fp8Order order)
    : format_(w.format),
      order_(order),
      paired_(up != nullptr),
      experts_(w.experts),
      rows_(w.rows),
      cols_(w.cols),
      padded_cols_(round_up(w.cols, kPanelAlignK)) {
  const format::FormatInfo f = info(format_);
  panels_ = ceil_div<int64_t>(rows_, kPanelRows) * (paired_ ? 2 : 1);
  const int64_t panel_codes = kPanelRows * padded_cols_ * f.bits / 8;
  int64_t panel_scales = 0;
  if (f.group_k > 1)
    panel_scales = ceil_div<int64_t>(padded_cols_, f.group_k) * (f.scale == ScaleType::f32 ? 4 : kPanelRows);
  unit_codes_ = kUnitPanels * panel_codes;
  unit_scales_ = kUnitPanels * panel_scales;
  expert_codes_ = panels_ * panel_codes;
  // Each expert starts on its own cache line, as vector loads of 16 scales then never straddle two.
  expert_scales_ = round_up<int64_t>(panels_ * panel_scales, kBlockBytes);
  codes_ = Tensor(DType::u8, {experts_, expert_codes_});
  if (panel_scales > 0) scales_ = Tensor(DType::u8, {experts_, expert_scales_});
  row_scales_ = Tensor(DType::f32, {experts_, panels_ * kPanelRows});
  refit(ctx, w, up);
}

void PanelStack::refit(Context& ctx, const QuantTensor& w, const QuantTensor* up) {
  check(
      w.format == format_ && w.experts == experts_ && w.rows == rows_ && w.cols == cols_ && (up != nullptr) == paired_,
      "refit got a weight of {} experts, [{}, {}]; it must be {} experts, [{}, {}] as prepared", w.experts, w.rows,
      w.cols, experts_, rows_, cols_);
  check(up == nullptr || (up->format == format_ && up->rows == rows_ && up->cols == cols_ && up->experts == experts_),
        "gate and up must have one format and shape");
  // Units in parallel: this is also what touches the fresh pages first, by all threads at once.
  ctx.pool.parallel_for(experts_ * units(),
                        [&](int64_t task, int) { pack_unit(w, up, task / units(), task % units()); });
}

void PanelStack::pack_unit(const QuantTensor& w, const QuantTensor* up, int64_t e, int64_t u) {
  const format::FormatInfo f = info(format_);
  const UnitView view = unit(e, u);
  const int64_t row_bytes = cols_ * f.bits / 8;
  const int64_t groups = f.group_k > 1 ? ceil_div<int64_t>(cols_, f.group_k) : 0;
  const int64_t padded_groups = f.group_k > 1 ? ceil_div<int64_t>(padded_cols_, f.group_k) : 0;
  for (int p = 0; p < view.panels; ++p) {
    const QuantTensor& m = paired_ && p == 1 ? *up : w;
    const int64_t first = paired_ ? u * kPanelRows : (u * kUnitPanels + p) * kPanelRows;
    const int64_t valid = std::min<int64_t>(kPanelRows, rows_ - first);
    const uint8_t* row[kPanelRows] = {};
    for (int64_t r = 0; r < valid; ++r)
      row[r] = static_cast<const uint8_t*>(m.codes.data()) + (e * rows_ + first + r) * row_bytes;
    uint8_t* codes = const_cast<uint8_t*>(view.codes) + p * kBlockBytes;
    const Place place = f.bits == 16                 ? Place::dword
                        : f.bits == 4                ? Place::nibbles
                        : order_ == Fp8Order::halves ? Place::halves
                                                     : Place::pairs;
    pack_codes(place, row, row_bytes, padded_cols_ * f.bits / 8, codes, view.panels * kBlockBytes);

    float* row_scales = const_cast<float*>(view.row_scale) + p * kPanelRows;
    for (int64_t r = 0; r < kPanelRows; ++r) row_scales[r] = r < valid ? row_scale(m, e, first + r, order_) : 0.0f;

    uint8_t* scales = const_cast<uint8_t*>(view.scales);
    if (format_ == Format::fp8_block) {
      const float* source = m.scales.as<float>() + (e * ceil_div<int64_t>(rows_, 128) + first / 128) * groups;
      for (int64_t g = 0; g < padded_groups; ++g) {
        const float s = g < groups ? source[g] : 0.0f;
        std::memcpy(scales + (g * view.panels + p) * 4, &s, 4);
      }
    } else if (padded_groups > 0) {
      const uint8_t* source = static_cast<const uint8_t*>(m.scales.data()) + (e * rows_ + first) * groups;
      for (int64_t r = 0; r < valid; ++r) row[r] = source + r * groups;
      pack_bytes(row, groups, padded_groups, scales + p * kPanelRows, view.panels * kPanelRows);
    }
  }
}

}  // namespace sluice::weights
