// SPDX-License-Identifier: Apache-2.0
// What this machine can do at most, measured now: what GEMM times are compared with. Memory bandwidth of shared
// machines moves by the minute, so ceilings are measured between the runs they judge.
#pragma once

#include "base/context.h"
#include "kernels/cpu/isa.h"
#include "tensor/tensor.h"

namespace sluice::kernels::cpu {

class Ceilings {
 public:
  // Fills a buffer of `bytes` that no cache holds.
  explicit Ceilings(Context& ctx, Isa isa, int64_t bytes = int64_t{512} << 20);

  // Bytes per second with all threads, one pass over the buffer.
  double read_bandwidth(Context& ctx) const;
  // Floating point operations per second with all threads, from registers: the best that these instructions do for
  // products of bf16 values summed in float32. That is AMX tiles, vdpbf16ps, or, on machines without either, float32
  // multiply-adds (a bf16 product is exact in float32). About 5 ms.
  double dot_rate(Context& ctx) const;

 private:
  Isa isa_;
  Tensor buffer_;
};

}  // namespace sluice::kernels::cpu
