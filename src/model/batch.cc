// SPDX-License-Identifier: Apache-2.0
#include "model/batch.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/math.h"

namespace sluice::model {

namespace {
// Of every sequence in every step, 512 blocks at a context of 32k. So there is no branch for each of them, and the
// compiler makes vectors of the loop.
void check_blocks(std::span<const int32_t> blocks, int64_t count) {
  const auto last = static_cast<uint32_t>(count - 1);
  uint32_t signs = 0;  // the highest bit: of a negative block, or of one that is larger than `last`
  for (const int32_t b : blocks) signs |= static_cast<uint32_t>(b) | (last - static_cast<uint32_t>(b));
  if (signs >> 31 == 0) return;
  for (const int32_t b : blocks) check(b >= 0 && b < count, "block {} is outside the cache's {} blocks", b, count);
}
}  // namespace

BatchBuilder::BatchBuilder(Device& device, const CacheShape& shape, const CacheConfig& cache, const BatchLimits& limits)
    : cache_(cache), paged_(!shape.attention.empty()), recurrent_(shape.recurrent()), limits_(limits) {
  // Sections begin at 64 bytes; the blocks come last, so that one copy takes what is used.
  const int64_t rows = limits.rows, sequences = limits.sequences;
  const int64_t counts[kArrays] = {rows,          rows,      rows,      rows, sequences + 1,
                                   sequences + 1, sequences, sequences, rows, limits.blocks};
  int64_t ints = 0;
  for (int i = 0; i < kArrays; ++i) offsets_[i] = std::exchange(ints, ints + round_up<int64_t>(counts[i], 16));
  const int64_t bytes = ints * static_cast<int64_t>(sizeof(int32_t));
  const bool in_place = device.id().shares_host_memory();
  for (std::shared_ptr<void>& staging : stagings_)
    if (&staging == stagings_ || !in_place) staging = device.allocate_staging(bytes);
  memory_ = in_place ? stagings_[0] : device.allocate(bytes);
  const int32_t** const seen[kArrays] = {&batch_.tokens,    &batch_.positions,   &batch_.kv_slots, &batch_.state_out,
                                         &batch_.row_begin, &batch_.block_begin, &batch_.contexts, &batch_.state_in,
                                         &batch_.logits_of, &batch_.blocks};
  for (int i = 0; i < kArrays; ++i) *seen[i] = static_cast<const int32_t*>(memory_.get()) + offsets_[i];
  write_to_staging();
  clear();
}

void BatchBuilder::write_to_staging() {
  int32_t** const arrays[kArrays] = {&tokens_,      &positions_, &kv_slots_, &state_out_, &row_begin_,
                                     &block_begin_, &contexts_,  &state_in_, &logits_of_, &blocks_};
  for (int i = 0; i < kArrays; ++i) *arrays[i] = staging() + offsets_[i];
}

void BatchBuilder::clear() {
  if (uploaded_[current_]) {
    current_ = 1 - current_;
    write_to_staging();
  }
  if (uploaded_[current_]) {
    uploaded_[current_]->wait();
    uploaded_[current_].reset();
  }
  takes_sampled_ = false;
  batch_.rows = batch_.sequences = batch_.logit_rows = 0;
  batch_.longest_rows = batch_.longest_context = 0;
  batch_.prompts = batch_.prompt_rows = batch_.prompt_positions = 0;
  batch_.num_rows = nullptr;
  num_blocks_ = 0;
  row_begin_[0] = block_begin_[0] = 0;
}

void BatchBuilder::check_fits(const BatchSequence& s) const {
  const auto rows = static_cast<int64_t>(s.tokens.size()), length = s.context + rows;
  check(s.slot >= 0 && s.slot < cache_.slots, "slot {} is outside the cache's {} slots", s.slot, cache_.slots);
  check(rows > 0 && s.context >= 0, "a sequence has {} new rows after {} tokens", rows, s.context);
  check(s.logit_rows >= 0 && s.logit_rows <= rows, "the logits of {} rows are wanted of a sequence of {} rows",
        s.logit_rows, rows);
  check(!s.drafts || rows <= cache_.draft_rows,
        "{} rows with drafts; the cache keeps at most {} (CacheConfig::draft_rows)", rows, cache_.draft_rows);
  check(length <= limits_.max_positions, "a sequence of {} tokens is longer than the model's {} positions", length,
        limits_.max_positions);
  for (const int32_t id : s.tokens)
    check(id >= 0 && id < limits_.vocab, "token id {} is outside the vocabulary of {} tokens", id, limits_.vocab);
  const int64_t needed = paged_ ? ceil_div(length, cache_.block_size) : 0;
  check(static_cast<int64_t>(s.blocks.size()) >= needed, "a sequence of {} tokens needs {} blocks of {}, not {}",
        length, needed, cache_.block_size, s.blocks.size());
  check_blocks(s.blocks.first(static_cast<size_t>(needed)), cache_.blocks);
  check(batch_.rows + rows <= limits_.rows && batch_.sequences < limits_.sequences &&
            num_blocks_ + needed <= limits_.blocks,
        "a step of {} rows, {} sequences and {} blocks; at most {}, {} and {} were reserved", batch_.rows + rows,
        batch_.sequences + 1, num_blocks_ + needed, limits_.rows, limits_.sequences, limits_.blocks);
}

BatchPlace BatchBuilder::add(const BatchSequence& s, const StateTable& states) {
  check_fits(s);
  const auto rows = static_cast<int64_t>(s.tokens.size());
  const BatchPlace place{batch_.rows, batch_.logit_rows};
  std::copy(s.tokens.begin(), s.tokens.end(), tokens_ + batch_.rows);
  if (s.sampled >= 0) tokens_[batch_.rows + rows - 1] = ~s.sampled;
  takes_sampled_ = takes_sampled_ || s.sampled >= 0;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t row = batch_.rows + i, position = s.context + i;
    positions_[row] = static_cast<int32_t>(position);
    kv_slots_[row] =
        paged_ ? static_cast<int32_t>(s.blocks[static_cast<size_t>(position / cache_.block_size)] * cache_.block_size +
                                      position % cache_.block_size)
               : -1;
    const bool stored = recurrent_ && (s.drafts || i + 1 == rows);
    state_out_[row] = stored ? states.place(s.slot, s.drafts ? i + 1 : 0) : -1;
  }
  for (int64_t i = rows - s.logit_rows; i < rows; ++i)
    logits_of_[batch_.logit_rows++] = static_cast<int32_t>(batch_.rows + i);
  const auto blocks = s.blocks.first(static_cast<size_t>(paged_ ? ceil_div(s.context + rows, cache_.block_size) : 0));
  std::copy(blocks.begin(), blocks.end(), blocks_ + num_blocks_);
  num_blocks_ += static_cast<int64_t>(blocks.size());
  const int64_t n = batch_.sequences++;
  batch_.rows += rows;
  contexts_[n] = static_cast<int32_t>(s.context);
  state_in_[n] = recurrent_ && s.context > 0 ? states.place(s.slot) : -1;
  row_begin_[n + 1] = static_cast<int32_t>(batch_.rows);
  block_begin_[n + 1] = static_cast<int32_t>(num_blocks_);
  batch_.longest_rows = std::max(batch_.longest_rows, rows);
  batch_.longest_context = std::max(batch_.longest_context, s.context + rows);
  batch_.count_prompt(s.context, rows);
  return place;
}

void BatchBuilder::pad(int64_t sequences, int64_t rows, int64_t longest_context) {
  check(sequences >= batch_.sequences && sequences <= limits_.sequences && rows >= batch_.rows && rows <= limits_.rows,
        "a step of {} sequences and {} rows is padded to {} and {}; at most {} and {} were reserved", batch_.sequences,
        batch_.rows, sequences, rows, limits_.sequences, limits_.rows);
  for (int64_t row = batch_.rows; row < rows; ++row) {
    tokens_[row] = positions_[row] = 0;
    kv_slots_[row] = state_out_[row] = -1;
    logits_of_[batch_.logit_rows++] = static_cast<int32_t>(row);
  }
  for (int64_t s = batch_.sequences; s < sequences; ++s) {
    contexts_[s] = 0;
    state_in_[s] = -1;
    row_begin_[s + 1] = row_begin_[s];
    block_begin_[s + 1] = block_begin_[s];
  }
  batch_.rows = rows;
  batch_.sequences = sequences;
  batch_.longest_context = longest_context;
  batch_.num_rows = batch_.row_begin + sequences;
}

const Batch& BatchBuilder::upload(Queue& queue) {
  if (in_place()) return batch_;
  queue.copy(memory_.get(), staging(), (offsets_[kArrays - 1] + num_blocks_) * static_cast<int64_t>(sizeof(int32_t)));
  uploaded_[current_] = queue.record();
  return batch_;
}

void BatchBuilder::upload(ops::Ops& ops) {
  upload(ops.ctx().queue);
  if (takes_sampled_) ops.take_sampled(static_cast<int32_t*>(memory_.get()) + offsets_[0], batch_.rows);
}

// The staging memory is read until the operation has run, which the event comes after; the arrays on the device are
// written after the work enqueued before it, which may read them.
void BatchBuilder::move(ops::Ops& ops) {
  if (in_place()) return upload(ops);
  const int64_t rows = batch_.rows, sequences = batch_.sequences;
  const int64_t counts[kArrays] = {
      rows, rows, rows, rows, sequences + 1, sequences + 1, sequences, sequences, batch_.logit_rows, num_blocks_};
  ops::BatchMove::Piece pieces[kArrays];
  for (int i = 0; i < kArrays; ++i) pieces[i] = {offsets_[i], counts[i]};
  uploaded_[current_] = ops.move_batch({staging(), static_cast<int32_t*>(memory_.get()), pieces});
}

}  // namespace sluice::model
