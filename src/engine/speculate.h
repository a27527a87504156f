// SPDX-License-Identifier: Apache-2.0
// Tokens guessed ahead by the model's multi-token-prediction head, for many sequences at once.
//
// The rule of acceptance needs no code of its own. Each row of a verification chooses its token from the target's
// logits with the coin of (seed, position), exactly as it would without drafts; the next row counts only if its draft
// is that token. For drafts that are certain (the head's likeliest token: draft probability 1) this is rejection
// sampling: a draft d is accepted with probability p(d), and otherwise the token is distributed as p without d. And
// because the coins are those of the plain run, not only the distribution but the text is the same.
#pragma once

#include <vector>

#include "engine/batch.h"
#include "engine/scheduler.h"
#include "model/model.h"

namespace sluice::engine {

struct Followed {
  int slot = 0;
  int64_t context = 0;              // position of the first row
  std::span<const int32_t> tokens;  // of positions context + 1 on
  std::span<const int32_t> blocks;
  int64_t first_row = 0;  // of the target's hidden states
  bool decoding = false;  // drafts are wanted next
};

class Speculator {
 public:
  Speculator(Context& ctx, const model::ModelInfo& info, int slots, int drafts);

  // Fills drafts() for every entry that has some, one after another: draft i + 1 continues from the head's own state.
  void make(const model::Model& model, std::span<const PlanEntry* const> entries, model::Cache& cache,
            ops::Workspace& workspace);
  std::span<const int32_t> drafts(int slot) const;

  // Runs the head over accepted tokens with the target's hidden states D [rows, hidden].
  void follow(const model::Model& model, std::span<const Followed> sequences, std::span<const std::byte> hidden,
              model::Cache& cache, ops::Workspace& workspace);

 private:
  std::byte* state(int slot) { return states_.data() + static_cast<size_t>(slot) * row_bytes_; }
  int32_t* drafts_of(int slot) { return drafts_.data() + static_cast<size_t>(slot) * per_slot_; }
  void run(const model::Model& model, model::Cache& cache, ops::Workspace& workspace);
  void take_likeliest(size_t place);

  Context& ctx_;
  size_t vocab_, row_bytes_, per_slot_;
  BatchBuilder batch_;
  std::vector<std::byte> in_, out_;  // D [rows, hidden]
  std::vector<std::byte> states_;    // D [slots, hidden]: the head's hidden state behind its last row
  std::vector<int32_t> drafts_;      // [slots, drafts]
  std::vector<float> logits_;        // [sequences, vocab]
  struct Wanted {
    int slot;
    int64_t row;
  };
  std::vector<Wanted> wanted_;  // whose logits the pass gives
};

}  // namespace sluice::engine
