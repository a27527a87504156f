// SPDX-License-Identifier: Apache-2.0
// Who uses which block of the cache, and which blocks hold a prefix worth finding again. Integers only.
//
// A block's name is the hash of all tokens up to its end (block_hash.h): by it a prompt that begins with these tokens
// finds the block. Blocks that are not full have none.
//
// A block is in use (references > 0) or available. Available blocks wait in one queue: those without a name at its
// front, then the named ones, least recently used first. So a name lives as long as there is other room.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/block_hash.h"
#include "engine/cache_listener.h"

namespace sluice::engine {

class BlockPool {
 public:
  explicit BlockPool(int32_t blocks);

  int32_t size() const { return static_cast<int32_t>(blocks_.size()) - 1; }
  int32_t available() const { return available_; }
  int32_t cached() const { return cached_; }  // available, with a name
  int32_t references(int32_t block) const { return blocks_[index(block)].references; }

  // One reference to the block at the queue's front, whose name is forgotten. Nothing when all are in use.
  std::optional<int32_t> allocate();
  void retain(int32_t block);   // another reference; also to an available block
  void release(int32_t block);  // the last one makes it available

  // Names a block in use. False, and without effect, when it has a name or another block has this one: the contents are
  // equal.
  bool publish(int32_t block, const BlockHash& name);
  std::optional<int32_t> find(const BlockHash& name) const;
  void forget_names();
  // Called when a block loses its name (removed()) and when all do (cleared()); must live longer.
  void listen(CacheListener* listener) { listener_ = listener; }

 private:
  struct Block {
    int32_t references = 0;
    bool named = false;
    BlockHash name;
    int32_t previous = 0, next = 0;  // in the queue, a ring whose head is the entry after the last block
    int32_t chain = -1;              // the next block with this bucket
  };
  static size_t index(int32_t block) { return static_cast<size_t>(block); }
  size_t bucket(const BlockHash& name) const { return name.low % buckets_.size(); }
  void link(int32_t block, int32_t before);
  void unlink(int32_t block);
  bool drop_name(int32_t block);  // false: it has none

  std::vector<Block> blocks_;     // and the ring's head
  std::vector<int32_t> buckets_;  // first block of each; chained, so that nothing is allocated later
  int32_t head_, available_, cached_ = 0;
  CacheListener* listener_ = nullptr;
};

}  // namespace sluice::engine
