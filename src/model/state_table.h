// SPDX-License-Identifier: Apache-2.0
// Which place of a cache holds which version of a slot's recurrent state: integers alone. Version 0 is the sequence's
// state; a batch with drafts leaves the state after its row r in version r + 1 and version 0 as it was, so that
// accepting a row swaps two integers and moves no memory.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice::model {

class StateTable {
 public:
  // `versions` places per slot, 1 or more.
  StateTable(int slots, int64_t versions);

  int64_t places() const { return static_cast<int64_t>(order_.size()); }
  int32_t place(int slot, int64_t version = 0) const;
  // The state after the first `accepted` rows of the last batch with drafts becomes the slot's; 0 keeps the old one.
  void commit(int slot, int64_t accepted);

 private:
  int32_t& at(int slot, int64_t version);

  int slots_;
  int64_t versions_;
  std::vector<int32_t> order_;  // [slots, versions]
};

}  // namespace sluice::model
