// SPDX-License-Identifier: Apache-2.0
// Which sequences run in the next step, how many rows of each, and in which blocks. Integers only: it never sees a
// token, a tensor or a clock, and is tested without a model.
//
// - Sequences are ordered by priority, those of one priority by arrival; "older" and "younger" below mean this order.
// - Sequences run in this order. Each decoding one gets its row, and rows for drafts where blocks are free.
//   Prompts share `prefill_budget` rows, the oldest first. So decoding never waits for prompts, nor the other way
//   round.
// - A sequence that needs a block when none is available takes it from the youngest one, which gives everything back
//   and waits again (recomputing mostly finds its blocks still named). The oldest is never the victim: it ends some
//   day, and so does every other, unless ones of higher priority never cease to come.
// - Waiting sequences are admitted in this order and never overtaken for want of room. One that would compute
//   what an older one is just computing waits for that (n answers to a prompt, a shared system prompt) while others
//   pass.
// - Recurrent models find a prefix again where a snapshot of the state was taken: at the last block boundary of a
//   prompt, and where a prompt left the known prefixes (after a system prompt that the second user shares). Prompt
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
  int64_t prefill_budget = 512;  // rows of prompts per step
  int64_t scored_rows = 64;      // of them, rows of prompts whose every logit is wanted
  int32_t blocks = 0;
  int64_t block_size = 64;
  bool prefix_cache = true;
  bool recurrent = false;
  int snapshots = 0;  // slots from max_running on; recurrent models only
  int drafts = 0;     // the most draft rows per step of a decoding sequence, beside its own row
};

using Handle = int32_t;

struct NewSequence {
  int64_t length = 0;      // known tokens
  int64_t max_length = 0;  // with the answer
  std::vector<BlockHash> hashes;
  // The most tokens taken from the prefix cache; logits of every later row are wanted when `scored`.
  int64_t reuse_limit = INT64_MAX;
  bool scored = false;
  int64_t priority = 0;  // larger: earlier
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
  // The next step, in order. Empty only when idle. The entries stay as they are until the next schedule(),
  // and the blocks of each until its sequence is removed: whoever commits a step reads on while it calls advance(),
  // add_hash(), remove() and add().
  // drafts: the most rows for drafts of each sequence, if fewer than SchedulerConfig says.
  std::span<const PlanEntry> schedule(int64_t drafts = INT64_MAX);
  // Whether schedule() would take up a waiting sequence now, while all running ones decode.
  bool would_admit();
  // The entry's sequence in the step after its own, with one row, before the first one is committed: for an entry that
  // is `last`, without drafts, whose new token does not end the sequence. Nothing where no block is free; nobody is
  // pre-empted. Both entries are then committed in their order, without a schedule() in between.
  std::optional<PlanEntry> following(const PlanEntry& entry);
  // After a planned step: the sequence goes on with `new_tokens` more known tokens (0 unless the entry was `last`). Of
  // its rows those before the new tokens are in the cache now; rows of wrong drafts are forgotten.
  void advance(const PlanEntry& entry, int64_t new_tokens);
  // A block's worth of known tokens has been completed.
  void add_hash(Handle sequence, const BlockHash& hash) { at(sequence).hashes.push_back(hash); }
  // Ends a sequence in any state: everything that it held is available.
  void remove(Handle sequence);
  // Forgets all prefixes.
  void flush();
  // Every running sequence gives its blocks back and waits again, as a pre-empted one does.
  void retract_all();
  // Forgets all prefixes, and what the running sequences compute becomes none: their keys and values are of weights
  // that others do not run with.
  void flush_and_isolate();

  bool idle() const { return running_.empty() && waiting_.empty(); }
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t preemptions() const { return preemptions_; }
  int64_t preemptions(Handle sequence) const { return at(sequence).preemptions; }
  // Tokens found in the prefix cache when the sequence was first admitted.
  int64_t cached_tokens(Handle sequence) const { return at(sequence).cached_tokens; }
  // Told of every block that is found from now on, and of every one that is no more; must live longer.
  void listen(CacheListener* listener);
  const BlockPool& pool() const { return pool_; }
  const SchedulerConfig& config() const { return config_; }

 private:
  struct Sequence : NewSequence {
    int64_t arrival = 0;
    bool in_use = false, running = false;
    bool isolated = false;  // its blocks are not for others, until it begins anew
    bool decoding = false;  // all known tokens but the newest are in the cache, and drafts can continue from there
    int64_t computed = 0;   // tokens in the cache
    int64_t published = 0;  // blocks
    std::vector<int32_t> blocks;
    int slot = 0;
    int64_t branch = 0, boundary = 0;  // tokens after which a snapshot is wanted; 0: none
    std::optional<int> save;
    int64_t cached_tokens = -1, preemptions = 0;
  };
  struct Match {
    int64_t blocks = 0;  // found
    int64_t usable = 0;  // of those; a recurrent model also needs a snapshot of the state after them
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
  void publish(Handle h, int64_t tokens);
  void give_back(Sequence& s);
  static bool before(const Sequence& a, const Sequence& b) {
    return a.priority != b.priority ? a.priority > b.priority : a.arrival < b.arrival;
  }
  void insert_in_order(std::vector<Handle>& list, Handle h);
  void insert_in_order(std::deque<Handle>& list, Handle h);

  SchedulerConfig config_;
  BlockPool pool_;
  CacheListener* listener_ = nullptr;
  Snapshots snapshots_;
  std::deque<Sequence> sequences_;  // by handle; addresses stay
  std::vector<Handle> free_handles_;
  std::vector<int> free_slots_;
  std::vector<Handle> running_;  // in order, as is waiting_
  std::deque<Handle> waiting_;
  std::vector<PlanEntry> plan_;
  int64_t prefill_left_ = 0, scored_left_ = 0, drafts_ = 0;
  int64_t arrivals_ = 0, preemptions_ = 0;
};

}  // namespace sluice::engine
