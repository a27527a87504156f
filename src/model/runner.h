// SPDX-License-Identifier: Apache-2.0
// The one loop body over a model: rows in, logits and tokens out. Generator, run_windows, the engine and the C API's
// sessions put sequences into a step and read its results; they do not know on which device it ran.
#pragma once

#include <memory>
#include <optional>

#include "model/drafter.h"
#include "model/model.h"
#include "model/recorded_steps.h"

namespace sluice::model {

struct RunnerConfig {
  CacheConfig cache;
  int64_t rows = 0;                // the most rows of a step
  int64_t sequences = 1;           // the most sequences of a step
  int64_t sequence_tokens = 0;     // the longest sequence
  int drafts = 0;                  // the most drafts per step of a sequence, from the model's draft head; 0: none
  RecordingConfig recording = {};  // of steps that only decode
};

class Runner {
 public:
  // Reserves the cache. `ctx` and `model` must live longer. Throws out_of_memory; unsupported when drafts are asked of
  // a model without a draft head, or when the device runs no models.
  Runner(Context& ctx, const Model& model, const RunnerConfig& config);

  // Another model of the same cache shape and vocabulary: reloaded weights. The caches' contents are those of the old
  // one.
  void set_model(const Model& model);

  // A step: clear(), add() for each sequence, run(). What add() throws, BatchBuilder::add() says.
  void clear();
  BatchPlace add(const BatchSequence& sequence) { return batch_.add(sequence, states_); }
  // An observer sees host memory: unsupported on another device.
  void run(Observer* observer = nullptr);

  // Of the last run: f32 [logit rows, vocab] on the device. sample() edits them.
  ops::Matrix logits();
  // Throws nothing for broken logits: Sampled::problem says so.
  void sample(const sampling::SampleBatch& batch, std::span<sampling::Sampled> out) {
    ops_->sample(logits(), batch, out);
  }
  // sample() in two halves, as Ops has them: between these another step may be run, whose tokens are those that the
  // batch begun last will choose (BatchSequence::sampled).
  void begin_sample(const sampling::SampleBatch& batch) { ops_->begin_sample(logits(), batch); }
  void end_sample(std::span<sampling::Sampled> out) { ops_->end_sample(out); }
  // ln softmax(logits[i])[ids[i]] for the first ids.size() logit rows.
  void log_likelihoods(std::span<const int32_t> ids, std::span<double> out);
  // ln softmax(logits[row])[id] for each of ids.
  void log_likelihoods_of(int64_t row, std::span<const int32_t> ids, std::span<double> out);
  // Copies the logits of `rows` rows from `first` on to the host, f32 [rows, vocab].
  void read_logits(int64_t first, int64_t rows, float* out);

  // Keeps the first `accepted` rows of a sequence whose rows were drafts; 0 keeps the state from before the step.
  void commit(int slot, int64_t accepted) { states_.commit(slot, accepted); }
  // Copies the recurrent state of the sequence in slot `from`, so that another may go on from there in slot `to`.
  void copy_state(int from, int to);

  // The draft head, with drafts > 0. advance_draft_head() runs it over the tokens that the last step accepted and
  // makes the first draft, make_drafts() the others; drafts(slot) reads them.
  void make_drafts(std::span<const DraftRequest> requests);
  std::span<const int32_t> drafts(int slot) const { return drafter_->drafts(slot); }
  void advance_draft_head(std::span<const Accepted> sequences);

  const Model& model() const { return *model_; }
  const CacheShape& cache_shape() const { return cache_.shape(); }
  int64_t cache_bytes() const { return cache_.bytes(); }
  void release_cache();  // as Cache::release()
  void restore_cache() { cache_.restore(); }
  // Recordings that steps are replayed from, now.
  int64_t recorded_steps() const { return recorded_ ? recorded_->recorded() : 0; }

 private:
  void reserve_logits(int64_t rows);

  std::unique_ptr<ops::Ops> ops_;
  const Model* model_;
  Cache cache_;
  StateTable states_;
  BatchBuilder batch_;
  std::unique_ptr<RecordedSteps> recorded_;  // null: the device does not record, or need not
  int64_t most_recorded_rows_ = 0;
  Tensor logits_;  // f32 [capacity, vocab]; grows to the most rows that were wanted
  Tensor hidden_;  // D [rows, hidden], for the draft head
  int64_t logit_rows_ = 0;
  std::unique_ptr<Drafter> drafter_;
};

}  // namespace sluice::model
