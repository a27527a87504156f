// SPDX-License-Identifier: Apache-2.0
// A plan's rows through the model: the cache, the batch, the logits.
#pragma once

#include <memory>
#include <vector>

#include "engine/batch.h"
#include "engine/scheduler.h"
#include "engine/speculate.h"
#include "model/model.h"

namespace sluice::engine {

// One entry of a plan with what the runner adds.
struct Pass {
  const PlanEntry* entry = nullptr;
  std::span<const int32_t> tokens;  // all known ones of the sequence
  bool all_logits = false;          // of every row, for the prompt's log probabilities
  int64_t first_row = 0, first_logit = 0, logit_rows = 0;
};

class Runner {
 public:
  // Reserves the cache. Throws out_of_memory.
  Runner(Context& ctx, const model::Model& model, const model::CacheConfig& cache, int drafts);
  void set_model(const model::Model& model);

  // Restores states, makes drafts, runs all rows, saves states. Fills in each pass's first_row, first_logit,
  // logit_rows.
  void forward(std::span<Pass> passes);
  std::span<float> logits(int64_t row);
  // The drafts behind a pass's own row; the logits after draft i are those of the row behind.
  std::span<const int32_t> drafts(const Pass& pass) const;

  // Keeps the first `kept` rows of a pass that had drafts, in the recurrent states too.
  void keep(const Pass& pass, int64_t kept);
  // Lets the draft head follow: `tokens` are those of positions context + 1 on, one for each kept row.
  void follow(std::span<const Followed> sequences);

  int64_t cache_bytes() const { return cache_->bytes(); }

 private:
  Context& ctx_;
  const model::Model* model_;
  std::unique_ptr<model::Cache> cache_;
  ops::Workspace workspace_;
  BatchBuilder batch_;
  std::vector<float> logits_;
  std::vector<std::byte> hidden_;          // D [rows, hidden], for the draft head
  std::vector<int32_t> rows_;              // of one pass
  std::vector<const PlanEntry*> entries_;  // with drafts
  std::unique_ptr<Speculator> speculator_;
};

}  // namespace sluice::engine
