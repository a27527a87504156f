// SPDX-License-Identifier: Apache-2.0
#include "engine/runner.h"

namespace sluice::engine {

Runner::Runner(Context& ctx, const model::Model& model, const model::CacheConfig& cache, int drafts)
    : ctx_(ctx), model_(&model), cache_(model.make_cache(cache)) {
  if (drafts > 0) speculator_ = std::make_unique<Speculator>(ctx, model.info(), cache.slots, drafts);
}

void Runner::set_model(const model::Model& model) { model_ = &model; }

void Runner::forward(std::span<Pass> passes) {
  for (const Pass& p : passes)
    if (p.entry->restore) cache_->copy_state(*p.entry->restore, p.entry->slot);
  if (speculator_) {
    entries_.clear();
    for (const Pass& p : passes)
      if (p.entry->drafts > 0) entries_.push_back(p.entry);
    speculator_->make(*model_, entries_, *cache_, workspace_);
  }
  batch_.clear();
  for (Pass& p : passes) {
    const PlanEntry& e = *p.entry;
    const auto known = p.tokens.subspan(static_cast<size_t>(e.context), static_cast<size_t>(e.rows - e.drafts));
    rows_.assign(known.begin(), known.end());
    const auto guessed = drafts(p);
    rows_.insert(rows_.end(), guessed.begin(), guessed.end());
    p.logit_rows = p.all_logits ? e.rows : e.last ? 1 + e.drafts : 0;
    p.first_row = batch_.rows();
    p.first_logit = batch_.add(e.slot, rows_, e.context, e.blocks, p.logit_rows, e.drafts > 0);
  }
  const model::ModelInfo& info = model_->info();
  const auto logits = static_cast<size_t>(batch_.logit_rows() * info.vocab);
  if (logits_.size() < logits) logits_.resize(logits);
  const auto hidden = static_cast<size_t>(batch_.rows() * info.hidden * bytes_of(info.dtype));
  if (speculator_ && hidden_.size() < hidden) hidden_.resize(hidden);
  model_->forward(ctx_, batch_.batch(), *cache_, workspace_, {logits_.data(), speculator_ ? hidden_.data() : nullptr});
  for (const Pass& p : passes)
    if (p.entry->save) cache_->copy_state(p.entry->slot, *p.entry->save);
}

std::span<float> Runner::logits(int64_t row) {
  const auto vocab = static_cast<size_t>(model_->info().vocab);
  return {logits_.data() + static_cast<size_t>(row) * vocab, vocab};
}

std::span<const int32_t> Runner::drafts(const Pass& pass) const {
  if (pass.entry->drafts == 0) return {};
  return speculator_->drafts(pass.entry->slot).first(static_cast<size_t>(pass.entry->drafts));
}

void Runner::keep(const Pass& pass, int64_t kept) {
  if (pass.entry->drafts > 0) cache_->commit(pass.entry->slot, kept);
}

void Runner::follow(std::span<const Followed> sequences) {
  if (speculator_) speculator_->follow(*model_, sequences, hidden_, *cache_, workspace_);
}

}  // namespace sluice::engine
