// SPDX-License-Identifier: Apache-2.0
// Stacks that hold gate and up in one matrix, as published checkpoints do, and the canonical pair.
#pragma once

#include <algorithm>
#include <cstring>

#include "weights/gate_up.h"
#include "weights/region.h"

namespace sluice::weights {

struct GateUp {
  QuantTensor gate, up;  // [E, I, H] each
};

// merged [E, 2I, H]. Throws where a scale covers rows of both (fp8_block with I % 128 != 0, or interleaved).
inline GateUp split_gate_up(const QuantTensor& merged, GateUpOrder order) {
  check(merged.rows % 2 == 0, "a merged gate and up matrix has {} rows; the number must be even", merged.rows);
  const int64_t inter = merged.rows / 2;
  GateUp pair{make_quant_tensor(merged.format, merged.experts, inter, merged.cols),
              make_quant_tensor(merged.format, merged.experts, inter, merged.cols)};
  const RowWalk gate = gate_rows(order, inter), up = up_rows(order, inter);
  for (int64_t e = 0; e < merged.experts; ++e) {
    copy_region(merged, e, gate.begin, gate.step, inter, {0, merged.cols}, pair.gate, e);
    copy_region(merged, e, up.begin, up.step, inter, {0, merged.cols}, pair.up, e);
  }
  return pair;
}

// The inverse. Both must share their scales where a format has one for the whole matrix (fp8_tensor, NVFP4's global);
// refused otherwise, because one merged matrix cannot say both.
inline QuantTensor merge_gate_up(const GateUp& pair, GateUpOrder order) {
  const QuantTensor &gate = pair.gate, &up = pair.up;
  const format::FormatInfo f = info(up.format);
  check(gate.format == up.format && gate.experts == up.experts && gate.rows == up.rows && gate.cols == up.cols,
        "gate [{}, {}, {}] and up [{}, {}, {}] must have one shape and format", gate.experts, gate.rows, gate.cols,
        up.experts, up.rows, up.cols);
  const auto same = [](const Tensor& a, const Tensor& b) {
    return a.empty() || std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())) == 0;
  };
  check(same(gate.global, up.global) && (up.format != format::Format::fp8_tensor || same(gate.scales, up.scales)),
        "gate and up have different {} scales of the whole matrix and cannot be merged into one", f.name);
  check(f.group_n <= 1 || (order != GateUpOrder::interleaved && up.rows % f.group_n == 0),
        "gate and up of {} rows in {} cannot be merged in the order {}: a scale would cover rows of both", up.rows,
        f.name, name_of(kGateUpOrders, order));

  QuantTensor merged = make_quant_tensor(up.format, up.experts, 2 * up.rows, up.cols);
  const auto place = [&](const QuantTensor& from, RowWalk walk) {
    const int64_t row_bytes = from.codes.rows(0, 1).bytes() / std::max<int64_t>(from.rows, 1);
    const int64_t scale_rows = f.group_n == 0 ? 0 : from.scales.dim(1);
    const int64_t scale_bytes = scale_rows == 0 ? 0 : from.scales.slice(0).bytes() / scale_rows;
    for (int64_t e = 0; e < from.experts; ++e) {
      const auto* codes = static_cast<const std::byte*>(from.codes.slice(e).data());
      auto* to = static_cast<std::byte*>(merged.codes.slice(e).data());
      for (int64_t r = 0; r < from.rows; ++r)
        std::memcpy(to + (walk.begin + r * walk.step) * row_bytes, codes + r * row_bytes,
                    static_cast<size_t>(row_bytes));
      for (int64_t r = 0; r < scale_rows; ++r)
        std::memcpy(static_cast<std::byte*>(merged.scales.slice(e).data()) +
                        (walk.begin / f.group_n + r * walk.step) * scale_bytes,
                    static_cast<const std::byte*>(from.scales.slice(e).data()) + r * scale_bytes,
                    static_cast<size_t>(scale_bytes));
    }
  };
  if (up.experts > 0) {
    place(gate, gate_rows(order, up.rows));
    place(up, up_rows(order, up.rows));
  }
  if (!up.global.empty()) merged.global = up.global.clone();
  if (up.format == format::Format::fp8_tensor) merged.scales = up.scales.clone();
  return merged;
}

}  // namespace sluice::weights
