// SPDX-License-Identifier: Apache-2.0
// Which rows of a batch belong to which sequence, and where its past lies.
#pragma once

#include <cstdint>
#include <span>

namespace sluice::ops {

struct Sequence {
  int slot = 0;           // of the cache: Mamba states
  int64_t first_row = 0;  // of the batch
  int64_t rows = 0;       // new tokens
  int64_t context = 0;    // tokens of the sequence already in the cache: the position of its first new row
  // Block table: token position p lies in block blocks[p / block_size]; covers context + rows tokens.
  std::span<const int32_t> blocks;
  // Keep a Mamba state for each row until commit(slot, accepted rows) picks one (speculative verification).
  bool tentative = false;
};

}  // namespace sluice::ops
