// SPDX-License-Identifier: Apache-2.0
#include "engine/scheduler.h"

#include <algorithm>

#include "base/error.h"

namespace sluice::engine {

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(config), pool_(config.blocks), snapshots_(config.max_running, config.recurrent ? config.snapshots : 0) {
  if (config.recurrent && config.snapshots == 0) config_.prefix_cache = false;
  for (int slot = config.max_running; slot > 0; --slot) free_slots_.push_back(slot - 1);
  running_.reserve(static_cast<size_t>(config.max_running));
  plan_.reserve(static_cast<size_t>(config.max_running));
}

Handle Scheduler::add(NewSequence sequence) {
  check(sequence.max_length <= config_.blocks * config_.block_size,
        "prompt and answer are {} tokens; the cache holds {}", sequence.max_length,
        config_.blocks * config_.block_size);
  if (free_handles_.empty()) {
    free_handles_.push_back(static_cast<Handle>(sequences_.size()));
    sequences_.emplace_back();
  }
  const Handle h = free_handles_.back();
  free_handles_.pop_back();
  Sequence& s = at(h);
  static_cast<NewSequence&>(s) = std::move(sequence);  // the rest is as remove() left it
  s.arrival = arrivals_++;
  s.in_use = true;
  insert_in_order(waiting_, h);
  return h;
}

std::span<const PlanEntry> Scheduler::schedule(int64_t drafts) {
  drafts_ = std::min<int64_t>(drafts, config_.drafts);
  plan_.clear();
  prefill_left_ = config_.prefill_budget;
  scored_left_ = config_.scored_rows;
  // Pre-emption takes from the list's end, never what is planned already.
  for (size_t i = 0; i < running_.size(); ++i) plan_running(running_[i]);
  admit();
  return plan_;
}

void Scheduler::plan_running(Handle h) {
  Sequence& s = at(h);
  const int64_t rows = s.decoding ? 1 : prompt_rows(s);
  if (rows == 0 || !make_room(h, s.computed + rows)) return;
  plan(h, rows, s.decoding ? draft_rows(s) : 0);
}

int64_t Scheduler::prompt_rows(const Sequence& s) const {
  int64_t rows = std::min(s.length - s.computed, prefill_left_);
  if (s.scored) rows = std::min(rows, scored_left_);
  for (const int64_t point : {s.branch, s.boundary})
    if (point > s.computed) rows = std::min(rows, point - s.computed);
  return rows;
}

// Drafts take blocks that nobody needs; they are never worth a pre-emption.
int64_t Scheduler::draft_rows(Sequence& s) {
  const int64_t wanted = std::clamp<int64_t>(s.max_length - s.length - 1, 0, drafts_);
  const auto room = [&] { return static_cast<int64_t>(s.blocks.size()) * config_.block_size - s.computed - 1; };
  while (room() < wanted) {
    const auto block = pool_.allocate();
    if (!block) break;
    s.blocks.push_back(*block);
  }
  return std::min(wanted, room());
}

void Scheduler::plan(Handle h, int64_t rows, int64_t drafts) {
  Sequence& s = at(h);
  const int64_t end = s.computed + rows;
  if (!s.decoding) {
    prefill_left_ -= rows;
    if (s.scored) scored_left_ -= rows;
    if (!s.isolated && (end == s.branch || end == s.boundary) &&
        !snapshots_.contains(s.hashes[static_cast<size_t>(end / config_.block_size - 1)]))
      s.save = snapshots_.reserve();
  }
  PlanEntry e;
  e.sequence = h;
  e.slot = s.slot;
  e.context = s.computed;
  e.rows = rows + drafts;
  e.drafts = drafts;
  e.last = end == s.length;
  e.blocks = s.blocks;
  e.save = s.save;
  plan_.push_back(e);
}

bool Scheduler::make_room(Handle h, int64_t tokens) {
  Sequence& s = at(h);
  while (static_cast<int64_t>(s.blocks.size()) * config_.block_size < tokens) {
    if (const auto block = pool_.allocate()) {
      s.blocks.push_back(*block);
      continue;
    }
    const Handle victim = running_.back();
    preempt(victim);
    if (victim == h) return false;
  }
  return true;
}

void Scheduler::preempt(Handle h) {
  Sequence& s = at(h);
  give_back(s);
  ++preemptions_;
  ++s.preemptions;
  insert_in_order(waiting_, h);
}

void Scheduler::give_back(Sequence& s) {
  if (!s.running) return;
  // The last block first: the queue then loses a prefix from its end.
  for (auto b = s.blocks.rbegin(); b != s.blocks.rend(); ++b) pool_.release(*b);
  s.blocks.clear();
  if (s.save) snapshots_.drop(*s.save);
  s.save.reset();
  free_slots_.push_back(s.slot);
  s.running = s.decoding = s.isolated = false;
  s.computed = s.published = s.branch = s.boundary = 0;
  running_.erase(std::find_if(running_.begin(), running_.end(), [&](Handle r) { return &at(r) == &s; }));
}

void Scheduler::admit() {
  // At most as many candidates as may run: those that wait for an older one's prefix are looked at in every step.
  auto candidates = static_cast<size_t>(config_.max_running);
  for (size_t i = 0; i < waiting_.size() && candidates > 0 && !free_slots_.empty() && prefill_left_ > 0; --candidates) {
    const Handle h = waiting_[i];
    if (at(h).scored && scored_left_ == 0) return;
    const Match m = match(at(h));
    if (computed_by_an_older_one(at(h), m)) {
      ++i;
      continue;
    }
    if (!fits(at(h), m)) return;
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    start(h, m);
  }
}

bool Scheduler::would_admit() {
  if (waiting_.empty() || free_slots_.empty()) return false;
  const Sequence& first = at(waiting_.front());
  return fits(first, match(first));
}

// Room for all known tokens beside what the running ones still need for theirs, and one block of growth for each.
bool Scheduler::fits(const Sequence& s, const Match& match) const {
  int64_t needed = blocks_for(s.length) - match.usable;
  for (int64_t i = 0; i < match.usable; ++i)
    needed += pool_.references(*pool_.find(s.hashes[static_cast<size_t>(i)])) == 0 ? 1 : 0;
  for (const Handle r : running_)
    needed += 1 + std::max<int64_t>(0, blocks_for(at(r).length) - static_cast<int64_t>(at(r).blocks.size()));
  return needed <= pool_.available();
}

void Scheduler::start(Handle h, const Match& m) {
  Sequence& s = at(h);
  s.blocks.reserve(static_cast<size_t>(blocks_for(s.max_length)));
  s.hashes.reserve(s.blocks.capacity());
  for (int64_t i = 0; i < m.usable; ++i) {
    s.blocks.push_back(*pool_.find(s.hashes[static_cast<size_t>(i)]));
    pool_.retain(s.blocks.back());
  }
  s.running = true;
  s.slot = free_slots_.back();
  free_slots_.pop_back();
  s.computed = m.usable * config_.block_size;
  s.published = m.usable;
  if (s.cached_tokens < 0) s.cached_tokens = s.computed;
  if (config_.recurrent && config_.prefix_cache) {
    s.boundary = (s.length - 1) / config_.block_size * config_.block_size;
    s.branch = m.blocks > m.usable ? m.blocks * config_.block_size : 0;
  }
  insert_in_order(running_, h);
  // A boundary that has been passed already: nothing to stop at.
  const int64_t rows = prompt_rows(s);
  while (static_cast<int64_t>(s.blocks.size()) * config_.block_size < s.computed + rows)
    s.blocks.push_back(*pool_.allocate());  // fits() has counted them
  plan(h, rows, 0);
  plan_.back().admitted = true;
  plan_.back().restore = m.snapshot;
}

int64_t Scheduler::reusable_blocks(const Sequence& s) const {
  if (!config_.prefix_cache) return 0;
  // At least one row must run: its logits choose the next token.
  return std::min<int64_t>(std::min(s.reuse_limit, s.length - 1) / config_.block_size,
                           static_cast<int64_t>(s.hashes.size()));
}

Scheduler::Match Scheduler::match(const Sequence& s) {
  Match m;
  const int64_t limit = reusable_blocks(s);
  while (m.blocks < limit && pool_.find(s.hashes[static_cast<size_t>(m.blocks)])) ++m.blocks;
  if (!config_.recurrent) {
    m.usable = m.blocks;
    return m;
  }
  for (m.usable = m.blocks; m.usable > 0; --m.usable)
    if ((m.snapshot = snapshots_.find(s.hashes[static_cast<size_t>(m.usable - 1)]))) break;
  return m;
}

bool Scheduler::computed_by_an_older_one(const Sequence& s, const Match& match) const {
  const int64_t limit = reusable_blocks(s);
  const auto will_have = [&](const Sequence& older, int64_t blocks) {
    return blocks > match.usable && blocks <= limit && blocks <= static_cast<int64_t>(older.hashes.size()) &&
           older.computed < blocks * config_.block_size &&
           older.hashes[static_cast<size_t>(blocks - 1)] == s.hashes[static_cast<size_t>(blocks - 1)];
  };
  for (const Handle r : running_) {
    const Sequence& older = at(r);
    if (before(s, older)) break;
    if (older.decoding || older.isolated) continue;
    if (!config_.recurrent && will_have(older, match.usable + 1)) return true;
    if (config_.recurrent &&
        (will_have(older, older.branch / config_.block_size) || will_have(older, older.boundary / config_.block_size)))
      return true;
  }
  return false;
}

std::optional<PlanEntry> Scheduler::following(const PlanEntry& entry) {
  PlanEntry next;
  next.sequence = entry.sequence;
  next.slot = entry.slot;
  next.context = entry.context + entry.rows;
  next.rows = 1;
  next.last = true;
  std::vector<int32_t>& blocks = at(entry.sequence).blocks;
  while (static_cast<int64_t>(blocks.size()) * config_.block_size < next.context + next.rows) {
    const auto block = pool_.allocate();
    if (!block) return std::nullopt;
    blocks.push_back(*block);
  }
  next.blocks = blocks;
  return next;
}

void Scheduler::advance(const PlanEntry& entry, int64_t new_tokens) {
  Sequence& s = at(entry.sequence);
  s.computed += entry.last ? entry.rows - 1 - entry.drafts + std::max<int64_t>(new_tokens, 1) : entry.rows;
  s.length += new_tokens;
  s.decoding = entry.last;
  publish(entry.sequence, s.computed);
  if (!s.save) return;
  snapshots_.keep(*s.save, s.hashes[static_cast<size_t>(s.computed / config_.block_size - 1)]);
  s.save.reset();
}

void Scheduler::publish(Handle h, int64_t tokens) {
  Sequence& s = at(h);
  if (!config_.prefix_cache || s.isolated) return;
  for (; s.published < tokens / config_.block_size; ++s.published) {
    const auto i = static_cast<size_t>(s.published);
    const bool is_new = pool_.publish(s.blocks[i], s.hashes[i]);
    if (is_new && listener_ != nullptr) listener_->stored(h, s.published, s.blocks[i]);
  }
}

void Scheduler::listen(CacheListener* listener) {
  listener_ = listener;
  pool_.listen(listener);
}

void Scheduler::remove(Handle h) {
  Sequence& s = at(h);
  if (!s.in_use) fail(ErrorCode::internal, "sequence {} was removed twice", h);
  if (!s.running) waiting_.erase(std::find(waiting_.begin(), waiting_.end(), h));
  give_back(s);
  s = Sequence{};
  free_handles_.push_back(h);
}

void Scheduler::flush() {
  pool_.forget_names();
  snapshots_.forget_names();
}

void Scheduler::retract_all() {
  while (!running_.empty()) preempt(running_.back());
}

void Scheduler::flush_and_isolate() {
  flush();
  for (const Handle h : running_) {
    Sequence& s = at(h);
    s.isolated = true;
    if (s.save) snapshots_.drop(*s.save);
    s.save.reset();
  }
}

void Scheduler::insert_in_order(std::vector<Handle>& list, Handle h) {
  list.insert(std::lower_bound(list.begin(), list.end(), h, [&](Handle a, Handle b) { return before(at(a), at(b)); }),
              h);
}

void Scheduler::insert_in_order(std::deque<Handle>& list, Handle h) {
  list.insert(std::lower_bound(list.begin(), list.end(), h, [&](Handle a, Handle b) { return before(at(a), at(b)); }),
              h);
}

}  // namespace sluice::engine
