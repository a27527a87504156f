// SPDX-License-Identifier: Apache-2.0
// A weight matrix of every local expert in the layout that the grouped GEMM streams.
#pragma once

#include "kernels/sm90/device.h"
#include "kernels/sm90/layout.h"
#include "weights/quant_tensor.h"

namespace sluice::sm90 {

// A matrix on its way: where its tensors are read, and room for parts of those that lie in host memory.
struct MatrixStaging {
  format::Format format;
  const void* from[6];   // codes, scales and global scales of `up`, then of `gate`; null: absent
  int64_t each[6];       // bytes per expert
  DeviceBuffer room[6];  // of `step` experts; empty: read in place
  int64_t step;          // experts at once
};

struct RepackedMatrix {
  WeightShape shape;
  DeviceBuffer weights, row_scale, block_scale;

  // Into a part of `memory`, which outlives this.
  void place(const WeightShape& of, const DeviceBuffer& memory, const MatrixMemory& at);
  // Throws for what cannot be read, before anything is written: memory of another device, or of this one that is not
  // aligned to 16 bytes. gate: null unless shape.gated.
  MatrixStaging stage(const weights::QuantTensor& up, const weights::QuantTensor* gate) const;
  // From host memory (in parts; returns when all is copied) or this device's (in place, nothing waits), in stream
  // order. follows: the stream's last launch is another matrix's fill, which may still run when this one begins.
  void fill(const MatrixStaging& staging, Stream stream, bool follows = false);
  void fill(const weights::QuantTensor& up, const weights::QuantTensor* gate, Stream stream) {
    fill(stage(up, gate), stream);
  }
  int64_t bytes() const { return weights.bytes() + row_scale.bytes() + block_scale.bytes(); }
};

}  // namespace sluice::sm90
