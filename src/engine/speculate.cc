// SPDX-License-Identifier: Apache-2.0
#include "engine/speculate.h"

#include <algorithm>
#include <cstring>

namespace sluice::engine {

Speculator::Speculator(Context& ctx, const model::ModelInfo& info, int slots, int drafts)
    : ctx_(ctx),
      vocab_(static_cast<size_t>(info.vocab)),
      row_bytes_(static_cast<size_t>(info.hidden * bytes_of(info.dtype))),
      per_slot_(static_cast<size_t>(drafts)),
      states_(static_cast<size_t>(slots) * row_bytes_),
      drafts_(static_cast<size_t>(slots) * per_slot_) {}

std::span<const int32_t> Speculator::drafts(int slot) const {
  return {drafts_.data() + static_cast<size_t>(slot) * per_slot_, per_slot_};
}

void Speculator::run(const model::Model& model, model::Cache& cache, ops::Workspace& workspace) {
  const auto grow = [](auto& buffer, size_t size) {
    if (buffer.size() < size) buffer.resize(size);
  };
  grow(out_, static_cast<size_t>(batch_.rows()) * row_bytes_);
  grow(logits_, wanted_.size() * vocab_);
  model.draft(ctx_, batch_.batch(), in_.data(), cache, workspace, {logits_.data(), out_.data()});
}

// The likeliest token of each wanted row becomes the sequence's draft number `place`.
void Speculator::take_likeliest(size_t place) {
  ctx_.pool.parallel_for(static_cast<int64_t>(wanted_.size()), [&](int64_t i, int) {
    const Wanted& w = wanted_[static_cast<size_t>(i)];
    const float* row = logits_.data() + static_cast<size_t>(i) * vocab_;
    drafts_of(w.slot)[place] = static_cast<int32_t>(std::max_element(row, row + vocab_) - row);
    std::memcpy(state(w.slot), out_.data() + static_cast<size_t>(w.row) * row_bytes_, row_bytes_);
  });
}

void Speculator::make(const model::Model& model, std::span<const PlanEntry* const> entries, model::Cache& cache,
                      ops::Workspace& workspace) {
  for (size_t place = 1; place < per_slot_; ++place) {  // the first one is there, from follow()
    batch_.clear();
    wanted_.clear();
    in_.clear();
    for (const PlanEntry* e : entries) {
      if (e->drafts <= static_cast<int64_t>(place)) continue;
      wanted_.push_back({e->slot, batch_.rows()});
      in_.insert(in_.end(), state(e->slot), state(e->slot) + row_bytes_);
      batch_.add(e->slot, {drafts_of(e->slot) + place - 1, 1}, e->context + static_cast<int64_t>(place) - 1, e->blocks,
                 1);
    }
    if (batch_.empty()) return;
    run(model, cache, workspace);
    take_likeliest(place);
  }
}

void Speculator::follow(const model::Model& model, std::span<const Followed> sequences,
                        std::span<const std::byte> hidden, model::Cache& cache, ops::Workspace& workspace) {
  batch_.clear();
  wanted_.clear();
  in_.clear();
  for (const Followed& s : sequences) {
    const auto begin = hidden.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(s.first_row) * row_bytes_);
    in_.insert(in_.end(), begin, begin + static_cast<std::ptrdiff_t>(s.tokens.size() * row_bytes_));
    batch_.add(s.slot, s.tokens, s.context, s.blocks, s.decoding ? 1 : 0);
    if (s.decoding) wanted_.push_back({s.slot, batch_.rows() - 1});
  }
  if (batch_.empty()) return;
  run(model, cache, workspace);
  take_likeliest(0);
}

}  // namespace sluice::engine
