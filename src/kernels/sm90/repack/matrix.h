// SPDX-License-Identifier: Apache-2.0
// A weight matrix of every local expert in the layout that the grouped GEMM streams.
#pragma once

#include "kernels/sm90/device.h"
#include "kernels/sm90/layout.h"
#include "weights/quant_tensor.h"

namespace sluice::sm90 {

struct RepackedMatrix {
  WeightShape shape;
  DeviceBuffer weights, row_scale, block_scale;

  // Into a part of `memory`, which outlives this.
  void place(const WeightShape& of, const DeviceBuffer& memory, const MatrixMemory& at);
  // From host memory (staged in parts; returns when all is copied) or this device's (in place, 16-byte aligned, nothing
  // waits), in stream order. gate: null unless shape.gated. follows: the stream's last launch is another matrix's fill,
  // which may still run when this one begins.
  void fill(const weights::QuantTensor& up, const weights::QuantTensor* gate, Stream stream, bool follows = false);
  int64_t bytes() const { return weights.bytes() + row_scale.bytes() + block_scale.bytes(); }
};

}  // namespace sluice::sm90
