// SPDX-License-Identifier: Apache-2.0
// Which sequences run in the next step, how many rows of each, and in which blocks. Integers only: it never sees a
// token, a tensor or a clock, and is tested without a model.
//
// - Sequences run in order of arrival. Each decoding one gets its row, and rows for drafts where blocks are free;
// prompts
//   share `prefill_budget` rows, the oldest first. So decoding never waits for prompts, nor the other way round.
// - A sequence that needs a block when none is available takes it from the youngest one, which gives everything back
//   and waits again (recomputing mostly finds its blocks still named). The oldest is never the victim: it ends some
//   day, and so does every other.
// - Waiting sequences are admitted in order of arrival and never overtaken for want of room. One that would compute
// what
//   an older one is just computing waits for that (n answers to a prompt, a shared system prompt) while others pass.
// - Recurrent models find a prefix again where a snapshot of the state was taken: at the last block boundary of a
//   prompt, and where a prompt left the known prefixes (behind a system prompt that the second user shares). Prompt
//   chunks end there.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "engine/block_pool.h"
#include "engine/snapshots.h"

namespace sluice::engine {

struct SchedulerConfig {
  int max_running = 32;          // slots 0 to max_running - 1
  int64_t prefill_budget = 512;  // rows a step of prompts
  int64_t scored_rows = 64;      // of them, rows a step of prompts whose every logit is wanted
  int32_t blocks = 0;
  int64_t block_size = 64;
  bool prefix_cache = true;
  bool recurrent = false;
  int snapshots = 0;  // slots from max_running on; recurrent models only
  int drafts = 0;     // the most rows a step that a decoding sequence gets beside its own
};

using Handle = int32_t;

struct NewSequence {
  int64_t length = 0;      // known tokens
  int64_t max_length = 0;  // with the answer
  std::vector<BlockHash> hashes;
  // The most tokens taken from the prefix cache; logits of every later row are wanted when `scored`.
  int64_t reuse_limit = INT64_MAX;
  bool scored = false;
};

struct PlanEntry {
  Handle sequence = 0;
  int slot = 0;
  int64_t context = 0;  // tokens in the cache
  int64_t rows = 0;     // known tokens from there on, then drafts
  int64_t drafts = 0;
  bool last = false;                // its known tokens end here: the last 1 + drafts rows choose new ones
  bool admitted = false;            // now
  std::span<const int32_t> blocks;  // covers context + rows tokens
  std::optional<int> restore;       // copy this snapshot to `slot` before the model runs
  std::optional<int> save;          // copy `slot` to this snapshot afterwards
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config);

  // The sequence waits. Throws invalid_argument when it can never fit: max_length tokens in all blocks.
  Handle add(NewSequence sequence);
  // The next step, in order of arrival; valid until the next call of anything. Empty only when idle.
  std::span<const PlanEntry> schedule();
  // After a planned step: the sequence goes on with `new_tokens` more known tokens (0 unless the entry was `last`). Of
  // its rows those before the new tokens are in the cache now; rows of wrong drafts are forgotten.
  void advance(const PlanEntry& entry, int64_t new_tokens);
  // A block's worth of known tokens has been completed.
  void add_hash(Handle sequence, const BlockHash& hash) { at(sequence).hashes.push_back(hash); }
  // Ends a sequence in any state: everything that it held is available.
  void remove(Handle sequence);
  // Forgets all prefixes.
  void flush();

  bool idle() const { return running_.empty() && waiting_.empty(); }
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t preemptions() const { return preemptions_; }
  int64_t preemptions(Handle sequence) const { return at(sequence).preemptions; }
  // Tokens found in the prefix cache when the sequence was first admitted.
  int64_t cached_tokens(Handle sequence) const { return at(sequence).cached_tokens; }
  const BlockPool& pool() const { return pool_; }
  const SchedulerConfig& config() const { return config_; }

 private:
  struct Sequence : NewSequence {
    int64_t arrival = 0;
    bool in_use = false, running = false;
    bool decoding = false;  // all known tokens but the newest are in the cache, and drafts can continue from there
    int64_t computed = 0;   // tokens in the cache
    int64_t published = 0;  // blocks
    std::vector<int32_t> blocks;
    int slot = 0;
    int64_t branch = 0, boundary = 0;  // tokens behind which a snapshot is wanted; 0: none
    std::optional<int> save;
    int64_t cached_tokens = -1, preemptions = 0;
  };
  struct Match {
    int64_t blocks = 0;  // found
    int64_t usable = 0;  // with a state behind them
    std::optional<int> snapshot;
  };
  Sequence& at(Handle h) { return sequences_[static_cast<size_t>(h)]; }
  const Sequence& at(Handle h) const { return sequences_[static_cast<size_t>(h)]; }
  int64_t blocks_for(int64_t tokens) const { return (tokens + config_.block_size - 1) / config_.block_size; }

  void plan_running(Handle h);
  void plan(Handle h, int64_t rows, int64_t drafts);
  int64_t prompt_rows(const Sequence& s) const;
  int64_t draft_rows(Sequence& s);
  bool make_room(Handle h, int64_t tokens);
  void preempt(Handle h);
  void admit();
  bool fits(const Sequence& s, const Match& match) const;
  void start(Handle h, const Match& match);
  Match match(const Sequence& s);
  int64_t reusable_blocks(const Sequence& s) const;
  bool computed_by_an_older_one(const Sequence& s, const Match& match) const;
  void publish(Sequence& s, int64_t tokens);
  void give_back(Sequence& s);
  void insert_by_arrival(std::vector<Handle>& list, Handle h);
  void insert_by_arrival(std::deque<Handle>& list, Handle h);

  SchedulerConfig config_;
  BlockPool pool_;
  Snapshots snapshots_;
  std::deque<Sequence> sequences_;  // by handle; addresses stay
  std::vector<Handle> free_handles_;
  std::vector<int> free_slots_;
  std::vector<Handle> running_;  // by arrival, as is waiting_
  std::deque<Handle> waiting_;
  std::vector<PlanEntry> plan_;
  int64_t prefill_left_ = 0, scored_left_ = 0;
  int64_t arrivals_ = 0, preemptions_ = 0;
};

}  // namespace sluice::engine
