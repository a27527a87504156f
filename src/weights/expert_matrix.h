// SPDX-License-Identifier: Apache-2.0
// What the files that load experts share.
#pragma once

#include "weights/load.h"
#include "weights/stored.h"

namespace sluice::weights {

// One of up, gate and down, and where the checkpoint stores it.
struct Loader::ExpertMatrix {
  QuantTensor* to = nullptr;
  std::string projection;      // of per-expert tensors
  int64_t rows = 0, cols = 0;  // of one whole matrix
  bool is_down = false;
  std::vector<StoredNames> names;  // of each global expert; one entry when fused
  // Fused tensors only:
  bool fused = false, transposed = false;
  int half = -1;  // 0 gate, 1 up of a merged stack
  int64_t stack_experts = 0, stack_rows = 0;
  RowWalk walk;
};

}  // namespace sluice::weights
