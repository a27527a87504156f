// SPDX-License-Identifier: Apache-2.0
#include "engine/step.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace sluice::engine {

bool only_decode(std::span<const PlanEntry> plan, int64_t drafts) {
  return std::all_of(plan.begin(), plan.end(), [&](const PlanEntry& entry) {
    return entry.last && entry.drafts == drafts && entry.rows == 1 + drafts;
  });
}

Step::Step(Parts parts, int64_t vocab, bool speculative)
    : parts_(parts), mask_words_(static_cast<size_t>(sampling::mask_words(vocab))), speculative_(speculative) {}

std::span<const int32_t> Step::Entry::drafts(const model::Runner& runner) const {
  if (plan->drafts == 0) return {};
  return runner.drafts(plan->slot).first(static_cast<size_t>(plan->drafts));
}

void Step::run(std::span<const PlanEntry> plan, bool follow) {
  follow_ = speculative_ && follow;
  prepare(plan);
  if (!run_model()) return;
  accept();
  commit();
}

bool Step::may_begin(std::span<const PlanEntry> plan) {
  return !all_observed() && std::all_of(plan.begin(), plan.end(), [&](const PlanEntry& entry) {
    return entry.last && entry.drafts == 0 && parts_.requests.at(entry.sequence).independent();
  });
}

void Step::begin(std::span<const PlanEntry> plan) {
  plan_.assign(plan.begin(), plan.end());
  prepare(plan_);
  begin();
}

void Step::begin_after(const Step& before) {
  plan_.clear();
  if (!before.begin_error_.empty()) return;
  for (const Entry& e : before.entries_) {
    if (e.output == nullptr || static_cast<int64_t>(e.output->tokens().size()) + 1 >= e.output->max_length()) continue;
    const std::optional<PlanEntry> next = parts_.scheduler.following(*e.plan);
    if (!next) return;
    plan_.push_back(*next);
  }
  if (plan_.empty()) return;
  prepare(plan_);
  size_t at = 0;
  for (const Entry& e : before.entries_)
    if (at < entries_.size() && e.output == entries_[at].output)
      entries_[at++].sampled = static_cast<int32_t>(e.first_sampled);
  begin();
}

// An error waits for end(): the step before comes first.
void Step::begin() {
  begun_ = true;
  follow_ = false;
  begin_error_.clear();
  const auto start = Clock::now();
  try {
    forward();
    add_sample_rows();
    parts_.runner.begin_sample({sample_rows_, edits_});
  } catch (const std::exception& error) {
    begin_error_ = error.what();
  }
  model_seconds_ += seconds(Clock::now() - start);
}

void Step::end() {
  begun_ = false;
  const auto start = Clock::now();
  try {
    if (!begin_error_.empty()) fail(ErrorCode::internal, "{}", begin_error_);
    if (sampled_.size() < sample_rows_.size()) sampled_.resize(sample_rows_.size());
    parts_.runner.end_sample(std::span(sampled_).first(sample_rows_.size()));
  } catch (const std::exception& error) {
    return fail_all(error.what());
  }
  model_seconds_ += seconds(Clock::now() - start);
  accept();
  commit();
}

void Step::drop_finished() {
  for (Entry& e : entries_)
    if (e.output != nullptr && (!parts_.requests.holds(e.plan->sequence, e.output) || e.output->finished()))
      e.output = nullptr;
}

bool Step::dropped_all() const {
  return std::all_of(entries_.begin(), entries_.end(), [](const Entry& e) { return e.output == nullptr; });
}

void Step::prepare(std::span<const PlanEntry> plan) {
  const auto now = Clock::now();
  entries_.clear();
  failed_ = false;
  model_seconds_ = sampling_seconds_ = following_seconds_ = 0;
  ++parts_.metrics.steps;
  for (const PlanEntry& entry : plan) {
    OutputSequence& c = parts_.requests.at(entry.sequence);
    if (entry.admitted && !c.started) {
      c.started = true;
      c.reserve();
      Usage& u = c.event().usage;
      u.cached_tokens = parts_.scheduler.cached_tokens(entry.sequence);
      u.queue_seconds = seconds(now - c.added);
      --parts_.metrics.queued;
      parts_.metrics.prompt_tokens += u.prompt_tokens;
      parts_.metrics.cached_tokens += u.cached_tokens;
      parts_.metrics.queue_seconds.observe(u.queue_seconds);
    }
    parts_.metrics.rows += entry.rows;
    Entry& e = entries_.emplace_back();
    e.plan = &entry;
    e.output = &c;
    e.all_logits = c.scored_from() && entry.context < c.prompt_length();
  }
}

bool Step::run_model() {
  try {
    auto start = Clock::now();
    forward();
    model_seconds_ += seconds(Clock::now() - start);
    start = Clock::now();
    sample();
    sampling_seconds_ += seconds(Clock::now() - start);
  } catch (const std::exception& error) {
    mask_worker_.wait();
    fail_all(error.what());
    return false;
  }
  return true;
}

// Restores states, makes drafts, runs all rows, saves states.
void Step::forward() {
  draft_requests_.clear();
  for (const Entry& e : entries_) {
    if (e.plan->restore) parts_.runner.copy_state(*e.plan->restore, e.plan->slot);
    if (e.plan->drafts > 0) draft_requests_.push_back({e.plan->slot, e.plan->context, e.plan->blocks, e.plan->drafts});
  }
  if (!draft_requests_.empty()) parts_.runner.make_drafts(draft_requests_);
  parts_.runner.clear();
  int64_t step_rows = 0;
  for (Entry& e : entries_) {
    const PlanEntry& p = *e.plan;
    if (e.sampled >= 0) {
      rows_.assign(1, 0);
      e.place = parts_.runner.add({p.slot, rows_, p.context, p.blocks, 1, false, e.sampled});
      continue;
    }
    const auto known =
        e.output->tokens().subspan(static_cast<size_t>(p.context), static_cast<size_t>(p.rows - p.drafts));
    rows_.assign(known.begin(), known.end());
    const auto guessed = e.drafts(parts_.runner);
    rows_.insert(rows_.end(), guessed.begin(), guessed.end());
    const int64_t wanted = e.all_logits ? p.rows : p.last ? 1 + p.drafts : 0;
    e.place = parts_.runner.add({p.slot, rows_, p.context, p.blocks, wanted, p.drafts > 0});
    step_rows += p.rows;
  }
  start_masks();
  const bool observe = observed();
  if (observe) parts_.observer.begin_step(step_rows);
  parts_.runner.run(observe ? &parts_.observer : nullptr);
  if (observe) keep_routes();
  for (const Entry& e : entries_)
    if (e.plan->save) parts_.runner.copy_state(e.plan->slot, *e.plan->save);
}

// What may be chosen depends on the tokens before it and not on the model: drafts included, they are all known now.
void Step::start_masks() {
  int64_t rows_masked = 0;
  for (Entry& e : entries_) {
    if (!e.plan->last || e.output->prompt_only() || !e.output->masked()) continue;
    e.first_mask = rows_masked;
    rows_masked += 1 + e.plan->drafts;
  }
  masks_.resize(static_cast<size_t>(rows_masked) * mask_words_);
  if (rows_masked == 0) return;
  mask_worker_.start([this] {
    for (Entry& e : entries_) {
      if (e.first_mask < 0) continue;
      const auto count = static_cast<size_t>(1 + e.plan->drafts);
      try {
        e.num_masks = static_cast<int64_t>(e.output->fill_masks(
            e.drafts(parts_.runner),
            std::span(masks_).subspan(static_cast<size_t>(e.first_mask) * mask_words_, count * mask_words_)));
      } catch (const std::exception& error) {
        e.mask_error = error.what();
      }
    }
  });
}

// A token for every row that may choose one, as if all drafts before it were right, and the log probabilities that
// prompts want, in one operation.
void Step::sample() {
  mask_worker_.wait();
  add_sample_rows();
  if (sampled_.size() < sample_rows_.size()) sampled_.resize(sample_rows_.size());
  read_named();
  parts_.runner.sample({sample_rows_, edits_, masks_}, std::span(sampled_).first(sample_rows_.size()));
  for (size_t i = 0, at = 0; i < sample_rows_.size(); ++i) {
    std::vector<sampling::Likelihood>& asked = sampled_[i].logprob.asked;
    asked.clear();
    for (const int32_t token : named_[i]) asked.push_back({token, static_cast<float>(named_values_[at++])});
  }
}

void Step::add_sample_rows() {
  sample_rows_.clear();
  edits_.clear();
  for (Entry& e : entries_) {
    const PlanEntry& p = *e.plan;
    OutputSequence& c = *e.output;
    e.first_sampled = static_cast<int64_t>(sample_rows_.size());
    if (e.all_logits) {
      const int64_t end = std::min(p.context + p.rows + 1, c.prompt_length());
      for (int64_t position = std::max(p.context + 1, c.next_scored()); position < end; ++position)
        sample_rows_.push_back(
            c.score_row(static_cast<int32_t>(e.place.first_logit + position - p.context - 1), position));
    }
    e.scored = static_cast<int64_t>(sample_rows_.size()) - e.first_sampled;
    if (!p.last || c.prompt_only()) continue;
    const int64_t first = e.place.first_logit + (e.all_logits ? p.rows - 1 - p.drafts : 0);
    if (e.sampled >= 0) {  // one token is on its way; which one does not matter here
      const int32_t unknown = 0;
      sample_rows_.push_back(c.next_row(static_cast<int32_t>(first), {&unknown, 1}, edits_));
      continue;
    }
    const auto guessed = e.drafts(parts_.runner);
    for (int64_t i = 0; i <= p.drafts; ++i) {
      sample_rows_.push_back(
          c.next_row(static_cast<int32_t>(first + i), guessed.first(static_cast<size_t>(i)), edits_));
      if (i < e.num_masks) sample_rows_.back().mask = static_cast<int32_t>(e.first_mask + i);
    }
  }
  for (size_t i = 0; i < entries_.size(); ++i)
    entries_[i].num_sampled =
        (i + 1 < entries_.size() ? entries_[i + 1].first_sampled : static_cast<int64_t>(sample_rows_.size())) -
        entries_[i].first_sampled;
}

// The log probabilities of the tokens that requests name, for the rows of `sample_rows_`, before sample() edits them.
void Step::read_named() {
  named_.assign(sample_rows_.size(), {});
  named_values_.clear();
  for (const Entry& e : entries_) {
    const std::span<const int32_t> ids = e.output->logprob_tokens();
    const auto first = static_cast<size_t>(e.first_sampled), count = static_cast<size_t>(e.num_sampled);
    for (size_t i = first; !ids.empty() && i < first + count; ++i) {
      if (sample_rows_[i].top_logprobs < 0) continue;
      named_[i] = ids;
      named_values_.resize(named_values_.size() + ids.size());
      parts_.runner.log_likelihoods_of(sample_rows_[i].logits, ids, std::span(named_values_).last(ids.size()));
    }
  }
}

void Step::accept() {
  const auto start = Clock::now();
  parts_.ctx.pool.parallel_for(static_cast<int64_t>(entries_.size()), [&](int64_t i, int) {
    Entry& e = entries_[static_cast<size_t>(i)];
    if (e.output == nullptr) return;
    try {
      accept(e);
    } catch (const std::exception& error) {
      e.output->finish(FinishReason::error, error.what());
    }
  });
  sampling_seconds_ += seconds(Clock::now() - start);
}

// Each row after a right draft gives a token; model/drafter.h says why this is all.
void Step::accept(Entry& entry) {
  const PlanEntry& p = *entry.plan;
  OutputSequence& c = *entry.output;
  if (!entry.mask_error.empty()) return c.finish(FinishReason::error, entry.mask_error);
  const auto rows_of = std::span(sampled_).subspan(static_cast<size_t>(entry.first_sampled));
  for (int64_t i = 0; i < entry.scored; ++i) c.score_prompt(rows_of[static_cast<size_t>(i)]);
  if (!p.last) return;
  if (c.prompt_only()) return c.finish(FinishReason::length);
  const std::span<const int32_t> guessed = entry.drafts(parts_.runner);
  for (int64_t i = 0; i <= p.drafts; ++i) {
    const int32_t token = c.advance(rows_of[static_cast<size_t>(entry.scored + i)]);
    if (token == OutputSequence::kNoToken) return;
    ++entry.new_tokens;
    if (c.finished() || i == p.drafts || token != guessed[static_cast<size_t>(i)]) return;
  }
}

// The scheduler, the states and the draft head learn what was accepted_.
void Step::commit() {
  accepted_.clear();
  int64_t tokens = 0;
  for (const Entry& entry : entries_) {
    if (entry.output == nullptr) continue;
    const PlanEntry& p = *entry.plan;
    OutputSequence& c = *entry.output;
    const int64_t n = entry.new_tokens;
    tokens += std::clamp<int64_t>(c.prompt_length() - p.context, 0, p.rows) + n;
    parts_.metrics.generation_tokens += n;
    if (p.drafts > 0 && n > 0) {
      Usage& u = c.event().usage;
      ++parts_.metrics.verify_rounds;
      parts_.metrics.drafted += p.drafts;
      parts_.metrics.accepted += n - 1;
      ++u.verify_rounds;
      u.drafted += p.drafts;
      u.accepted += n - 1;
    }
    // The draft head does not follow what has ended, so its last blocks are not for others.
    if (c.finished() && (speculative_ || c.event().reason == FinishReason::error)) continue;
    hashes_.clear();
    c.take_hashes(hashes_);
    for (const BlockHash& h : hashes_) parts_.scheduler.add_hash(p.sequence, h);
    parts_.scheduler.advance(p, n);
    if (c.finished()) continue;
    if (p.drafts > 0) parts_.runner.commit(p.slot, n);
    if (!follow_) continue;
    const int64_t kept = p.last ? p.rows - 1 - p.drafts + n : p.rows;
    accepted_.push_back({p.slot, p.context,
                         c.tokens().subspan(static_cast<size_t>(p.context) + 1, static_cast<size_t>(kept)), p.blocks,
                         entry.place.first_row, p.last});
  }
  parts_.metrics.step_tokens.observe(static_cast<double>(tokens));
  if (accepted_.empty()) return;
  const auto start = Clock::now();
  try {
    parts_.runner.advance_draft_head(accepted_);
  } catch (const std::exception& error) {
    fail_all(error.what());
  }
  following_seconds_ = seconds(Clock::now() - start);
  model_seconds_ += following_seconds_;
}

int64_t Step::new_tokens() const {
  return std::accumulate(entries_.begin(), entries_.end(), int64_t{0},
                         [](int64_t sum, const Entry& e) { return sum + e.new_tokens; });
}

bool Step::only_decodes(int64_t drafts) const {
  return std::all_of(entries_.begin(), entries_.end(), [&](const Entry& e) {
    return only_decode({e.plan, 1}, drafts);
  });
}

void Step::fail_all(const char* sentence) {
  failed_ = true;
  for (const Entry& e : entries_)
    if (e.output != nullptr && !e.output->finished()) e.output->finish(FinishReason::error, sentence);
}

void Step::publish() {
  const auto now = Clock::now();
  parts_.metrics.preemptions = parts_.scheduler.preemptions();
  for (const Entry& e : entries_)
    if (e.output != nullptr) parts_.requests.publish(e.plan->sequence, now);
}

bool Step::all_observed() const {
  return parts_.ctx.device().id().shares_host_memory() && (parts_.observer.timed || parts_.observer.recording());
}

bool Step::observed() const {
  if (!parts_.ctx.device().id().shares_host_memory()) return false;
  return all_observed() ||
         std::any_of(entries_.begin(), entries_.end(), [](const Entry& e) { return e.output->routed_experts; });
}

void Step::keep_routes() {
  for (const Entry& e : entries_)
    for (int64_t row = 0; e.output->routed_experts && row < e.plan->rows; ++row)
      e.output->set_routed_experts(e.plan->context + row, parts_.observer.routes(e.place.first_row + row));
}

}  // namespace sluice::engine
