// SPDX-License-Identifier: Apache-2.0
// The two ceilings of the roofline model, measured on this machine now: memory bandwidth and the rate of multiply-adds.
// GEMM times are compared with them. The memory bandwidth of a shared machine changes by the minute, so the ceilings
// are measured between the runs that they judge.
#pragma once

#include "device/context.h"
#include "kernels/cpu/isa.h"
#include "tensor/tensor.h"

namespace sluice::kernels::cpu {

class Ceilings {
 public:
  // Allocates and fills a buffer of `bytes`, larger than any cache. `isa` must be supported(). Throws out_of_memory.
  explicit Ceilings(Context& ctx, Isa isa, int64_t bytes = int64_t{512} << 20);

  // Bytes per second that all threads read, in one pass over the buffer.
  double read_bandwidth(Context& ctx) const;
  // Floating point operations per second of all threads, from registers: the best rate of these instructions for
  // products of bf16 values summed in float32. They are AMX tiles, vdpbf16ps, or, below those levels, float32
  // multiply-adds (a bf16 product is exact in float32). A multiply-add counts as two. Takes about 5 ms.
  double dot_rate(Context& ctx) const;

 private:
  Isa isa_;
  Tensor buffer_;
};

}  // namespace sluice::kernels::cpu
