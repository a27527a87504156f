// SPDX-License-Identifier: Apache-2.0
#include "model/state_table.h"

#include <numeric>
#include <utility>

#include "base/error.h"

namespace sluice::model {

StateTable::StateTable(int slots, int64_t versions)
    : slots_(slots), versions_(versions), order_(static_cast<size_t>(slots * versions)) {
  std::iota(order_.begin(), order_.end(), 0);
}

int32_t& StateTable::at(int slot, int64_t version) {
  check(slot >= 0 && slot < slots_, "slot {} is outside the cache's {} slots", slot, slots_);
  check(version >= 0 && version < versions_, "{} rows with drafts; the cache keeps the states of at most {}", version,
        versions_ - 1);
  return order_[static_cast<size_t>(slot * versions_ + version)];
}

int32_t StateTable::place(int slot, int64_t version) const { return const_cast<StateTable*>(this)->at(slot, version); }

void StateTable::commit(int slot, int64_t accepted) { std::swap(at(slot, 0), at(slot, accepted)); }

}  // namespace sluice::model
