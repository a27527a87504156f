// SPDX-License-Identifier: Apache-2.0
// Tokens guessed ahead by the model's multi-token-prediction head, for many sequences at once.
//
// The rule of acceptance needs no code of its own. Each row of a verification chooses its token from the target's
// logits with the uniform number of (seed, position), exactly as it would without drafts; the next row counts only if
// its draft is that token. For drafts that are certain (the head's argmax: draft probability 1) this is rejection
// sampling: a draft d is accepted with probability p(d), and otherwise the token is distributed as p without d. And
// because the numbers are those of the plain run, not only the distribution but the text is the same, as long as a
// row's logits are the same bits in a batch of one row and of several: ModelInfo::row_invariant, without which
// Generator and engine refuse to draft.
#pragma once

#include <vector>

#include "model/model.h"

namespace sluice::model {

// A sequence that needs drafts.
struct DraftRequest {
  int slot = 0;
  int64_t context = 0;  // tokens that the target has in the cache
  std::span<const int32_t> blocks;
  int64_t drafts = 0;
};

// The tokens of a sequence that the target model has just accepted.
struct Accepted {
  int slot = 0;
  int64_t context = 0;              // position of the first row
  std::span<const int32_t> tokens;  // of positions context + 1 on, one per accepted row
  std::span<const int32_t> blocks;
  int64_t first_row = 0;  // of the target's hidden states
  bool decoding = false;  // drafts are wanted next
};

class Drafter {
 public:
  // Throws out_of_memory.
  Drafter(ops::Ops& ops, const ModelInfo& info, const CacheShape& shape, const CacheConfig& cache,
          const BatchLimits& limits, int drafts);

  // Makes the other drafts of each request, one after another: draft i + 1 continues from the head's own hidden state.
  void make(const Model& model, std::span<const DraftRequest> requests, Cache& cache, const StateTable& states);
  std::span<const int32_t> drafts(int slot) const;

  // Runs the head over accepted tokens with the target's hidden states D [rows, hidden], and leaves the first draft of
  // each sequence that is decoding.
  void advance(const Model& model, std::span<const Accepted> sequences, ops::Matrix hidden, Cache& cache,
               const StateTable& states);

 private:
  ops::Matrix state(int slot);
  int32_t* drafts_of(int slot) { return drafts_.data() + static_cast<size_t>(slot) * per_slot_; }
  ops::Matrix rows(Tensor& of, int64_t first, int64_t count);
  void clear();
  void run(const Model& model, Cache& cache);
  void take_argmax(size_t place);

  ops::Ops& ops_;
  size_t per_slot_;
  BatchBuilder batch_;
  Tensor in_, out_;              // D [rows, hidden]
  Tensor states_;                // D [slots, hidden]: the head's hidden state after its last row
  Tensor logits_;                // f32 [sequences, vocab]
  std::vector<int32_t> drafts_;  // [slots, drafts]
  struct Wanted {
    int slot;
    int64_t row;
  };
  std::vector<Wanted> wanted_;  // whose logits this run gives
  std::vector<sampling::SampleRow> sample_rows_;
  std::vector<sampling::Sampled> sampled_;
};

}  // namespace sluice::model
