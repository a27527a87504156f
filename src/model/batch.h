// SPDX-License-Identifier: Apache-2.0
// Rows of tokens put together for one step: checked on the host, then uploaded at once. The memory is taken once, so
// the batch lies at the same addresses in every step.
#pragma once

#include <span>

#include "model/cache.h"
#include "model/state_table.h"
#include "ops/ops.h"

namespace sluice::model {

using ops::Batch;

// The most that a step may hold, and the range of its token ids and positions.
struct BatchLimits {
  int64_t rows = 0, sequences = 0;
  int64_t blocks = 0;  // of all sequences together
  int64_t vocab = 0, max_positions = 0;
};

// One sequence's part of a step.
struct BatchSequence {
  int slot = 0;                     // of the cache: its recurrent state
  std::span<const int32_t> tokens;  // new rows, at positions context, context + 1, ...
  int64_t context = 0;              // tokens of the sequence in the cache; 0: it begins anew, its state is zero
  std::span<const int32_t> blocks;  // token position p lies in block blocks[p / block_size]
  int64_t logit_rows = 0;           // the logits of its last rows are wanted
  bool drafts = false;              // rows but the first are guesses: a state is kept for each, until commit()
  // 0 or more: the last of `tokens` counts for nothing, the row's token is what this row of the sample batch that was
  // begun last chooses (Ops::take_sampled).
  int32_t sampled = -1;
};

// The first row and the first logit row of a sequence in the batch.
struct BatchPlace {
  int64_t first_row = 0, first_logit = 0;
};

class BatchBuilder {
 public:
  // `cache`: the shape and configuration of the cache that the batch will run on. Throws out_of_memory.
  BatchBuilder(Device& device, const CacheShape& shape, const CacheConfig& cache, const BatchLimits& limits);

  void clear();
  // Throws invalid_argument, naming the value, for tokens outside the vocabulary and for what does not fit the cache,
  // the model's positions or the limits; the batch is then as it was.
  BatchPlace add(const BatchSequence& sequence, const StateTable& states);
  int64_t rows() const { return batch_.rows; }
  int64_t logit_rows() const { return batch_.logit_rows; }
  bool empty() const { return batch_.rows == 0; }
  // As it has been added so far.
  const Batch& batch() const { return batch_; }

  // To `sequences` sequences and `rows` rows, all of whose logits are wanted, with as much longest_context: the rows
  // that are added belong to no sequence. Both fit the limits and hold what was added. Nothing is added afterwards.
  void pad(int64_t sequences, int64_t rows, int64_t longest_context);

  // Copies what was added to the device. The batch is valid until the next upload(), and work that was enqueued may go
  // on reading it until then. clear() comes before anything is added again; it waits for the copy before this one.
  const Batch& upload(Queue& queue);
  // The same, and where tokens are to be taken from a sample batch (BatchSequence::sampled), takes them.
  void upload(ops::Ops& ops);
  // The same in one operation, ahead of recorded work (Ops::move_batch).
  void move(ops::Ops& ops);

 private:
  static constexpr int kArrays = ops::BatchMove::kMaxPieces;
  void check_fits(const BatchSequence& s) const;
  int32_t* staging() const { return static_cast<int32_t*>(stagings_[current_].get()); }
  bool in_place() const { return memory_ == stagings_[0]; }
  void write_to_staging();

  CacheConfig cache_;
  bool paged_, recurrent_;
  BatchLimits limits_;
  // int32. The host writes one while the other may still be on its way to the device; on the host all are one.
  std::shared_ptr<void> stagings_[2], memory_;
  std::shared_ptr<Event> uploaded_[2];  // after the copy, or the operation, that reads it; null: it is free
  int current_ = 0;
  int64_t offsets_[kArrays] = {};  // of the arrays, in ints; the blocks are the last
  int64_t num_blocks_ = 0;         // used
  bool takes_sampled_ = false;
  Batch batch_;  // pointers into memory_
  // The same arrays in the current staging memory.
  int32_t *tokens_, *positions_, *kv_slots_, *state_out_, *row_begin_, *block_begin_, *contexts_, *state_in_,
      *logits_of_, *blocks_;
};

}  // namespace sluice::model
