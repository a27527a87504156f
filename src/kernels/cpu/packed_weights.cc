// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/packed_weights.h"

#include <cstring>
#include <limits>

#include "base/math.h"
#include "kernels/cpu/panel_codes.h"

namespace sluice::kernels::cpu {

using format::Format;
using format::ScaleType;

namespace {
constexpr int kBlockBytes = 64;

bool has_e4m3_nan(const uint8_t* codes, int64_t n) {
  uint8_t found = 0;  // a byte, so that the compiler compares 16 or more bytes at once
  for (int64_t i = 0; i < n; ++i) found |= static_cast<uint8_t>((codes[i] & 0x7f) == 0x7f ? 1 : 0);
  return found != 0;
}

bool has_byte(const uint8_t* bytes, int64_t n, uint8_t value) {
  uint8_t found = 0;
  for (int64_t i = 0; i < n; ++i) found |= static_cast<uint8_t>(bytes[i] == value ? 1 : 0);
  return found != 0;
}

// What the finished sum of output n is multiplied by: NaN if a code or a block scale of the row is NaN.
float row_scale(const weights::QuantTensor& w, int64_t e, int64_t n, Fp8Order order) {
  const format::FormatInfo f = info(w.format);
  float scale = 1.0f;
  if (w.format == Format::fp8_tensor) scale = w.scales.as<float>()[e];
  if (w.format == Format::fp8_channel) scale = w.scales.as<float>()[e * w.rows + n];
  if (f.global_scale) scale = w.global.as<float>()[e];
  if (f.bits == 8 && order == Fp8Order::f16) scale *= kE4m3F16Factor;
  if (f.scale == ScaleType::e4m3) scale *= kE4m3F16Factor;

  bool nan = f.bits == 8 && has_e4m3_nan(reinterpret_cast<const uint8_t*>(w.code_row(e, n)), w.cols);
  if (f.scale == ScaleType::e8m0 || f.scale == ScaleType::e4m3) {
    const int64_t groups = ceil_div<int64_t>(w.cols, f.group_k);
    const uint8_t* row = static_cast<const uint8_t*>(w.scales.data()) + (e * w.rows + n) * groups;
    nan = nan || (f.scale == ScaleType::e8m0 ? has_byte(row, groups, 255u) : has_e4m3_nan(row, groups));
  }
  return nan ? std::numeric_limits<float>::quiet_NaN() : scale;
}
}  // namespace

void PackedWeights::lay_out(Format format, int64_t experts, int64_t n, int64_t k, bool gated) {
  check(experts > 0 && n > 0 && k > 0, "a weight is {} matrices of [{}, {}]; every size must be positive", experts, n,
        k);
  format_ = format;
  gated_ = gated;
  experts_ = experts;
  n_ = n;
  k_ = k;
  padded_k_ = round_up(k, kPackedKAlign);
  const format::FormatInfo f = info(format_);
  panels_ = ceil_div<int64_t>(n_, kPanelN) * (gated_ ? 2 : 1);
  const int64_t panel_codes = kPanelN * padded_k_ * f.bits / 8;
  int64_t panel_scales = 0;
  if (f.group_k > 1) panel_scales = ceil_div<int64_t>(padded_k_, f.group_k) * (f.scale == ScaleType::f32 ? 4 : kPanelN);
  n_tile_codes_ = kNTilePanels * panel_codes;
  n_tile_scales_ = kNTilePanels * panel_scales;
  expert_codes_ = panels_ * panel_codes;
  // Each expert's scales start on a cache line of their own, so that no vector load of 16 scales crosses two lines.
  expert_scales_ = round_up<int64_t>(panels_ * panel_scales, kBlockBytes);
}

template <class Take>
void PackedWeights::take_arrays(Take&& take) {
  codes_ = take(DType::u8, Shape{experts_, expert_codes_});
  if (expert_scales_ > 0) scales_ = take(DType::u8, Shape{experts_, expert_scales_});
  row_scales_ = take(DType::f32, Shape{experts_, panels_ * kPanelN});
}

PackedWeights::PackedWeights(Context& ctx, const weights::QuantTensor& w, const weights::QuantTensor* up,
                             Fp8Order order, BumpAllocator* memory)
    : order_(order) {
  lay_out(w.format, w.experts, w.rows, w.cols, up != nullptr);
  take_arrays([&](DType dtype, Shape shape) {
    if (memory == nullptr) return Tensor(dtype, std::move(shape));
    const void* data = memory->allocate<std::byte>(elements_of(shape) * bytes_of(dtype));
    return Tensor(dtype, std::move(shape), data, nullptr);
  });
  refit(ctx, w, up);
}

int64_t PackedWeights::packed_bytes(Format format, int64_t experts, int64_t n, int64_t k, bool gated) {
  PackedWeights p;
  p.lay_out(format, experts, n, k, gated);
  BumpAllocator counter(nullptr);
  p.take_arrays([&](DType dtype, const Shape& shape) {
    counter.allocate<std::byte>(elements_of(shape) * bytes_of(dtype));
    return Tensor();
  });
  return counter.used();
}

void PackedWeights::refit(Context& ctx, const weights::QuantTensor& w, const weights::QuantTensor* up) {
  check(w.format == format_ && w.experts == experts_ && w.rows == n_ && w.cols == k_ && (up != nullptr) == gated_,
        "refit got a weight of {} experts, [{}, {}]; it must be {} experts, [{}, {}] as packed before", w.experts,
        w.rows, w.cols, experts_, n_, k_);
  check(up == nullptr || (up->format == format_ && up->rows == n_ && up->cols == k_ && up->experts == experts_),
        "gate and up must have one format and shape");
  // A task packs N-tiles that follow each other, as many as fill a huge page, unless the threads would not have four
  // tasks each. This is also what first touches the new pages, so all threads do it, and not in the same page: both
  // would clear one.
  constexpr int64_t kHugePage = int64_t{2} << 20;
  const int64_t all = experts_ * n_tiles();
  const int64_t run = std::clamp<int64_t>(all / (4 * ctx.pool.size()), 1, ceil_div(kHugePage, n_tile_codes_));
  ctx.pool.parallel_for(ceil_div(all, run), [&](int64_t task, int) {
    const int64_t last = std::min(all, (task + 1) * run);
    for (int64_t t = task * run; t < last;) {
      const int64_t expert = t / n_tiles(), first = t % n_tiles(), end = std::min(n_tiles(), first + last - t);
      pack_n_tiles(w, up, expert, first, end);
      t += end - first;
    }
  });
}

// N-tiles [first, end) of an expert.
void PackedWeights::pack_n_tiles(const weights::QuantTensor& w, const weights::QuantTensor* up, int64_t expert,
                                 int64_t first, int64_t end) {
  const int64_t tile_rows = gated_ ? kPanelN : kNTile, row = first * tile_rows, row_end = std::min(n_, end * tile_rows);
  w.begin_rows(expert, row, row_end);
  if (up != nullptr) up->begin_rows(expert, row, row_end);
  for (int64_t t = first; t < end; ++t) pack_n_tile(w, up, expert, t);
  w.end_rows(expert, row, row_end);
  if (up != nullptr) up->end_rows(expert, row, row_end);
}

void PackedWeights::pack_n_tile(const weights::QuantTensor& w, const weights::QuantTensor* up, int64_t expert,
                                int64_t index) {
  const format::FormatInfo f = info(format_);
  const NTileView view = n_tile(expert, index);
  const int64_t row_bytes = k_ * f.bits / 8;
  const int64_t groups = f.group_k > 1 ? ceil_div<int64_t>(k_, f.group_k) : 0;
  const int64_t padded_groups = f.group_k > 1 ? ceil_div<int64_t>(padded_k_, f.group_k) : 0;
  for (int p = 0; p < view.panels; ++p) {
    const weights::QuantTensor& m = gated_ && p == 1 ? *up : w;
    const int64_t first = gated_ ? index * kPanelN : (index * kNTilePanels + p) * kPanelN;
    const int64_t valid = std::min<int64_t>(kPanelN, n_ - first);
    const uint8_t* row[kPanelN] = {};
    for (int64_t r = 0; r < valid; ++r) row[r] = reinterpret_cast<const uint8_t*>(m.code_row(expert, first + r));
    uint8_t* codes = const_cast<uint8_t*>(view.codes) + p * kBlockBytes;
    const CodeOrder order = f.bits == 16              ? CodeOrder::dword
                            : f.bits == 4             ? CodeOrder::nibbles
                            : order_ == Fp8Order::f16 ? CodeOrder::f16
                                                      : CodeOrder::bf16_pairs;
    pack_codes(order, row, row_bytes, padded_k_ * f.bits / 8, codes, view.panels * kBlockBytes);

    float* row_scales = const_cast<float*>(view.row_scale) + p * kPanelN;
    for (int64_t r = 0; r < kPanelN; ++r) row_scales[r] = r < valid ? row_scale(m, expert, first + r, order_) : 0.0f;

    uint8_t* scales = const_cast<uint8_t*>(view.scales);
    if (format_ == Format::fp8_block) {
      const float* source = m.scales.as<float>() + (expert * ceil_div<int64_t>(n_, 128) + first / 128) * groups;
      for (int64_t g = 0; g < padded_groups; ++g) {
        const float s = g < groups ? source[g] : 0.0f;
        std::memcpy(scales + (g * view.panels + p) * 4, &s, 4);
      }
    } else if (padded_groups > 0) {
      const uint8_t* source = static_cast<const uint8_t*>(m.scales.data()) + (expert * n_ + first) * groups;
      for (int64_t r = 0; r < valid; ++r) row[r] = source + r * groups;
      pack_bytes(row, groups, padded_groups, scales + p * kPanelN, view.panels * kPanelN);
    }
  }
}

}  // namespace sluice::kernels::cpu
