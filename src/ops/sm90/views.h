// SPDX-License-Identifier: Apache-2.0
// Matrices and tensors of a device as the kernels take them.
#pragma once

#include "base/error.h"
#include "kernels/sm90/rows.h"
#include "ops/matrix.h"
#include "ops/pages.h"
#include "tensor/tensor.h"

namespace sluice::ops::sm90 {

inline bool is_f32(DType dtype, const char* what) {
  check(dtype == DType::f32 || dtype == DType::bf16, "{} is {}; bfloat16 or float32 is expected", what,
        to_string(dtype));
  return dtype == DType::f32;
}
inline sluice::sm90::RowsView view(Matrix m, const char* what) { return {m.data, m.stride, is_f32(m.dtype, what)}; }
inline sluice::sm90::ConstRowsView view(ConstMatrix m, const char* what) {
  return {m.data, m.stride, is_f32(m.dtype, what)};
}

// float32 in the device's memory; null for an empty tensor.
inline const float* floats(const Tensor& t, const char* what) {
  if (t.empty()) return nullptr;
  check(t.dtype() == DType::f32 && !t.device().is_host(), "{} is {} on {}; float32 on the GPU is expected", what,
        to_string(t.dtype()), to_string(t.device()));
  return static_cast<const float*>(t.address());
}

inline void check_same_type(DType a, DType b, const char* what) {
  check(a == b, "{} has matrices of {} and {}; one type is expected", what, to_string(a), to_string(b));
}

// Pages that a run of type D keeps: of D or e4m3.
inline void check_page_type(DType d, const Pages& pages, const char* what) {
  check(pages.dtype == d || pages.dtype == DType::e4m3, "{} has rows of {} and pages of {}; accepted: {}, {}", what,
        to_string(d), to_string(pages.dtype), to_string(d), to_string(DType::e4m3));
}

}  // namespace sluice::ops::sm90
