// SPDX-License-Identifier: Apache-2.0
#include "weights/region.h"

#include <algorithm>
#include <cstring>

#include "weights/scale_grid.h"

namespace sluice::weights {

using format::FormatInfo;
using format::ScaleType;

namespace {

// Bytes of one matrix of a tensor, as rows.
template <class Byte>
struct Plane {
  Byte* data;
  int64_t row_bytes;
  Byte* at(int64_t row, int64_t byte) const { return data + row * row_bytes + byte; }
};

template <class T>
auto code_plane(T& w, int64_t expert) {
  const int64_t row_bytes = w.cols * info(w.format).bits / 8;
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return Plane<Byte>{const_cast<Byte*>(w.code_row(expert, 0)), row_bytes};
}

template <class T>
auto scale_plane(T& w, int64_t expert, const ScaleGrid& grid) {
  const int64_t row_bytes = grid.cols * bytes_of(w.scales.dtype());
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return Plane<Byte>{static_cast<Byte*>(w.scales.data()) + expert * grid.rows * row_bytes, row_bytes};
}

void check_cut(int64_t at, int64_t group, int64_t end, std::string_view what, std::string_view format) {
  check(at % group == 0 || at == end, "{} cannot be cut at {}: a scale of {} covers {} of them", what, at, format,
        group);
}

}  // namespace

namespace {
void check_region(const QuantTensor& src, int64_t src_expert, int64_t row_begin, int64_t row_step, int64_t count,
                  Range cols, const QuantTensor& dst, int64_t dst_expert) {
  const FormatInfo f = info(src.format);
  check(src.format == dst.format, "weights of format {} were copied to {}", f.name, info(dst.format).name);
  check(src_expert >= 0 && src_expert < src.experts && dst_expert >= 0 && dst_expert < dst.experts,
        "expert {} of {} was copied to {} of {}", src_expert, src.experts, dst_expert, dst.experts);
  const int64_t last = count > 0 ? row_begin + (count - 1) * row_step + 1 : row_begin;
  check(count >= 0 && row_step >= 1 && row_begin >= 0 && last <= src.rows && count <= dst.rows,
        "rows {} to {} of {} do not fit into {}", row_begin, last, src.rows, dst.rows);
  check(cols.begin >= 0 && cols.begin <= cols.end && cols.end <= src.cols && cols.size() <= dst.cols,
        "columns {} to {} of {} do not fit into {}", cols.begin, cols.end, src.cols, dst.cols);
  const int64_t code_group = f.bits == 4 ? 2 : 1;
  check_cut(cols.begin, std::max<int64_t>(f.group_k, code_group), src.cols, "columns", f.name);
  check_cut(cols.end, std::max<int64_t>(f.group_k, code_group), src.cols, "columns", f.name);
  check(f.group_n <= 1 || row_step == 1, "rows of {} cannot be taken with a step of {}: a scale covers {} rows", f.name,
        row_step, f.group_n);
  check_cut(row_begin, std::max(f.group_n, 1), src.rows, "rows", f.name);
  check_cut(last, std::max(f.group_n, 1), src.rows, "rows", f.name);
}
}  // namespace

void copy_region(const QuantTensor& src, int64_t src_expert, int64_t row_begin, int64_t row_step, int64_t count,
                 Range cols, QuantTensor& dst, int64_t dst_expert) {
  copy_scales(src, src_expert, row_begin, row_step, count, cols, dst, dst_expert);
  const FormatInfo f = info(src.format);
  const auto from = code_plane(src, src_expert);
  const auto to = code_plane(dst, dst_expert);
  const int64_t offset = cols.begin * f.bits / 8, bytes = cols.size() * f.bits / 8;
  for (int64_t r = 0; r < count; ++r) std::memcpy(to.at(r, 0), from.at(row_begin + r * row_step, offset), bytes);
}

void copy_scales(const QuantTensor& src, int64_t src_expert, int64_t row_begin, int64_t row_step, int64_t count,
                 Range cols, QuantTensor& dst, int64_t dst_expert) {
  check_region(src, src_expert, row_begin, row_step, count, cols, dst, dst_expert);
  const FormatInfo f = info(src.format);
  if (f.global_scale) dst.global.as<float>()[dst_expert] = src.global.as<float>()[src_expert];
  if (f.scale == ScaleType::none) return;
  const ScaleGrid src_grid = scale_grid(src.format, src.rows, src.cols);
  const ScaleGrid dst_grid = scale_grid(dst.format, dst.rows, dst.cols);
  const auto scales_from = scale_plane(src, src_expert, src_grid);
  const auto scales_to = scale_plane(dst, dst_expert, dst_grid);
  const int64_t size = bytes_of(src.scales.dtype());
  // 0 in FormatInfo is "all": the one scale goes along with any part.
  const int64_t scale_rows = f.group_n == 0 ? 1 : ceil_div<int64_t>(count, f.group_n);
  const int64_t first_row = f.group_n == 0 ? 0 : row_begin / f.group_n;
  const int64_t first_col = f.group_k == 0 ? 0 : cols.begin / f.group_k;
  const int64_t scale_cols = f.group_k == 0 ? 1 : ceil_div<int64_t>(cols.size(), f.group_k);
  for (int64_t r = 0; r < scale_rows; ++r)
    std::memcpy(scales_to.at(r, 0), scales_from.at(first_row + r * row_step, first_col * size), scale_cols * size);
}

QuantTensor cut(const QuantTensor& w, Range experts, Range rows, Range cols) {
  QuantTensor part = make_quant_tensor(w.format, experts.size(), rows.size(), cols.size());
  for (int64_t e = 0; e < experts.size(); ++e)
    copy_region(w, experts.begin + e, rows.begin, 1, rows.size(), cols, part, e);
  return part;
}

void fill_neutral(QuantTensor& w) {
  w.codes.zero();
  if (!w.global.empty()) std::fill_n(w.global.as<float>(), w.global.elements(), 1.0f);
  switch (info(w.format).scale) {
    case ScaleType::none:
      break;
    case ScaleType::f32:
      std::fill_n(w.scales.as<float>(), w.scales.elements(), 1.0f);
      break;
    case ScaleType::e8m0:
      std::memset(w.scales.data(), 127, static_cast<size_t>(w.scales.bytes()));
      break;
    case ScaleType::e4m3:
      w.scales.zero();
  }
}

}  // namespace sluice::weights
