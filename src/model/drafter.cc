// SPDX-License-Identifier: Apache-2.0
#include "model/drafter.h"

#include <algorithm>

namespace sluice::model {

Drafter::Drafter(ops::Ops& ops, const ModelInfo& info, const CacheShape& shape, const CacheConfig& cache,
                 const BatchLimits& limits, int drafts)
    : ops_(ops),
      per_slot_(static_cast<size_t>(drafts)),
      batch_(ops.ctx().device(), shape, cache, limits),
      drafts_(static_cast<size_t>(cache.slots) * per_slot_) {
  Device& device = ops.ctx().device();
  in_ = Tensor(device, info.dtype, {limits.rows, info.hidden});
  out_ = Tensor(device, info.dtype, {limits.rows, info.hidden});
  states_ = Tensor(device, info.dtype, {cache.slots, info.hidden});
  logits_ = Tensor(device, DType::f32, {limits.sequences, info.vocab});
  // Of a slot whose tokens the head has not seen yet drafts are guesses, not NaN.
  ops.ctx().queue.zero(states_.address(), states_.bytes());
}

std::span<const int32_t> Drafter::drafts(int slot) const {
  return {drafts_.data() + static_cast<size_t>(slot) * per_slot_, per_slot_};
}

ops::Matrix Drafter::rows(Tensor& of, int64_t first, int64_t count) {
  const int64_t cols = of.dim(1);
  auto* data = static_cast<std::byte*>(of.address()) + first * cols * bytes_of(of.dtype());
  return {data, of.dtype(), count, cols, cols};
}

ops::Matrix Drafter::state(int slot) { return rows(states_, slot, 1); }

void Drafter::clear() {
  batch_.clear();
  wanted_.clear();
}

void Drafter::run(const Model& model, Cache& cache) {
  const Batch& batch = batch_.upload(ops_.ctx().queue);
  model.draft(ops_, batch, rows(in_, 0, batch.rows), cache,
              {rows(logits_, 0, batch.logit_rows), rows(out_, 0, batch.rows)});
}

// The argmax of each wanted row becomes the sequence's draft number `place`.
void Drafter::take_argmax(size_t place) {
  sample_rows_.clear();
  for (size_t i = 0; i < wanted_.size(); ++i) sample_rows_.push_back({.logits = static_cast<int32_t>(i)});
  sampled_.resize(wanted_.size());
  ops_.sample(rows(logits_, 0, static_cast<int64_t>(wanted_.size())), {sample_rows_, {}}, sampled_);
  for (size_t i = 0; i < wanted_.size(); ++i) {
    // Broken logits give draft 0; the target's logits of the same position then report the error.
    drafts_of(wanted_[i].slot)[place] = std::max(sampled_[i].token, 0);
    ops_.copy(rows(out_, wanted_[i].row, 1), state(wanted_[i].slot));
  }
}

void Drafter::make(const Model& model, std::span<const DraftRequest> requests, Cache& cache, const StateTable& states) {
  for (size_t place = 1; place < per_slot_; ++place) {  // the first one is there, from advance()
    clear();
    for (const DraftRequest& r : requests) {
      if (r.drafts <= static_cast<int64_t>(place)) continue;
      const int64_t row = batch_.rows();
      batch_.add({r.slot, {drafts_of(r.slot) + place - 1, 1}, r.context + static_cast<int64_t>(place) - 1, r.blocks, 1},
                 states);
      ops_.copy(state(r.slot), rows(in_, row, 1));
      wanted_.push_back({r.slot, row});
    }
    if (batch_.empty()) return;
    run(model, cache);
    take_argmax(place);
  }
}

void Drafter::advance(const Model& model, std::span<const Accepted> sequences, ops::Matrix hidden, Cache& cache,
                      const StateTable& states) {
  clear();
  for (const Accepted& s : sequences) {
    const auto count = static_cast<int64_t>(s.tokens.size());
    const int64_t row = batch_.add({s.slot, s.tokens, s.context, s.blocks, s.decoding ? 1 : 0}, states).first_row;
    ops_.copy({hidden.row(s.first_row), hidden.dtype, count, hidden.cols, hidden.stride}, rows(in_, row, count));
    if (s.decoding) wanted_.push_back({s.slot, batch_.rows() - 1});
  }
  if (batch_.empty()) return;
  run(model, cache);
  take_argmax(0);
}

}  // namespace sluice::model
