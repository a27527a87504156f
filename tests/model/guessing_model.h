// SPDX-License-Identifier: Apache-2.0
// A draft head for any model, whose drafts are as often right as a test wants and take as long as it wants.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "model/model.h"

namespace sluice::model {

// Gives any model a draft head that guesses: what followed this token in `learned`, or something else. It counts
// nothing on, and writes nothing to, the cache.
class GuessingModel : public Model {
 public:
  GuessingModel(const Model& m, int wrong_percent) : inner_(m), info_(m.info()), wrong_(wrong_percent) {
    info_.has_draft = true;
  }
  const ModelInfo& info() const override { return info_; }
  const CacheShape& cache_shape() const override { return inner_.cache_shape(); }
  void forward(ops::Ops& ops, const Batch& batch, Cache& cache, const Outputs& out) const override {
    std::this_thread::sleep_for(forward_time);
    inner_.forward(ops, batch, cache, out);
  }
  void draft(ops::Ops&, const Batch& batch, ops::ConstMatrix, Cache&, const Outputs& out) const override {
    std::this_thread::sleep_for(draft_time);
    const auto vocab = static_cast<size_t>(info_.vocab);
    for (int64_t i = 0; i < batch.logit_rows; ++i) {
      const auto next = learned.find(batch.tokens[batch.logits_of[i]]);
      auto* logits = static_cast<float*>(out.logits.row(i));
      std::fill_n(logits, vocab, 0.0f);
      const bool wrong = static_cast<int>(random_() % 100) < wrong_;
      logits[next == learned.end() || wrong ? random_() % vocab : static_cast<size_t>(next->second)] = 1;
    }
  }
  void learn(const std::vector<int32_t>& tokens) {
    for (size_t i = 0; i + 1 < tokens.size(); ++i) learned[tokens[i]] = tokens[i + 1];
  }
  void depend_on_the_batch() { info_.row_invariant = false; }
  std::map<int32_t, int32_t> learned;
  std::chrono::milliseconds forward_time{0}, draft_time{0};  // beside what they do

 private:
  const Model& inner_;
  ModelInfo info_;
  int wrong_;
  mutable std::mt19937 random_{7};
};

}  // namespace sluice::model
