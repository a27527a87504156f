// SPDX-License-Identifier: Apache-2.0
#include "format/quantize_tensor.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/math.h"
#include "format/quantize.h"
#include "format/quantize_rows.h"

namespace sluice::format {

namespace {

// MXFP4, the only coding without an InputFormat, never gets here.
InputFormat input_format(Coding c) { return parse_name(kInputFormats, "coding", name_of(kCodings, c)); }

int64_t groups_of(const CodedTensor& t) {
  return coding_group(t.coding) ? ceil_div<int64_t>(t.cols, coding_group(t.coding)) : 0;
}
int64_t row_bytes(const CodedTensor& t) { return is_four_bit(t.coding) ? ceil_div<int64_t>(t.cols, 2) : t.cols; }

template <class T>
T& scale_at(const CodedTensor& t, int64_t row, int64_t group) {
  return static_cast<T*>(t.scales)[scale_offset(t.layout, row, group, t.rows, groups_of(t))];
}

void quantize_row_mxfp4(const CodedTensor& to, const float* x, int64_t row) {
  uint8_t* codes = to.codes + row * row_bytes(to);
  for (int64_t g = 0; g < groups_of(to); ++g) {
    const int64_t begin = g * 32;
    scale_at<uint8_t>(to, row, g) =
        quantize_group_mxfp4(x + begin, static_cast<int>(std::min<int64_t>(32, to.cols - begin)), codes + begin / 2);
  }
}

void dequantize_row_mxfp4(const CodedTensor& from, int64_t row, float* x) {
  const uint8_t* codes = from.codes + row * row_bytes(from);
  for (int64_t k = 0; k < from.cols; ++k)
    x[k] = e2m1_to_float(codes[k / 2] >> (k % 2 * 4) & 15) * e8m0_to_float(scale_at<uint8_t>(from, row, k / 32));
}

// Bytes of a row's codes of the block that begins at `column`; where the row ends, codes beyond it become zero.
void store_block(const CodedTensor& to, int64_t row, int64_t column, uint64_t codes) {
  const int64_t count = std::min<int64_t>(16, to.cols - column);
  if (count < 16) codes &= (uint64_t{1} << (4 * count)) - 1;
  uint8_t* bytes = to.codes + row * row_bytes(to) + column / 2;
  for (int64_t i = 0; i < ceil_div<int64_t>(count, 2); ++i) bytes[i] = static_cast<uint8_t>(codes >> (8 * i));
}

void quantize_row_four_over_six(const CodedTensor& to, const float* x, int64_t row) {
  FourOverSixFactors f;
  if (to.coding == Coding::nvfp4_token) {
    f = four_over_six_row(amax_of(x, to.cols), to.four_over_six.e4m3_max);
    to.row_scales[row] = f.global.decode;
  } else {
    f = four_over_six_tensor(to.encodes ? nvfp4_encode(to.input_scale) : nvfp4_global(to.input_scale));
  }
  for (int64_t g = 0; g < groups_of(to); ++g) {
    float block[16] = {};
    std::copy_n(x + g * 16, std::min<int64_t>(16, to.cols - g * 16), block);
    const FourOverSixBlock b = quantize_block_four_over_six(block, f, to.four_over_six);
    scale_at<uint8_t>(to, row, g) = b.scale;
    store_block(to, row, g * 16, b.codes);
  }
}

}  // namespace

void check_coded(const CodedTensor& t) {
  const std::string_view name = name_of(kCodings, t.coding);
  const bool blocks = coding_group(t.coding) > 0, floats = t.coding == Coding::fp8_group;
  check(t.codes != nullptr, "codes is NULL; it must be given");
  check(blocks == (t.scales != nullptr), "{} {} scales", name, blocks ? "needs" : "takes no");
  check(has_row_scales(t.coding) == (t.row_scales != nullptr), "{} {} row_scales", name,
        has_row_scales(t.coding) ? "needs" : "takes no");
  check(!blocks || t.layout == ScaleLayout::linear || (t.layout == ScaleLayout::transposed) == floats,
        "scales of {} do not come in layout {}", name, name_of(kScaleLayouts, t.layout));
  check(!t.four_over_six.on || t.coding == Coding::nvfp4 || t.coding == Coding::nvfp4_token,
        "four_over_six is given with {}; accepted with nvfp4, nvfp4_token", name);
}

void clear_scales(const CodedTensor& t) {
  if (t.scales == nullptr) return;
  const int64_t bytes = t.coding == Coding::fp8_group ? 4 : 1;
  std::memset(t.scales, 0, static_cast<size_t>(scale_elements(t.layout, t.rows, groups_of(t)) * bytes));
}

void quantize_into(const CodedTensor& to, const float* x, int64_t first, int64_t count) {
  if (to.coding == Coding::mxfp4) {
    for (int64_t r = 0; r < count; ++r) quantize_row_mxfp4(to, x + r * to.cols, first + r);
    return;
  }
  if (to.four_over_six.on) {
    check_input_scale(input_format(to.coding), to.input_scale);
    for (int64_t r = 0; r < count; ++r) quantize_row_four_over_six(to, x + r * to.cols, first + r);
    return;
  }
  const QuantRows q = quantize_rows(input_format(to.coding), x, count, to.cols, to.input_scale, to.encodes);
  if (!q.codes.empty()) std::memcpy(to.codes + first * row_bytes(to), q.codes.data(), q.codes.size());
  const int64_t groups = groups_of(to);
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t g = 0; g < groups; ++g) {
      const auto at = static_cast<size_t>(r * groups + g);
      if (to.coding == Coding::fp8_group)
        scale_at<float>(to, first + r, g) = q.group_scales[at];
      else
        scale_at<uint8_t>(to, first + r, g) = q.scales[at];
    }
    if (to.row_scales != nullptr) to.row_scales[first + r] = q.row_scales[static_cast<size_t>(r)];
  }
}

void dequantize_from(const CodedTensor& from, int64_t first, int64_t count, float* x) {
  if (from.coding == Coding::mxfp4) {
    for (int64_t r = 0; r < count; ++r) dequantize_row_mxfp4(from, first + r, x + r * from.cols);
    return;
  }
  QuantRows q;
  q.format = input_format(from.coding);
  q.rows = count;
  q.cols = from.cols;
  const uint8_t* codes = from.codes + first * row_bytes(from);
  q.codes.assign(codes, codes + count * row_bytes(from));
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t g = 0; g < groups_of(from); ++g) {
      if (from.coding == Coding::fp8_group)
        q.group_scales.push_back(scale_at<float>(from, first + r, g));
      else
        q.scales.push_back(scale_at<uint8_t>(from, first + r, g));
    }
    if (from.row_scales != nullptr)
      q.row_scales.push_back(from.row_scales[first + r]);
    else if (is_calibrated(from.coding))
      q.row_scales.push_back(from.input_scale);
  }
  dequantize_rows(q, x);
}

}  // namespace sluice::format
