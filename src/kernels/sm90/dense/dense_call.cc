// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/dense/dense_call.h"

#include "base/error.h"

namespace sluice::sm90 {

void check_dense_call(const DenseSpec& s, const DenseCall& a) {
  using format::InputFormat;
  using format::ScaleLayout;
  check(a.tokens >= 0, "tokens is {}; it must not be negative", a.tokens);
  if (a.tokens == 0) return;
  check((a.x == nullptr) != (a.codes == nullptr), "{} of x and codes are given; one is needed",
        a.x == nullptr ? "none" : "both");
  check(a.y != nullptr, "y is null for {} tokens", a.tokens);
  const auto inputs = name_of(format::kInputFormats, s.inputs);
  if (a.x != nullptr) {
    check(a.row_scales == nullptr, "row_scales are given with x; the call makes its own");
    return;
  }
  check(s.inputs != InputFormat::plain, "codes are given, but inputs are {} and have none", inputs);
  const bool by_row = s.inputs == InputFormat::fp8_token || s.inputs == InputFormat::nvfp4_token;
  check(!by_row || a.row_scales != nullptr, "row_scales is null; codes of {} have a scale per row", inputs);
  if (format::group_of(s.inputs) == 0) return;
  check(a.scales != nullptr, "scales is null; codes of {} have a scale per {} columns", inputs,
        format::group_of(s.inputs));
  const bool floats = s.inputs == InputFormat::fp8_group;
  check(a.layout == ScaleLayout::linear || (a.layout == ScaleLayout::transposed) == floats,
        "scales of {} do not come in layout {}", inputs, name_of(format::kScaleLayouts, a.layout));
}

}  // namespace sluice::sm90
