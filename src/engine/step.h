// SPDX-License-Identifier: Apache-2.0
// One step of the engine: the planned sequences through the model, a token for each row that may choose one, and what
// the scheduler, the states and the draft head learn of it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "device/context.h"
#include "engine/mask_worker.h"
#include "engine/metrics.h"
#include "engine/output_sequence.h"
#include "engine/request_table.h"
#include "engine/scheduler.h"
#include "engine/step_observer.h"
#include "model/runner.h"

namespace sluice::engine {

// Whether every sequence has a row of its own and this many drafts.
bool only_decode(std::span<const PlanEntry> plan, int64_t drafts);

class Step {
 public:
  // The engine's own; they live longer.
  struct Parts {
    Context& ctx;
    Scheduler& scheduler;
    model::Runner& runner;
    RequestTable& requests;
    StepObserver& observer;
    Metrics& metrics;
  };
  Step(Parts parts, int64_t vocab, bool speculative);

  // Until publish() the outcome is in the sequences only. An error of one sequence ends that one with
  // FinishReason::error, an error of the pass ends all. follow: the draft head, if there is one in use, runs over what
  // is accepted.
  void run(std::span<const PlanEntry> plan, bool follow = true);

  // The same in two halves, for plans that may_begin() and that the draft head does not follow. Between the halves the
  // next step may begin: its rows take the tokens that this one chooses on the device. So the device has work while the
  // host reads tokens.
  bool may_begin(std::span<const PlanEntry> plan);
  void begin(std::span<const PlanEntry> plan);
  // Begins a step with a row for each sequence of `before`, which has begun, except for those that `before` brings to
  // their full length. Nothing begins where memory is missing.
  void begin_after(const Step& before);
  bool begun() const { return begun_; }
  void end();
  // Drops the rows of sequences that have ended since this step began: their tokens are not read. Works before and
  // after the step before is published.
  void drop_finished();
  bool dropped_all() const;

  // Whether an error of the pass has ended all of its sequences.
  bool failed() const { return failed_; }

  // Gives the sinks their events and removes the sequences that have ended.
  void publish();

  // Of the last run().
  double model_seconds() const { return model_seconds_; }
  double sampling_seconds() const { return sampling_seconds_; }
  double following_seconds() const { return following_seconds_; }  // the draft head's share of the model's
  int64_t new_tokens() const;
  bool only_decodes(int64_t drafts) const;
  // Calls visit(drafts, right) for each sequence whose drafts were checked.
  template <class Visit>
  void visit_drafts(Visit&& visit) const {
    for (const Entry& e : entries_)
      if (e.output != nullptr && e.plan->drafts > 0 && e.new_tokens > 0) visit(e.plan->drafts, e.new_tokens - 1);
  }

 private:
  // A sequence's part.
  struct Entry {
    const PlanEntry* plan = nullptr;
    OutputSequence* output = nullptr;  // null: it has ended before this step did
    int32_t sampled = -1;              // 0 or more: its token is what this row of the step before chooses
    bool all_logits = false;           // of every row, for the prompt's log probabilities
    model::BatchPlace place;
    int64_t first_sampled = 0;  // of `sampled_`: rows that score the prompt, then those that choose
    int64_t num_sampled = 0;
    int64_t scored = 0;  // of them, rows that score the prompt
    int64_t new_tokens = 0;
    int64_t first_mask = -1,
            num_masks = 0;  // rows of `masks_`, for the rows that choose; -1: every token may be chosen
    std::string mask_error;

    std::span<const int32_t> drafts(const model::Runner& runner) const;
  };

  void prepare(std::span<const PlanEntry> plan);
  bool run_model();
  void begin();
  void forward();
  void start_masks();
  void sample();
  void add_sample_rows();
  void read_named();
  void accept();
  void accept(Entry& entry);
  void commit();
  void fail_all(const char* sentence);
  bool all_observed() const;  // whatever the sequences ask for
  bool observed() const;
  void keep_routes();

  Parts parts_;
  size_t mask_words_;
  bool speculative_, follow_ = false, failed_ = false;
  bool begun_ = false;
  std::string begin_error_;
  double model_seconds_ = 0, sampling_seconds_ = 0, following_seconds_ = 0;
  // Of the current step; reused.
  std::vector<PlanEntry> plan_;  // of one that begins
  std::vector<Entry> entries_;
  std::vector<model::DraftRequest> draft_requests_;
  std::vector<model::Accepted> accepted_;
  std::vector<int32_t> rows_;
  std::vector<sampling::SampleRow> sample_rows_;
  std::vector<sampling::LogitEdit> edits_;
  std::vector<uint32_t> masks_;  // [rows][mask_words_]
  std::vector<sampling::Sampled> sampled_;
  std::vector<std::span<const int32_t>> named_;  // by sample row: tokens whose log probabilities are wanted too
  std::vector<double> named_values_;             // of all of them, in order
  std::vector<BlockHash> hashes_;
  MaskWorker mask_worker_;  // the last: it ends before what it uses
};

}  // namespace sluice::engine
