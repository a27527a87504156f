// SPDX-License-Identifier: Apache-2.0
// An observer of the prefix cache: it hears which blocks can be found again.
#pragma once

#include <cstdint>

namespace sluice::engine {

class CacheListener {
 public:
  virtual ~CacheListener() = default;
  // From now on `block` can be found. It holds block number `index` of the tokens of `sequence` (a scheduler's handle),
  // which is still open.
  virtual void stored(int32_t sequence, int64_t index, int32_t block) = 0;
  // `block`, which could be found, cannot be found any more.
  virtual void removed(int32_t block) = 0;
  // No block can be found any more.
  virtual void cleared() = 0;
};

}  // namespace sluice::engine
