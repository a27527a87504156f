// SPDX-License-Identifier: Apache-2.0
#include "engine/snapshots.h"

namespace sluice::engine {

Snapshots::Snapshots(int first_slot, int count) : first_slot_(first_slot), snapshots_(static_cast<size_t>(count)) {}

std::optional<int> Snapshots::find(const BlockHash& name) {
  for (size_t i = 0; i < snapshots_.size(); ++i) {
    if (snapshots_[i].state != State::kept || snapshots_[i].name != name) continue;
    snapshots_[i].used = ++now_;
    return first_slot_ + static_cast<int>(i);
  }
  return std::nullopt;
}

bool Snapshots::contains(const BlockHash& name) const {
  for (const Snapshot& s : snapshots_)
    if (s.state == State::kept && s.name == name) return true;
  return false;
}

std::optional<int> Snapshots::reserve() {
  Snapshot* best = nullptr;
  for (Snapshot& s : snapshots_) {
    if (s.state == State::reserved) continue;
    if (best == nullptr || (s.state == State::free && best->state == State::kept) ||
        (s.state == best->state && s.used < best->used))
      best = &s;
  }
  if (best == nullptr) return std::nullopt;
  best->state = State::reserved;
  return first_slot_ + static_cast<int>(best - snapshots_.data());
}

void Snapshots::keep(int slot, const BlockHash& name) { at(slot) = {State::kept, name, ++now_}; }
void Snapshots::drop(int slot) { at(slot) = {}; }
void Snapshots::forget_names() {
  for (Snapshot& s : snapshots_)
    if (s.state == State::kept) s = {};
}

}  // namespace sluice::engine
