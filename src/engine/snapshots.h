// SPDX-License-Identifier: Apache-2.0
// States of recurrent layers kept for the prefix cache. Keys and values of any shorter prefix are part of a longer
// one's; a state is of one position only, so a prefix can be taken up again only where its state was copied. Integers
// only: a snapshot is a slot of the model's cache that no sequence runs in.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/block_hash.h"

namespace sluice::engine {

class Snapshots {
 public:
  // Slots first_slot to first_slot + count - 1.
  Snapshots(int first_slot, int count);

  // The slot of the state after the block of this name; it becomes the most recently used.
  std::optional<int> find(const BlockHash& name);
  bool contains(const BlockHash& name) const;
  // A slot to copy a state to: a free one, or the least recently used one, whose name is forgotten now. Nothing when
  // all are reserved. Followed by keep() or drop().
  std::optional<int> reserve();
  void keep(int slot, const BlockHash& name);
  void drop(int slot);
  void forget_names();

 private:
  enum class State : uint8_t { free, reserved, kept };
  struct Snapshot {
    State state = State::free;
    BlockHash name;
    uint64_t used = 0;
  };
  Snapshot& at(int slot) { return snapshots_[static_cast<size_t>(slot - first_slot_)]; }

  int first_slot_;
  std::vector<Snapshot> snapshots_;  // few: looked through one by one
  uint64_t now_ = 0;
};

}  // namespace sluice::engine
