// SPDX-License-Identifier: Apache-2.0
// Who is told which blocks of the cache can be found again.
#pragma once

#include <cstdint>

namespace sluice::engine {

class CacheListener {
 public:
  virtual ~CacheListener() = default;
  // From now on `block` is found: it holds the block number `index` of the tokens of `sequence` (a scheduler's handle),
  // which is still there.
  virtual void stored(int32_t sequence, int64_t index, int32_t block) = 0;
  // `block`, which was found, is not any more.
  virtual void removed(int32_t block) = 0;
  // No block is.
  virtual void cleared() = 0;
};

}  // namespace sluice::engine
