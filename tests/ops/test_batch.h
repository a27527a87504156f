// SPDX-License-Identifier: Apache-2.0
// Batches of plain sequences, as a step of the engine would describe them, with blocks in scrambled order.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <stdexcept>
#include <vector>

#include "ops/batch.h"
#include "tests/ops/memory.h"

namespace sluice::ops {

struct SequenceRows {
  int64_t context = 0, rows = 1;
  int32_t state_in = -1;
  std::vector<int32_t> state_out = {};  // of its last rows; the ones before store nothing
};

class TestBatch {
 public:
  TestBatch(Queue& queue, std::vector<SequenceRows> sequences, int64_t block_size = 16)
      : queue_(&queue), sequences_(std::move(sequences)), block_size_(block_size) {
    check_places();
    int64_t needed = 0;
    for (const SequenceRows& s : sequences_) needed += blocks_for(s.context + s.rows);
    blocks_ = needed + 3;  // some belong to no sequence
    std::vector<int32_t> deck(static_cast<size_t>(blocks_));
    std::iota(deck.begin(), deck.end(), 0);
    std::shuffle(deck.begin(), deck.end(), random());
    auto next = deck.begin();
    for (const SequenceRows& s : sequences_) {
      dealt_.emplace_back(next, next + blocks_for(s.context + s.rows));
      next += blocks_for(s.context + s.rows);
    }
  }

  const std::vector<SequenceRows>& sequences() const { return sequences_; }
  int64_t blocks() const { return blocks_; }
  int64_t block_size() const { return block_size_; }
  int64_t rows() const {
    int64_t n = 0;
    for (const SequenceRows& s : sequences_) n += s.rows;
    return n;
  }
  int64_t first_row(size_t s) const {
    int64_t n = 0;
    for (size_t i = 0; i < s; ++i) n += sequences_[i].rows;
    return n;
  }
  // Where the keys and values of `position` of sequence s lie.
  int64_t slot(size_t s, int64_t position) const {
    return dealt_[s][static_cast<size_t>(position / block_size_)] * block_size_ + position % block_size_;
  }
  // `count` rows of one sequence as a batch of their own: the same blocks, the rows before them in the cache.
  TestBatch part(size_t s, int64_t first, int64_t count) const {
    TestBatch one = *this;
    one.sequences_ = {{sequences_[s].context + first, count}};
    one.dealt_ = {dealt_[s]};
    one.dealt_[0].resize(static_cast<size_t>(blocks_for(sequences_[s].context + first + count)));
    return one;
  }

  // From now on view() ends in sequences and rows that do not exist, as a step that is padded.
  void pad(int64_t sequences, int64_t rows) { padding_sequences_ = sequences, padding_rows_ = rows; }

  Batch view() {
    Batch b;
    std::vector<int32_t> tokens, positions, slots, state_out, row_begin{0}, block_begin{0}, blocks, contexts, state_in,
        logits_of;
    for (size_t s = 0; s < sequences_.size(); ++s) {
      const SequenceRows& q = sequences_[s];
      for (int64_t r = 0; r < q.rows; ++r) {
        tokens.push_back(static_cast<int32_t>(r));
        positions.push_back(static_cast<int32_t>(q.context + r));
        slots.push_back(static_cast<int32_t>(slot(s, q.context + r)));
        const int64_t stored = r - (q.rows - static_cast<int64_t>(q.state_out.size()));
        state_out.push_back(stored < 0 ? -1 : q.state_out[static_cast<size_t>(stored)]);
      }
      row_begin.push_back(static_cast<int32_t>(tokens.size()));
      blocks.insert(blocks.end(), dealt_[s].begin(), dealt_[s].end());
      block_begin.push_back(static_cast<int32_t>(blocks.size()));
      contexts.push_back(static_cast<int32_t>(q.context));
      state_in.push_back(q.state_in);
      logits_of.push_back(row_begin.back() - 1);
      b.longest_rows = std::max(b.longest_rows, q.rows);
      b.longest_context = std::max(b.longest_context, q.context + q.rows);
      b.count_prompt(q.context, q.rows);
    }
    for (int64_t i = 0; i < padding_sequences_; ++i) {
      row_begin.push_back(row_begin.back());
      block_begin.push_back(block_begin.back());
      contexts.push_back(0);
      state_in.push_back(-1);
    }
    for (int64_t i = 0; i < padding_rows_; ++i) {
      tokens.push_back(0);
      positions.push_back(0);
      slots.push_back(-1);
      state_out.push_back(-1);
    }
    b.rows = static_cast<int64_t>(tokens.size());
    b.sequences = static_cast<int64_t>(contexts.size());
    b.logit_rows = static_cast<int64_t>(logits_of.size());
    arrays_.clear();
    const auto upload = [&](const std::vector<int32_t>& v) { return arrays_.emplace_back(*queue_, v).ints(); };
    b.tokens = upload(tokens);
    b.positions = upload(positions);
    b.kv_slots = upload(slots);
    b.state_out = upload(state_out);
    b.row_begin = upload(row_begin);
    b.block_begin = upload(block_begin);
    b.blocks = upload(blocks);
    b.contexts = upload(contexts);
    b.state_in = upload(state_in);
    b.logits_of = upload(logits_of);
    return b;
  }

 private:
  // Throws std::invalid_argument where the sequences break what batch.h asks of states: sequences run side by side, so
  // a place that one reads and another writes gives results that depend on which came first.
  void check_places() const {
    std::set<int32_t> written;
    for (const SequenceRows& s : sequences_)
      for (const int32_t place : s.state_out)
        if (!written.insert(place).second) throw std::invalid_argument(fmt::format("place {} is stored twice", place));
    for (const SequenceRows& s : sequences_) {
      const bool own = std::ranges::find(s.state_out, s.state_in) != s.state_out.end();
      if (!own && written.contains(s.state_in))
        throw std::invalid_argument(fmt::format("place {} is read by one sequence and stored by another", s.state_in));
    }
  }

  int64_t blocks_for(int64_t positions) const { return (positions + block_size_ - 1) / block_size_; }

  Queue* queue_;
  std::vector<SequenceRows> sequences_;
  int64_t block_size_, blocks_ = 0, padding_sequences_ = 0, padding_rows_ = 0;
  std::vector<std::vector<int32_t>> dealt_;  // blocks of each sequence
  std::vector<Values> arrays_;               // of the last view()
};

}  // namespace sluice::ops
