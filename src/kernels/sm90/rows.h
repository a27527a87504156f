// SPDX-License-Identifier: Apache-2.0
// Rows of activations in device memory, as the operations' kernels take them.
#pragma once

#include <cstdint>

namespace sluice::sm90 {

struct RowsView {
  void* data;
  int64_t stride;  // elements from row to row
  bool f32;        // else bf16
};
struct ConstRowsView {
  const void* data;
  int64_t stride;
  bool f32;
  ConstRowsView() = default;
  ConstRowsView(const void* d, int64_t s, bool f) : data(d), stride(s), f32(f) {}
  ConstRowsView(RowsView v) : data(v.data), stride(v.stride), f32(v.f32) {}
};

// Whether every row begins at a multiple of 16 bytes.
inline bool rows_aligned(ConstRowsView v) {
  return reinterpret_cast<uintptr_t>(v.data) % 16 == 0 && v.stride * (v.f32 ? 4 : 2) % 16 == 0;
}

}  // namespace sluice::sm90
