// SPDX-License-Identifier: Apache-2.0
// out[t] = sum over k ascending of weight[t, k] * result[t, k], in float32 with fused multiply-adds; absent pairs are
// skipped, a token with none gives zeros. No atomics: the same bits on every run.
#pragma once

#include "kernels/sm90/device.h"

namespace sluice::sm90 {

struct FinalizeArgs {
  const void* results;      // [pairs, columns] bf16 or float32
  const float* weights;     // [pairs]; null: 1
  const int32_t* pair_row;  // -1: absent; null: all are present
  void* out;                // [T, columns], the same type
  bool f32;
  int64_t tokens;
  const int32_t* num_tokens;
  int columns, top_k;
};

void launch_finalize(const FinalizeArgs& args, Stream stream, bool pdl);

}  // namespace sluice::sm90
